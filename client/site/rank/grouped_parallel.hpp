// SPDX-License-Identifier: Apache-2.0
// GroupedParallel: what all kinds of Parallel do with their group of ranks.
#pragma once

#include "client/site/rank/conductor.hpp"
#include "client/site/rank/parallel.hpp"
#include "client/site/rank/ranks.hpp"
#include "client/site/rank/step_times.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <utility>

namespace fl::site {

/// Used by the thread that trains. A class that derives from it calls leave() in its destructor,
/// before what the conductor's work refers to is gone.
class GroupedParallel : public Parallel {
 public:
  /// `on_progress` is called for each batch and collective, on any thread.
  explicit GroupedParallel(std::function<void()> on_progress)
      : on_progress_(std::move(on_progress)) {}
  GroupedParallel(const GroupedParallel&) = delete;
  GroupedParallel& operator=(const GroupedParallel&) = delete;

  void leave() override;
  [[nodiscard]] bool has_group() const override { return ranks_ != nullptr; }
  [[nodiscard]] Ranks& ranks() override { return *ranks_; }
  [[nodiscard]] std::uint64_t gradient_bytes() const override {
    return gradient_ranks_->bytes_sent();
  }
  [[nodiscard]] StepTimes& times() override { return times_; }

  [[nodiscard]] std::int64_t rank() const override { return ranks_->rank(); }
  [[nodiscard]] std::int64_t size() const override { return ranks_->size(); }
  void advance() override { on_progress_(); }
  void broadcast(torch::Tensor& values) override;
  void sum(torch::Tensor& values) override;

 protected:
  /// From now on this is the group. Throws RankFailure.
  void enter_ranks(std::unique_ptr<Ranks> ranks);
  /// Waits for the work that the conductor has begun, and ends it; leave() does, too.
  void end_conductor() { conductor_.reset(); }
  /// The conductor of the group's gradients.
  [[nodiscard]] Conductor& conductor() { return *conductor_; }

 private:
  const std::function<void()> on_progress_;
  StepTimes times_;
  // Each of these members uses those before it. Collectives of one group must start in one thread,
  // so the gradients, which the conductor's thread sends, have a group of their own.
  std::unique_ptr<Ranks> ranks_;           // For the thread that trains.
  std::unique_ptr<Ranks> gradient_ranks_;  // For the conductor's thread.
  std::optional<Conductor> conductor_;
};

}  // namespace fl::site
