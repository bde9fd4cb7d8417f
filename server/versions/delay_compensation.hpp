// SPDX-License-Identifier: Apache-2.0
// Delay compensation, DC-ASGD (Zheng 2017, equation 10): a gradient g that was taken at an older
// model w_then is moved to the present one, w_now, by the first term of its Taylor series, with
// lambda * g * g in place of the Hessian:
//
//   g' = g + lambda * g * g * (w_now - w_then)
//
// An update of H steps with learning rate lr stands for the mean gradient g = -u / (lr * H), so
//
//   u' = u - lambda / (lr * H) * u * u * (w_now - w_then).
#pragma once

#include "server/versions/checkpoints.hpp"

#include <cstdint>
#include <memory>
#include <span>

namespace fl::server {

class DelayCompensation {
 public:
  /// `factor` is lambda / (lr * H), where H is the effective number of steps (effective_steps()).
  /// `parameters` is the number of elements that have a gradient; the ones behind them stay as they
  /// are.
  DelayCompensation(std::shared_ptr<const ModelVersion> then,
                    std::shared_ptr<const ModelVersion> now, double factor,
                    std::uint64_t parameters)
      : then_(std::move(then)), now_(std::move(now)), factor_(factor), parameters_(parameters) {}

  /// Changes the update's values from element `first` on. Reads both versions; any thread.
  [[nodiscard]] Result<void> operator()(std::uint64_t first, std::span<float> update) const;

 private:
  std::shared_ptr<const ModelVersion> then_;
  std::shared_ptr<const ModelVersion> now_;
  double factor_;
  std::uint64_t parameters_;
};

}  // namespace fl::server
