// SPDX-License-Identifier: Apache-2.0
// The loss scale that keeps fp16 gradients in range: Micikevicius, Narang, Alben et al., "Mixed
// Precision Training", 2018, section 3.2. It adapts like PyTorch's GradScaler, with the same
// numbers. Each training of a round has an object of its own.
#pragma once

#include <cstdint>

namespace fl {

class LossScale {
 public:
  /// A power of two. The loss is multiplied by it, and the gradient is divided by it.
  [[nodiscard]] double factor() const { return factor_; }
  /// Call after each step. Halves the factor after an overflow, and doubles it after 2000 steps
  /// without one.
  void note(bool has_overflowed) {
    good_ = has_overflowed ? 0 : good_ + 1;
    if (has_overflowed) factor_ /= 2;
    if (good_ != growth_interval) return;
    factor_ *= 2;
    good_ = 0;
  }
  /// Whether the factor is so small that the gradients can't be represented in fp16.
  [[nodiscard]] bool is_spent() const { return factor_ < 0x1p-16; }

 private:
  static constexpr std::uint32_t growth_interval = 2000;

  double factor_ = 0x1p16;
  std::uint32_t good_ = 0;  // Steps since it last changed.
};

}  // namespace fl
