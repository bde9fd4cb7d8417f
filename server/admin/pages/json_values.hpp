// SPDX-License-Identifier: Apache-2.0
// Values of the admin pages' JSON: what is not known is null.
#pragma once

#include "shared/base/json.hpp"

#include <cmath>
#include <optional>

namespace fl::server {

/// The number, or null for one that is not finite, which JSON can't express.
[[nodiscard]] inline nlohmann::json figure(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json();
}
[[nodiscard]] inline nlohmann::json figure(std::optional<double> value) {
  return value ? figure(*value) : nlohmann::json();
}

/// Unix seconds; null for a time that is not set.
[[nodiscard]] inline nlohmann::json moment(double at) {
  return at == 0 ? nlohmann::json() : nlohmann::json(at);
}
/// Unix seconds, rounded to whole ones, so that the text stays the same while the time comes
/// nearer.
[[nodiscard]] inline nlohmann::json moment_in(std::optional<double> in_s, double now) {
  return in_s ? nlohmann::json(std::round(now + *in_s)) : nlohmann::json();
}

}  // namespace fl::server
