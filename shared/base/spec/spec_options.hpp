// Specs of the form NAME or NAME:KEY=VALUE,KEY=VALUE, as strategies, optimizers and schedules have
// them ("fedadam:lr=0.1,beta1=0.9").
#pragma once

#include "shared/base/error.hpp"

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>

namespace fl {

/// Asked for its options one by one, then finish() says what was wrong with the first bad one, or
/// that one was given which nobody asked for.
class SpecOptions {
 public:
  /// invalid_input: no name, an option without "=", or one that is given twice.
  static Result<SpecOptions> parse(std::string_view spec);

  [[nodiscard]] const std::string& name() const { return name_; }
  /// The option's value, from `least` to `most`; `otherwise` when it is not given or not right.
  double number(std::string_view key, double otherwise, double least, double most);
  /// As number(), at least `least` and below `most`.
  double number_below(std::string_view key, double otherwise, double least, double most);
  /// As number(), for whole numbers.
  std::uint32_t count(std::string_view key, std::uint32_t otherwise, std::uint32_t least);
  /// One of these words; the first when it is not given or not right.
  std::string_view word(std::string_view key, std::initializer_list<std::string_view> words);
  /// What stands there, which must not be empty; "" when it is not given.
  std::string text(std::string_view key);
  /// The first thing that was wrong (invalid_input, with the spec and what would fit).
  [[nodiscard]] Result<void> finish() const;

 private:
  [[nodiscard]] const std::string* take(std::string_view key);
  void complain(std::string what);

  std::string spec_;
  std::string name_;
  std::map<std::string, std::string, std::less<>> left_;  // Given, and not yet asked for.
  std::string taken_;
  std::string known_;
  std::string wrong_;
};

}  // namespace fl
