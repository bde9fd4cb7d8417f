// SPDX-License-Identifier: Apache-2.0
// Parses specs of the form NAME or NAME:KEY=VALUE,KEY=VALUE. Strategies, optimizers and schedules
// are named so ("fedadam:lr=0.1,beta1=0.9"). One thread at a time.
#pragma once

#include "shared/base/error.hpp"

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>

namespace fl {

/// The caller asks for each option that it knows, and then calls finish(). This reports the first
/// bad value, or an option that was given but never asked for.
class SpecOptions {
 public:
  /// Returns invalid_input if the spec is too long or has no name, or if an option has no key or no
  /// "=", or is given twice.
  static Result<SpecOptions> parse(std::string_view spec);

  [[nodiscard]] const std::string& name() const { return name_; }
  /// The option's value, from `least` to `most`. Returns `otherwise` if it is not given or is bad.
  double number(std::string_view key, double otherwise, double least, double most);
  /// Like number(), but the value must be below `most`.
  double number_below(std::string_view key, double otherwise, double least, double most);
  /// Like number(), for whole numbers from `least` to 2^32 - 1.
  std::uint32_t count(std::string_view key, std::uint32_t otherwise, std::uint32_t least);
  /// One of these words. Returns the first if the option is not given or is bad.
  std::string_view word(std::string_view key, std::initializer_list<std::string_view> words);
  /// The option's text, which must not be empty. Returns "" if it is not given.
  std::string text(std::string_view key);
  /// Returns invalid_input for the first thing that was wrong. Its message has the spec and what
  /// would be right.
  [[nodiscard]] Result<void> finish() const;

 private:
  [[nodiscard]] const std::string* take(std::string_view key);
  void complain(std::string what);

  std::string spec_;
  std::string name_;
  std::map<std::string, std::string, std::less<>>
      left_;  // Options that were given and not yet asked for.
  std::string taken_;
  std::string known_;
  std::string wrong_;
};

}  // namespace fl
