// SPDX-License-Identifier: Apache-2.0
// The variables of a process's environment, as a function, so that tests can give their own.
#pragma once

#include <cstdlib>
#include <functional>
#include <optional>
#include <string>

namespace fl {

/// Returns a variable's value, or nothing when it is not set.
using Environment = std::function<std::optional<std::string>(const char* name)>;

[[nodiscard]] inline Environment system_environment() {
  return [](const char* name) {
    const char* const value = std::getenv(name);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

}  // namespace fl
