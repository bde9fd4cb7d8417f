// SPDX-License-Identifier: Apache-2.0
// The numbers behind the colon of a rule of --aggregate, as in "multikrum:1,4". A value; any
// thread.
#pragma once

#include "shared/base/error.hpp"

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

namespace fl::server {

/// All errors are invalid_input, and name the spec and what would be right.
class RuleArguments {
 public:
  /// `spec`: all of --aggregate, for errors. `text`: what stands behind the colon; none without a
  /// colon. Both must outlive this object.
  RuleArguments(std::string_view spec, std::optional<std::string_view> text)
      : spec_(spec), text_(text) {}

  [[nodiscard]] bool is_given() const { return text_.has_value(); }
  [[nodiscard]] Error wrong(std::string_view why) const;
  /// An error if something stands behind the colon.
  [[nodiscard]] Result<void> none() const;
  /// The number `what`, above 0 and at most `most`.
  [[nodiscard]] Result<double> number(std::string_view what, double most) const;
  /// The whole number `what`, 0 or more.
  [[nodiscard]] Result<std::uint32_t> count(std::string_view what) const;
  /// `text`, a part of the arguments, as the whole number `what`, `least` or more.
  [[nodiscard]] Result<std::uint32_t> count(std::string_view text, std::string_view what,
                                            std::uint32_t least) const;
  /// The texts before and after the comma.
  [[nodiscard]] std::pair<std::string_view, std::optional<std::string_view>> two() const;

 private:
  std::string_view spec_;
  std::optional<std::string_view> text_;
};

/// The largest number of updates that a rule's argument may name.
inline constexpr double rule_updates_max = 1e6;

}  // namespace fl::server
