// SPDX-License-Identifier: Apache-2.0
#include "client/learn/torch/torch_learner.hpp"

#include "client/learn/data/random.hpp"
#include "client/learn/torch/layer.hpp"
#include "client/learn/torch/optimizer.hpp"
#include "shared/params/model_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace fl {

namespace {

// The example indices of the steps, one step after the other, in a new order for every epoch.
class Batches {
 public:
  Batches(std::int64_t examples, std::int64_t batch_size, std::uint64_t seed)
      : examples_(examples), batch_size_(batch_size), seed_(seed) {}

  /// int64 [batch_size] on the CPU, or shorter at the end of an epoch.
  torch::Tensor next() {
    if (at_ == 0) shuffle();
    const std::int64_t n = std::min(batch_size_, examples_ - at_);
    torch::Tensor batch = order_.narrow(0, at_, n);
    at_ = at_ + n == examples_ ? 0 : at_ + n;
    return batch;
  }

 private:
  void shuffle() {
    const auto indices = shuffled_indices(static_cast<std::uint32_t>(examples_), seed_, epoch_++);
    order_ = torch::empty({examples_}, torch::kInt64);
    std::ranges::copy(indices, order_.mutable_data_ptr<std::int64_t>());
  }

  std::int64_t examples_;
  std::int64_t batch_size_;
  std::uint64_t seed_;
  std::uint64_t epoch_ = 0;
  std::int64_t at_ = 0;
  torch::Tensor order_;
};

/// Shortens the gradient to the length `most` if it is longer (TrainSettings::clip_norm).
Result<void> clip(HeldParameters& parameters, double most) {
  const double norm = parameters.gradient_norm();
  if (!std::isfinite(norm)) return Error(Errc::invalid_input, "the gradient is not finite");
  const double factor = most / (norm + 1e-6);
  if (factor < 1) parameters.gradient().mul_(factor);
  return {};
}

Error no_loss(double loss) { return {Errc::invalid_input, fmt::format("the loss is {}", loss)}; }

PassGroups groups_of(const Learner::Options& options) {
  return options.together == nullptr ? PassGroups() : options.together->groups();
}

/// Whether it is so on any rank.
bool on_any(const LocalRun& run, bool here) {
  return run.together == nullptr ? here : run.together->on_any(here);
}

}  // namespace

std::int64_t step_examples(const TrainSettings& settings, std::int64_t examples,
                           std::int64_t ranks) {
  const std::uint64_t wanted =
      std::uint64_t{settings.batch_size} * settings.accumulate * static_cast<std::uint64_t>(ranks);
  return static_cast<std::int64_t>(std::min(wanted, static_cast<std::uint64_t>(examples)));
}

Result<Learner> Learner::make(std::string_view model, torch::Device device,
                              const Options& options) {
  FL_TRY(const Layout layout, builtin_layout(model));
  FL_TRY(ModelSpec spec, parse_model(model));
  FL_TRY(Module module, make_module(model, groups_of(options)));
  FL_CHECK(set_formats(*module, options.precision));
  return Learner(std::move(spec), std::move(module), layout, device, options);
}

Learner::Learner(ModelSpec spec, Module module, const Layout& layout, torch::Device device,
                 const Options& options)
    : passes_(std::make_unique<Passes>(std::move(spec), std::move(module), groups_of(options),
                                       options.precision.otherwise)),
      precision_(options.precision) {
  Units& units = passes_->units();
  units.recompute(options.recomputes);
  if (options.together != nullptr) {
    parameters_ = options.together->hold(passes_->module(), layout, device, units);
  } else {
    const torch::Tensor shared =
        options.twin == nullptr ? torch::Tensor() : options.twin->parameters_->whole_model();
    parameters_ = std::make_unique<WholeParameters>(passes_->module(), layout, device, shared);
  }
  passes_->train(*parameters_);
}

/// The choices about the number formats of a training's steps.
struct Learner::Formats {
  LossScale scale;
  AdaptivePrecision adaptive;
};

Result<LocalShare> Learner::train(LocalRun& run, const Examples& examples, std::uint64_t number) {
  const TrainSettings& settings = run.settings;
  const std::int64_t ranks = run.together == nullptr ? 1 : run.together->size();
  Batches batches(examples.size(), step_examples(settings, examples.size(), ranks),
                  number == 0 ? run.seed : mix_seeds(run.seed, number));
  Moments* const moments = number == 0 ? run.moments : nullptr;
  const torch::Tensor gradient = parameters_->stepped(parameters_->gradient());
  const bool steps_all = gradient.size(0) == parameters_->gradient().size(0);
  Optimizer optimizer(
      settings, {parameters_->stepped(parameters_->weights()), gradient, run.start, run.correction},
      moments != nullptr ? *moments : Moments());
  Formats formats;
  LocalShare done;
  std::uint64_t step = run.begun++;
  bool goes_on = step < run.steps && (step == 0 || has_time(run));
  while (goes_on) {
    const auto place = [&] {
      return fmt::format("round {}, step {} of {}", settings.round, step + 1, run.steps);
    };
    if (run.stop.stop_requested()) return Error(Errc::cancelled, "training stopped").at(place());
    const torch::Tensor batch = batches.next();
    const auto loss = take_gradient(run, examples, batch, formats, done);
    if (!loss) return loss.error().at(place());
    if (!*loss) continue;
    if (settings.clip_norm > 0) {
      if (const auto done_so = clip(*parameters_, settings.clip_norm); !done_so)
        return done_so.error().at(place());
    }
    optimizer.step();
    if (!steps_all) parameters_->gradient().zero_();
    const std::int64_t predictions = examples.predictions(batch);
    done.predictions += static_cast<std::uint64_t>(predictions);
    done.loss_sum += **loss * static_cast<double>(predictions);
    ++done.steps;
    step = run.begun++;
    goes_on = step < run.steps && has_time(run);
    if (run.together != nullptr) run.together->after_step(parameters_->trained(), !goes_on);
  }
  if (moments != nullptr) *moments = optimizer.moments();
  return done;
}

