// SPDX-License-Identifier: Apache-2.0
#include "shared/base/spec/spec_options.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/spec/nearest_name.hpp"
#include "shared/base/spec/spec_text.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace fl {

namespace {

constexpr std::size_t shown_bytes_max = 512;  // As much of a spec stands in errors about it.

/// Returns NaN if the text is not a number.
double number_of(std::string_view text) {
  return number_in<double>(text).value_or(std::numeric_limits<double>::quiet_NaN());
}

}  // namespace

Result<SpecOptions> SpecOptions::parse(std::string_view spec) {
  const auto bad = [&](std::string_view why) {
    return Error(Errc::invalid_input,
                 fmt::format("'{}': {}", spec.substr(0, shown_bytes_max), why));
  };
  if (spec.size() > limits::spec_bytes_max)
    return bad(
        fmt::format("it has {} bytes; the limit is {}", spec.size(), limits::spec_bytes_max));
  SpecOptions options;
  options.spec_ = spec;
  const auto [name, settings] = cut(spec, ':');
  options.name_ = name;
  if (name.empty()) return bad("it has no name");
  if (!settings) return options;
  std::vector<SpecSetting> given;
  if (const auto fault = split_settings(*settings, given)) {
    return bad(fault->kind == SpecFault::Kind::given_twice
                   ? fmt::format("{} is given twice", fault->part)
                   : fmt::format("'{}' is not of the form KEY=VALUE", fault->part));
  }
  for (const auto& [key, value] : given) options.left_.emplace(key, value);
  return options;
}

void SpecOptions::complain(std::string what) {
  if (wrong_.empty()) wrong_ = std::move(what);
}

/// The option's text, valid until the next call, or nullptr if it was not given.
const std::string* SpecOptions::take(std::string_view key) {
  known_ += fmt::format("{}{}", known_.empty() ? "" : " ", key);
  const auto found = left_.find(key);
  if (found == left_.end()) return nullptr;
  taken_ = std::move(found->second);
  left_.erase(found);
  return &taken_;
}

double SpecOptions::number(std::string_view key, double otherwise, double least, double most) {
  const std::string* const text = take(key);
  if (text == nullptr) return otherwise;
  const double value = number_of(*text);
  if (value >= least && value <= most) return value;
  complain(fmt::format("{}={}: it must be from {} to {}", key, *text, least, most));
  return otherwise;
}

double SpecOptions::number_below(std::string_view key, double otherwise, double least,
                                 double most) {
  const std::string* const text = take(key);
  if (text == nullptr) return otherwise;
  const double value = number_of(*text);
  if (value >= least && value < most) return value;
  complain(fmt::format("{}={}: it must be at least {} and below {}", key, *text, least, most));
  return otherwise;
}

std::uint32_t SpecOptions::count(std::string_view key, std::uint32_t otherwise,
                                 std::uint32_t least) {
  const std::string* const text = take(key);
  if (text == nullptr) return otherwise;
  const double value = number_of(*text);
  constexpr double most = std::numeric_limits<std::uint32_t>::max();
  if (value >= least && value <= most && value == std::floor(value)) {
    return static_cast<std::uint32_t>(value);
  }
  complain(fmt::format("{}={}: it must be a whole number, {} or more", key, *text, least));
  return otherwise;
}

std::string_view SpecOptions::word(std::string_view key,
                                   std::initializer_list<std::string_view> words) {
  const std::string* const text = take(key);
  if (text == nullptr) return *words.begin();
  for (const std::string_view word : words) {
    if (*text == word) return word;
  }
  complain(fmt::format("{}={}: it must be one of: {}{}", key, *text, fmt::join(words, " "),
                       did_you_mean(*text, words)));
  return *words.begin();
}

std::string SpecOptions::text(std::string_view key) {
  const std::string* const text = take(key);
  if (text == nullptr) return {};
  if (text->empty()) complain(fmt::format("{}= needs a value after the =", key));
  return *text;
}

Result<void> SpecOptions::finish() const {
  std::string what = wrong_;
  if (what.empty() && !left_.empty()) {
    const std::string& unknown = left_.begin()->first;
    what = fmt::format("{} has no option '{}'; {}{}", name_, unknown,
                       known_.empty() ? "it has none" : "it has: " + known_,
                       did_you_mean(unknown, parts_of(known_, ' ')));
  }
  if (what.empty()) return {};
  return Error(Errc::invalid_input,
               fmt::format("'{}': {}", spec_.substr(0, shown_bytes_max), what));
}

}  // namespace fl
