// The factor that keeps the gradients of fp16 in its range: Micikevicius, Narang, Alben et al.,
// "Mixed Precision Training", 2018, section 3.2, adapted as PyTorch's GradScaler does, with its
// numbers. One object for one round's training.
#pragma once

#include <cstdint>

namespace fl {

class LossScale {
 public:
  /// What the loss is multiplied by, and its gradient divided by: a power of two.
  [[nodiscard]] double factor() const { return factor_; }
  /// Half of it after an overflow, twice after 2000 steps in a row without one.
  void note(bool has_overflowed) {
    good_ = has_overflowed ? 0 : good_ + 1;
    if (has_overflowed) factor_ /= 2;
    if (good_ != growth_interval) return;
    factor_ *= 2;
    good_ = 0;
  }
  /// Gradients that overflow even so have no place in fp16.
  [[nodiscard]] bool is_spent() const { return factor_ < 0x1p-16; }

 private:
  static constexpr std::uint32_t growth_interval = 2000;

  double factor_ = 0x1p16;
  std::uint32_t good_ = 0;  // Steps since it last changed.
};

}  // namespace fl