/// Whether there is time for another step. Ranks that train together do as the first one says.
bool Learner::has_time(const LocalRun& run) const {
  bool has_time = Clock::now() < run.end;
  if (run.together != nullptr && run.end != never) {
    torch::Tensor told = torch::full({1}, has_time ? 1.0 : 0.0, parameters_->weights().options());
    run.together->broadcast(told);
    has_time = told.item<double>() != 0;
  }
  return has_time;
}

/// Makes the gradient of the mean loss of these examples, and returns that loss; none if the
/// gradient has overflowed fp16, so that there is no step. Errors: cancelled; invalid_input for a
/// loss that is not finite.
Result<std::optional<double>> Learner::take_gradient(const LocalRun& run, const Examples& examples,
                                                     const torch::Tensor& batch, Formats& formats,
                                                     LocalShare& done) {
  const torch::Tensor gradient = parameters_->gradient();
  const torch::Tensor statistics = parameters_->statistics();
  const bool is_low = !precision_.is_adaptive || formats.adaptive.is_low();
  const torch::Tensor before = precision_.is_adaptive ? statistics.clone() : torch::Tensor();
  double loss = add_gradient(run, examples, batch, formats, is_low);
  if (run.stop.stop_requested()) return Error(Errc::cancelled, "training stopped");
  if (!precision_.is_adaptive) {
    if (!std::isfinite(loss)) return no_loss(loss);
    if (!is_scaled(is_low)) return std::optional(loss);
    const bool has_overflowed = on_any(run, !gradient.isfinite().all().item<bool>());
    formats.scale.note(has_overflowed);
    if (formats.scale.is_spent()) return Error(Errc::invalid_input, "the gradient overflows fp16");
    if (!has_overflowed) return std::optional(loss);
    gradient.zero_();
    return std::optional<double>();
  }
  double norm = parameters_->gradient_norm();
  const bool has_overflowed = is_low && on_any(run, !std::isfinite(norm));
  if (is_scaled(is_low) && !formats.scale.is_spent()) formats.scale.note(has_overflowed);
  if (has_overflowed) {
    statistics.copy_(before);
    gradient.zero_();
    loss = add_gradient(run, examples, batch, formats, false);
    if (run.stop.stop_requested()) return Error(Errc::cancelled, "training stopped");
    norm = parameters_->gradient_norm();
  }
  if (!std::isfinite(loss)) return no_loss(loss);
  const bool is_odd = is_low && !has_overflowed && on_any(run, formats.adaptive.is_odd(norm));
  if (is_low)
    formats.adaptive.note_low(norm, {.has_overflowed = has_overflowed, .is_odd = is_odd});
  else
    formats.adaptive.note_full(norm);
  done.fall_backs += {.fp32_steps = !is_low || has_overflowed ? 1U : 0U,
                      .overflows = has_overflowed ? 1U : 0U,
                      .odd_norms = is_odd ? 1U : 0U};
  return std::optional(loss);
}

/// Adds the gradient of the mean loss of these examples, settings.batch_size examples at a time,
/// and returns that loss. Of ranks together: the gradient of the mean loss of all examples, and
/// this rank's share in that loss. A part counts with its predictions among those of the whole
/// batch, which every rank knows. After a stop request the loss is incomplete.
double Learner::add_gradient(const LocalRun& run, const Examples& examples,
                             const torch::Tensor& batch, const Formats& formats, bool is_low) {
  StepSync* const together = run.together;
  const auto all = static_cast<double>(examples.predictions(batch));
  torch::Tensor mine = batch;
  // Ranks' gradients are averaged, so a rank's own is that much larger.
  double weight = 1;
  if (together != nullptr) {
    const RankPart part = part_of(batch.size(0), together->rank(), together->size());
    mine = batch.narrow(0, part.begin, part.end - part.begin);
    weight = static_cast<double>(together->gradient_parts());
  }
  const std::int64_t at_once = run.settings.batch_size;
  const std::int64_t n = mine.size(0);
  // A rank with less than others takes part all the same: in the reduction at least, and in all
  // passes where ranks need each other for them.
  std::int64_t passes = std::max<std::int64_t>(1, (n + at_once - 1) / at_once);
  if (together != nullptr && passes_->are_joint(*together)) {
    const std::int64_t most = (batch.size(0) + together->size() - 1) / together->size();
    passes = (most + at_once - 1) / at_once;
  }
  const auto pass_at = [&](std::int64_t pass) -> TrainingPass {
    const std::int64_t at = pass * at_once;
    if (at >= n)
      return {.batch = examples.batch(batch.narrow(0, 0, std::min(at_once, batch.size(0)))),
              .mean_share = 0};
    const torch::Tensor part = mine.narrow(0, at, std::min(at_once, n - at));
    return {.batch = examples.batch(part),
            .mean_share = weight * static_cast<double>(examples.predictions(part)) / all};
  };
  const double sum =
      passes_->take(TrainingPasses{.count = passes,
                                   .at = pass_at,
                                   .together = together,
                                   .is_low = is_low,
                                   .scale = is_scaled(is_low) ? formats.scale.factor() : 1,
                                   .stop = run.stop});
  if (!run.stop.stop_requested()) parameters_->join_gradient();
  if (is_scaled(is_low)) parameters_->gradient().mul_(1 / formats.scale.factor());
  return sum / weight;
}

}  // namespace fl
