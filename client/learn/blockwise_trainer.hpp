// SPDX-License-Identifier: Apache-2.0
// A trainer that works in stretches of its vectors and holds none of them whole. It overrides
// make_initial(), train_blocks(), write_gradient() and evaluate_blocks(); what Trainer has for
// whole vectors is made of these.
#pragma once

#include "client/learn/trainer.hpp"
#include "shared/base/io/bytes.hpp"

#include <span>
#include <stop_token>
#include <utility>
#include <vector>

namespace fl {

/// Writes into memory, which must outlive it.
class SpanSink final : public ValueSink {
 public:
  explicit SpanSink(std::span<float> target) : target_(target) {}
  [[nodiscard]] Result<void> write(std::uint64_t first, std::span<const float> values) override {
    FL_ASSERT(first + values.size() <= target_.size());
    copy_span(values, target_.subspan(first, values.size()));
    return {};
  }
  [[nodiscard]] std::span<float> whole() override { return target_; }

 private:
  std::span<float> target_;
};

class BlockwiseTrainer : public Trainer {
 public:
  [[nodiscard]] Result<std::vector<float>> initial_weights(std::uint64_t seed) const final {
    std::vector<float> weights(layout().elements());
    SpanSink sink(weights);
    FL_CHECK(make_initial(seed, sink));
    return weights;
  }
  [[nodiscard]] Result<TrainReport> train(std::span<const float> global,
                                          const TrainSettings& settings,
                                          std::span<const float> correction,
                                          std::span<float> update, std::stop_token stop) final {
    const SpanValues added(correction);
    SpanSink sink(update);
    return train_blocks(SpanValues(global), settings, correction.empty() ? nullptr : &added, sink,
                        std::move(stop));
  }
  [[nodiscard]] Result<void> gradient(std::span<const float> weights, const TrainSettings& settings,
                                      std::span<float> gradient, std::stop_token stop) final {
    SpanSink sink(gradient);
    return write_gradient(SpanValues(weights), settings, sink, std::move(stop));
  }
  [[nodiscard]] Result<EvalReport> evaluate(std::span<const float> weights,
                                            std::stop_token stop) final {
    return evaluate_blocks(SpanValues(weights), std::move(stop));
  }

  [[nodiscard]] Result<void> make_initial(std::uint64_t seed, ValueSink& out) const override = 0;
  [[nodiscard]] Result<TrainReport> train_blocks(const ValueSource& global,
                                                 const TrainSettings& settings,
                                                 const ValueSource* correction, ValueSink& update,
                                                 std::stop_token stop) override = 0;
  [[nodiscard]] Result<void> write_gradient(const ValueSource& weights,
                                            const TrainSettings& settings, ValueSink& gradient,
                                            std::stop_token stop) override = 0;
  [[nodiscard]] Result<EvalReport> evaluate_blocks(const ValueSource& weights,
                                                   std::stop_token stop) override = 0;
};

}  // namespace fl
