// SPDX-License-Identifier: Apache-2.0
// A check of an error's text.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <string_view>

namespace fl::testing {

/// Whether a text has these words; a failed check shows the text.
inline bool says(const std::string& text, std::string_view what) {
  INFO(text);
  return text.find(what) != std::string::npos;
}

}  // namespace fl::testing
