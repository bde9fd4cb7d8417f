// SPDX-License-Identifier: Apache-2.0
// Grids of ranks that train a transformer together, and how far what they make is from what one
// process does. Include this before doctest: libtorch and doctest both define CHECK.
#pragma once

#include "shared/params/model_table.hpp"
#include "tests/client/learn/made_up_texts.hpp"
#include "tests/client/site/trained_ranks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace fl::test {

inline const std::string dense = "transformer:layers=2,width=16,heads=4,context=32";
inline const std::string mixture = dense + ",experts=4,capacity=1,aux=0.1,z=0.01";

/// A grid of ranks.
struct Shape {
  int dp;
  int tp;
  bool divides_tokens = false;
  int cp = 1;
  ContextWay way = ContextWay::ring;
  int pp = 1;
  const char* pipeline = "1f1b";
  int ep = 1;
  [[nodiscard]] int size() const { return dp * tp * cp * pp; }
  [[nodiscard]] std::string name() const {
    return fmt::format("dp={},tp={},cp={},ep={},pp={}{} way {} {}", dp, tp, cp, ep, pp,
                       divides_tokens ? ", divided tokens" : "", static_cast<int>(way), pipeline);
  }
};

inline Training training_of(const std::string& model, const Shape& shape) {
  Training training;
  training.model = model;
  training.tp = shape.tp;
  training.divides_tokens = shape.divides_tokens;
  training.texts = {.ranks = shape.cp, .way = shape.way};
  training.stages = parse_pipeline(shape.pipeline, shape.pp).value();
  training.experts = {.ranks = shape.ep};
  training.topology = parse_topology("alltoall").value();
  training.settings = {.local_steps = 4, .batch_size = 4, .lr = 0.05, .momentum = 0.9, .seed = 9};
  training.data = [] { return made_up_texts(ragged_lengths()); };
  return training;
}

/// The largest difference of a tensor from another one's, relative to the latter's length.
inline double worst_distance(const std::string& model, std::span<const float> a,
                             std::span<const float> wanted) {
  double worst = 0;
  const Layout layout = builtin_layout(model).value();
  for (const Layout::Tensor& tensor : layout.tensors()) {
    // The keys' bias, whose gradient is 0 in exact arithmetic, is in a tensor with other biases.
    worst = std::max(worst, relative_distance(a.subspan(tensor.offset, tensor.elements),
                                              wanted.subspan(tensor.offset, tensor.elements)));
  }
  return worst;
}

/// Calls work(rank, trainer, weights, made) on each rank, and joins what they have made: vectors as
/// long as the model.
template <class Work>
std::vector<float> joined(int size, const Training& training, const Work& work) {
  std::vector<Trained> all(static_cast<std::size_t>(size));
  on_ranks(size, [&](Ranks& ranks) {
    const auto together = enter_parallel(ranks, training);
    const auto trainer = make_ranks_trainer(training, together.get());
    std::vector<float>& made = all[static_cast<std::size_t>(ranks.rank())].update;
    made.resize(trainer->layout().elements());
    work(ranks.rank(), *trainer, first_weights(*trainer, training), made);
  });
  return joined_update(all);
}

/// Notes the gradient that a rank writes, for joined().
inline void note_gradient(int /*rank*/, Trainer& trainer, const std::vector<float>& weights,
                          std::vector<float>& made) {
  if (const auto done = trainer.gradient(weights, {}, made, {}); !done)
    throw std::runtime_error(done.error().message());
}

/// The gradient that one process makes.
inline std::vector<float> gradient_alone(const std::string& model) {
  const Training alone = training_of(model, {1, 1});
  const auto trainer = make_ranks_trainer(alone, nullptr);
  std::vector<float> gradient(trainer->layout().elements());
  note_gradient(0, *trainer, first_weights(*trainer, alone), gradient);
  return gradient;
}

