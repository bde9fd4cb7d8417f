// SPDX-License-Identifier: Apache-2.0
// The flags that a program was given, to compare them with those of another time.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace fl {

/// Each flag's name, with its dashes, and its values, joined by spaces: those of the command line
/// or, where that has none, of the file.
using GivenFlags = std::map<std::string, std::string>;

/// `app` has parsed.
[[nodiscard]] GivenFlags given_flags(const CLI::App& app);

/// The names of the flags that only one of both has, or with another value.
[[nodiscard]] std::vector<std::string> changed_flags(const GivenFlags& before,
                                                     const GivenFlags& now);

}  // namespace fl
