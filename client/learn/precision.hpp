// SPDX-License-Identifier: Apache-2.0
// In which number format a model's layers run while it trains (--precision):
//
//   FORMAT{,PATTERN=FORMAT}    FORMAT is fp32, bf16 or fp16; first also adaptive, which is bf16, or
//                              adaptive:bf16 or adaptive:fp16
//
// "bf16,*norm*=fp32,logits=fp32": the first pattern that fits a layer's name decides, and the first
// FORMAT is that of all other layers and of what lies between layers. Any thread.
#pragma once

#include "shared/base/error.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fl {

enum class NumberFormat { fp32, bf16, fp16 };

struct PrecisionPlan {
  struct Rule {
    std::string pattern;  // fits_pattern().
    NumberFormat format;
  };
  NumberFormat otherwise = NumberFormat::fp32;
  std::vector<Rule> rules = {};
  /// Steps are taken in fp32 as AdaptivePrecision says.
  bool is_adaptive = false;

  [[nodiscard]] bool has(NumberFormat format) const;
  [[nodiscard]] NumberFormat format_of(std::string_view layer) const;
  /// Whether each pattern fits a layer. Errors: invalid_input, with the first that does not, and
  /// all layers.
  [[nodiscard]] Result<void> check_layers(std::span<const std::string> layers) const;
};

/// Errors: invalid_input, with what is wrong and what there is.
[[nodiscard]] Result<PrecisionPlan> parse_precision(std::string_view text);

/// Which steps of a training are tried in the lower formats. One whose gradient overflows is taken
/// again in fp32, from the same examples. After four such steps in a row, and after a step whose
/// gradient is much longer or shorter than those before, the next steps are in fp32: 16 of them,
/// and twice as many each time, up to 1024. Each training of a round has an object of its own.
/// Everything is a function of the norms, so it is the same on all ranks that have the same ones.
class AdaptivePrecision {
 public:
  /// Whether the next step is to be tried in the lower formats.
  [[nodiscard]] bool is_low() const { return full_left_ == 0; }
  /// Whether a gradient's norm is more than 8 times the mean of those before, or less than an
  /// eighth of it. False in the first 8 steps.
  [[nodiscard]] bool is_odd(double norm) const;

  struct Outcome {
    bool has_overflowed = false;
    bool is_odd = false;
  };
  /// Call after each step that was tried in the lower formats, with the norm of the gradient in the
  /// end.
  void note_low(double norm, const Outcome& outcome);
  /// Call after each other step.
  void note_full(double norm);

 private:
  void count(double norm);

  static constexpr std::uint32_t pause_min = 16;
  static constexpr std::uint32_t pause_max = 1024;
  static constexpr std::uint32_t overflows_max = 4;  // In a row. fp16's loss scale may mend fewer.
  static constexpr std::uint32_t counted_min = 8;
  static constexpr double odd_factor = 8;
  static constexpr double newest_weight = 0.1;

  double mean_ = 0;  // The mean of the norms so far; newer ones count more.
  std::uint32_t counted_ = 0;
  std::uint32_t overflows_ = 0;  // In a row.
  std::uint32_t full_left_ = 0;  // Steps in fp32 that are still to be taken.
  std::uint32_t pause_ = pause_min;
};

}  // namespace fl