/// Whether each element of a model is written by one rank of a grid, which has read it: what each
/// of them says.
inline std::vector<bool> write_each_once(const Shape& shape, const Training& training) {
  const auto elements = builtin_layout(training.model).value().elements();
  std::vector<int> do_so(static_cast<std::size_t>(shape.size()));
  on_ranks(shape.size(), [&](Ranks& ranks) {
    const auto together = enter_parallel(ranks, training);
    const auto trainer = make_ranks_trainer(training, together.get());
    std::vector<int> written(elements);
    bool has_read = true;
    for (int rank = 0; rank < shape.size(); ++rank) {
      std::vector<bool> read(elements);
      for (const Piece& piece : together->read_by(rank))
        for (std::int64_t i = 0; i < piece.count; ++i)
          read[static_cast<std::size_t>(piece.begin + i)] = true;
      for (const Piece& piece : together->written_by(rank)) {
        for (std::int64_t i = 0; i < piece.count; ++i) {
          ++written[static_cast<std::size_t>(piece.begin + i)];
          has_read = has_read && read[static_cast<std::size_t>(piece.begin + i)];
        }
      }
    }
    const bool is_once = std::ranges::count(written, 1) == std::ssize(written);
    do_so[static_cast<std::size_t>(ranks.rank())] = has_read && is_once ? 1 : 0;
    ranks.barrier();  // The other ranks may still enter.
  });
  return {do_so.begin(), do_so.end()};
}

/// A step of a grid in a precision below fp32.
struct MixedStep {
  bool is_other = false;       // It differs from the step in fp32.
  double distance = 0;         // From that, relative to its length.
  bool is_repeatable = false;  // It has the same bits when activations are computed again.
};

inline MixedStep mixed_step(const Shape& shape, const std::string& precision,
                            const std::string& model = dense) {
  Training training = training_of(model, shape);
  training.settings.local_steps = 1;
  training.zero = 3;
  const auto whole = joined_update(train_ranks(shape.size(), training));
  training.precision = precision;
  const auto low = joined_update(train_ranks(shape.size(), training));
  training.recomputes = true;
  const auto again = joined_update(train_ranks(shape.size(), training));
  return {low != whole, relative_distance(low, whole), again == low};
}

/// Evaluates the first weights of a training.
inline EvalReport evaluate_first(Trainer& trainer, const Training& training) {
  return trainer.evaluate(first_weights(trainer, training), {}).value();
}

/// The evaluation that one process makes of 6 examples.
inline EvalReport evaluation_alone(const std::string& model) {
  Training alone = training_of(model, {1, 1});
  alone.holdout = 6;
  return evaluate_first(*make_ranks_trainer(alone, nullptr), alone);
}

/// Those that the ranks of a grid make.
inline std::vector<EvalReport> evaluations(const std::string& model, const Shape& shape) {
  Training training = training_of(model, shape);
  training.holdout = 6;
  training.zero = 3;
  std::vector<EvalReport> reports(static_cast<std::size_t>(shape.size()));
  on_ranks(shape.size(), [&](Ranks& ranks) {
    const auto together = enter_parallel(ranks, training);
    const auto trainer = make_ranks_trainer(training, together.get());
    reports.at(static_cast<std::size_t>(ranks.rank())) = evaluate_first(*trainer, training);
  });
  return reports;
}

/// Whether two evaluations are the same but for rounding, and for so many metrics at the end.
inline bool are_alike(const EvalReport& a, const EvalReport& b, std::size_t left_out = 0) {
  const auto near = [](double x, double y) { return std::abs(x - y) <= 1e-6 * std::abs(y); };
  bool are = a.examples == b.examples && near(a.loss, b.loss) && !b.metrics.empty() &&
             a.metrics.size() == b.metrics.size();
  for (std::size_t i = 0; are && i + left_out < b.metrics.size(); ++i)
    are = near(a.metrics[i].value, b.metrics[i].value);
  return are;
}

}  // namespace fl::test
