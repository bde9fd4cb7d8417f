// SPDX-License-Identifier: Apache-2.0
// The flags that a program was given, and what it makes of others when it reads them again
// (SIGHUP). Not thread-safe.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace fl {

/// Each flag's name, with its dashes, and its values, joined by spaces: those of the command line
/// or, where that has none, of the file.
using GivenFlags = std::map<std::string, std::string>;

/// Returns the given flags of `app`, which has parsed.
[[nodiscard]] GivenFlags given_flags(const CLI::App& app);

/// The effect of reading the flags again while the program runs.
struct FlagReload {
  std::vector<std::string>
      changed;  // The flags that it follows from now on, with their values, in words.
  std::vector<std::string> need_restart;   // Flags with other values that only a start reads.
  [[nodiscard]] std::string text() const;  // One line for the log.
  /// Whether one of these is followed from now on.
  [[nodiscard]] bool has_changed(std::span<const std::string_view> flags) const;
};

/// Compares the flags that a program follows with those that it has read now. It follows --verbose
/// and the `live` ones from now on. The others stay as they are, and are reported again the next
/// time.
[[nodiscard]] FlagReload follow_flags(GivenFlags& followed, const GivenFlags& now,
                                      std::span<const std::string_view> live);

}  // namespace fl
