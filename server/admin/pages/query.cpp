// SPDX-License-Identifier: Apache-2.0
#include "server/admin/pages/query.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/printable.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

namespace fl::server {

namespace {

/// "a%20b+c" as "a b c"; none if a '%' has no two hexadecimal digits behind it.
std::optional<std::string> decode(std::string_view text) {
  std::string decoded;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '%') {
      decoded += text[at] == '+' ? ' ' : text[at];
      continue;
    }
    if (at + 2 >= text.size()) return std::nullopt;
    unsigned byte = 0;
    const char* const digits = text.data() + at + 1;
    const auto [end, failed] = std::from_chars(digits, digits + 2, byte, 16);
    if (failed != std::errc() || end != digits + 2) return std::nullopt;
    decoded += static_cast<char>(byte);
    at += 2;
  }
  return decoded;
}

}  // namespace

Result<AddressQuery> AddressQuery::parse(std::string_view text,
                                         std::span<const std::string_view> names) {
  const auto wrong = [&] {
    return Error(
        Errc::invalid_input,
        fmt::format("after '?' there may be {}, each once, as NAME=VALUE joined by '&'",
                    names.empty() ? "nothing" : fmt::format("{}", fmt::join(names, ", "))));
  };
  AddressQuery query;
  if (text.size() > limits::admin_query_bytes_max) return wrong();
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find('&'));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    const auto equals = part.find('=');
    if (equals == part.npos) return wrong();
    const std::string_view name = part.substr(0, equals);
    auto value = decode(part.substr(equals + 1));
    if (!value || std::ranges::find(names, name) == names.end()) return wrong();
    if (!query.values_.emplace(name, std::move(*value)).second) return wrong();
  }
  return query;
}

Result<std::optional<std::int64_t>> AddressQuery::number(std::string_view name, std::int64_t least,
                                                         std::int64_t most) const {
  const std::string& value = text(name);
  if (value.empty() && !values_.contains(name)) return std::optional<std::int64_t>();
  std::int64_t number = 0;
  const char* const end = value.data() + value.size();
  const auto [at, failed] = std::from_chars(value.data(), end, number);
  if (failed != std::errc() || at != end || number < least || number > most) {
    return Error(Errc::invalid_input, fmt::format("{}={}: it must be a whole number from {} to {}",
                                                  name, printable(value, 40), least, most));
  }
  return std::optional(number);
}

const std::string& AddressQuery::text(std::string_view name) const {
  static const std::string none;
  const auto found = values_.find(name);
  return found != values_.end() ? found->second : none;
}

}  // namespace fl::server
