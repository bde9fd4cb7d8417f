// SPDX-License-Identifier: Apache-2.0
// One way to write a name. A letter with an accent is one character on most machines and two in the
// names of files that macOS makes; both look alike. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace fl {

/// The text in Unicode's normal form C, in which names are compared; as it is if it is not valid
/// UTF-8.
[[nodiscard]] std::string normal_form(std::string_view text);

}  // namespace fl
