// SPDX-License-Identifier: Apache-2.0
// Environment variables that a test makes up.
#pragma once

#include "shared/base/environment.hpp"

#include <map>
#include <string>
#include <utility>

namespace fl::test {

using Variables = std::map<std::string, std::string>;

/// An environment that has these variables and no others.
inline Environment environment_of(Variables variables) {
  return [variables = std::move(variables)](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

}  // namespace fl::test
