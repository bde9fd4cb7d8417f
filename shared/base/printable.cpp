// SPDX-License-Identifier: Apache-2.0
#include "shared/base/printable.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <span>

namespace fl {

namespace {

constexpr char32_t replacement = 0xfffd;

/// The character that a text begins with, and how many bytes it has. A byte that does not begin
/// valid UTF-8 (too long, a surrogate, beyond U+10FFFF, cut) is a character by itself.
struct Character {
  char32_t code = 0;
  std::size_t bytes = 1;
  bool is_valid = false;
};

Character first_of(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  if (lead < 0x80) return {lead, 1, true};
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {};
  char32_t code = lead & (0x7fU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xc0) != 0x80) return {};
    code = code << 6 | (next & 0x3fU);
  }
  constexpr std::array<char32_t, 5> least{0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
  if (code < least[bytes] || is_surrogate || code > 0x10ffff) return {};
  return {code, bytes, true};
}

/// Whether the character is not for people to read: it controls a terminal or the direction of
/// text, or breaks a line.
bool is_control(char32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) ||        // C0, DEL, C1.
         code == 0x61c || code == 0x200e || code == 0x200f ||   // Marks of direction.
         (code >= 0x2028 && code <= 0x202e) ||                  // Line ends; embeddings.
         (code >= 0x2066 && code <= 0x2069) || code == 0xfeff;  // Isolates; byte order mark.
}

/// Rewrites a text: `put(out, character, bytes)` appends each character.
template <class Put>
std::string rewritten(std::string_view text, Put put) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character character = first_of(text);
    put(out, character, text.substr(0, character.bytes));
    text.remove_prefix(character.bytes);
  }
  return out;
}

void put_escape(std::string& out, char32_t code) {
  fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<std::uint32_t>(code));
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const Character character = first_of(text);
    if (!character.is_valid) return false;
    text.remove_prefix(character.bytes);
  }
  return true;
}

std::string printable(std::string_view text) {
  return rewritten(text, [](std::string& out, const Character& character, std::string_view bytes) {
    if (character.is_valid && !is_control(character.code)) {
      out += bytes;
    } else {
      out += '?';
    }
  });
}

std::string printable(std::string_view text, std::size_t bytes_max) {
  if (text.size() <= bytes_max) return printable(text);
  std::size_t end = bytes_max;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return printable(text.substr(0, end)) + "...";
}

std::string first_names(const std::vector<std::string>& names, std::size_t most) {
  const std::size_t count = std::min(names.size(), most);
  std::string text = fmt::format("{}", fmt::join(std::span(names).first(count), ", "));
  if (count < names.size()) text += fmt::format(" and {} more", names.size() - count);
  return text;
}

std::string csv_field(std::string_view given) {
  const std::string text = printable(given);
  if (text.find_first_of(",\"") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string json_escaped(std::string_view text) {
  return rewritten(text, [](std::string& out, const Character& character, std::string_view bytes) {
    if (!character.is_valid) {
      put_escape(out, replacement);
    } else if (is_control(character.code)) {
      put_escape(out, character.code);
    } else {
      if (bytes == "\"" || bytes == "\\") out += '\\';
      out += bytes;
    }
  });
}

std::string printable_json(std::string_view json) {
  return rewritten(json, [](std::string& out, const Character& character, std::string_view bytes) {
    // JSON has line breaks between its values; all other control characters stand in strings.
    if (character.code >= 0x7f && is_control(character.code)) {
      put_escape(out, character.code);
    } else {
      out += bytes;
    }
  });
}

}  // namespace fl
