// SPDX-License-Identifier: Apache-2.0
// Reads a value of ours from a message of the site. Only files that say how nlohmann's library
// converts the type (NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE) include this header. Any thread.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/json.hpp"

#include <fmt/format.h>

namespace fl::site {

/// Errors: protocol, with the member that is wrong.
template <class Value>
[[nodiscard]] Result<Value> value_as(const nlohmann::json& message) {
  try {
    return message.get<Value>();
  } catch (const nlohmann::json::exception& error) {
    return Error(Errc::protocol, fmt::format("a message of the site: {}", error.what()));
  }
}

}  // namespace fl::site
