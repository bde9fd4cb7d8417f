// SPDX-License-Identifier: Apache-2.0
// RoundMoments: the optimizer's moments before and after a round, on one process or on ranks that
// train together. One thread.
#pragma once

#include "client/learn/torch/held_parameters.hpp"
#include "client/learn/torch/kept_moments.hpp"
#include "client/learn/torch/step_sync.hpp"
#include "shared/base/error.hpp"

#include <cstdint>
#include <string>
#include <utility>

namespace fl {

/// Where each rank steps a part of the parameters, each keeps the moments of its part; where all
/// step the same, the first one keeps them for all. The functions are collectives of the ranks, and
/// throw SyncFailure.
class RoundMoments {
 public:
  /// `together` is null without other ranks, and must outlive the object.
  RoundMoments(std::string folder, StepSync* together, torch::Device device)
      : folder_(std::move(folder)), together_(together), device_(device) {}

  /// Those with which a round begins, of what `held` steps. Errors: those of KeptMoments.
  [[nodiscard]] Result<Moments> before(const std::string& run_key, std::uint32_t round,
                                       const HeldParameters& held) const;
  [[nodiscard]] Result<void> keep(const std::string& run_key, std::uint32_t round,
                                  const HeldParameters& held, const Moments& moments) const;

 private:
  [[nodiscard]] KeptMoments files_of(const HeldParameters& held) const;
  [[nodiscard]] bool is_first() const { return together_ == nullptr || together_->member() == 0; }
  void broadcast(Moments& moments, std::int64_t elements) const;
  void drop_unless_all_have(Moments& moments) const;

  std::string folder_;
  StepSync* together_;
  torch::Device device_;
};

}  // namespace fl
