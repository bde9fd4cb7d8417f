// SPDX-License-Identifier: Apache-2.0
// Converts JSON to and from text. Only json.cpp instantiates nlohmann's parser and writer, because
// each of them adds two seconds to the compile time of a file. Any thread.
//
// And numbers: wherever this header is included, nlohmann's get(), get_to() and value() read them
// by number_in(). The library's own reading is a cast, which makes 4294967295 of -1 and 1 of 1.5.
// Include no other header of nlohmann's that converts.
#pragma once

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace fl {

template <class T>
inline constexpr bool is_number = std::is_arithmetic_v<T> && !std::is_same_v<T, bool>;

/// The value as a number; none if it is no number, or T has no such number. JSON has one kind of
/// number, so 20.0 is the whole number 20. A real number is rounded to T.
template <class T, class Json>
requires nlohmann::detail::is_basic_json<Json>::value [[nodiscard]] std::optional<T> number_in(
    const Json& value) {
  static_assert(is_number<T>);
  if constexpr (std::is_floating_point_v<T>) {
    if (!value.is_number()) return std::nullopt;
    const auto* const whole = value.template get_ptr<const std::int64_t*>();
    const auto* const large = value.template get_ptr<const std::uint64_t*>();
    const auto* const real = value.template get_ptr<const double*>();
    const T number = static_cast<T>(real != nullptr    ? *real
                                    : large != nullptr ? static_cast<double>(*large)
                                                       : static_cast<double>(*whole));
    return std::isfinite(number) ? std::optional(number) : std::nullopt;
  } else {
    const auto held = [](auto number) {
      return std::in_range<T>(number) ? std::optional(static_cast<T>(number)) : std::nullopt;
    };
    if (const auto* large = value.template get_ptr<const std::uint64_t*>()) return held(*large);
    if (const auto* whole = value.template get_ptr<const std::int64_t*>()) return held(*whole);
    const auto* const real = value.template get_ptr<const double*>();
    const bool is_whole = real != nullptr && std::abs(*real) < 0x1p53 && std::trunc(*real) == *real;
    return is_whole ? held(static_cast<std::int64_t>(*real)) : std::nullopt;
  }
}

/// Names the numbers that number_in() takes: "a whole number from 0 to 4294967295", "a number".
template <class T>
[[nodiscard]] std::string numbers_of() {
  if constexpr (std::is_floating_point_v<T>) return "a number";
  return fmt::format("a whole number from {} to {}", std::numeric_limits<T>::min(),
                     std::numeric_limits<T>::max());
}

/// The beginning of a value's text, for an error.
[[nodiscard]] std::string short_json(const nlohmann::json& value);

/// Throws what nlohmann's functions throw, nlohmann::json::exception.
[[noreturn]] void throw_wrong_json(const std::string& what);

/// Parses `text`. If it is not valid JSON, nested deeper than limits::json_depth_max, or has more
/// than limits::json_values_max values, the value returned is_discarded(): it is neither an object
/// nor an array nor a string. Both limits hold before memory is taken for a value.
[[nodiscard]] nlohmann::json parse_json(std::string_view text);

/// Like parse_json(), with another limit of values.
[[nodiscard]] nlohmann::json parse_json(std::string_view text, std::size_t values_max);

/// Like parse_json(), with the members of objects in the order of the text.
[[nodiscard]] nlohmann::ordered_json parse_ordered_json(std::string_view text);

/// Gets the parts of a text one after another. Each function returns whether to go on. Not a
/// callback of the parser: with one, nlohmann needs time quadratic in an object's members.
using JsonScanner = nlohmann::json::json_sax_t;
/// Uses no stack for depth. Returns false if the text is not valid JSON, or the scanner did not go
/// on.
[[nodiscard]] bool scan_json(std::string_view text, JsonScanner& scanner);

/// Writes the value on one line or, if `indent` is not negative, on several lines indented by that
/// many spaces. Bytes that are not UTF-8 (a file name or a peer's text may have some) become
/// U+FFFD; control characters become escapes, so that the text is safe to show (printable_json()).
[[nodiscard]] std::string json_text(const nlohmann::json& value, int indent = -1);
[[nodiscard]] std::string json_text(const nlohmann::ordered_json& value, int indent = -1);

}  // namespace fl

template <class T>
struct nlohmann::adl_serializer<T, std::enable_if_t<fl::is_number<T>>> {
  template <class Json>
  static void from_json(const Json& json, T& value) {
    const auto number = fl::number_in<T>(json);
    if (!number)
      fl::throw_wrong_json(fmt::format("it must be {}, not {}", fl::numbers_of<T>(),
                                       fl::short_json(nlohmann::json(json))));
    value = *number;
  }
  template <class Json>
  static void to_json(Json& json, T value) {
    ::nlohmann::to_json(json, value);
  }
};
