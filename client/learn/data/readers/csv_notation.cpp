// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/readers/csv_notation.hpp"

#include "shared/base/spec/spec_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <locale>
#include <span>
#include <sstream>

namespace fl {

namespace {

constexpr std::string_view decimal_digits = "0123456789";
constexpr std::array<std::string_view, 2> decimals{"point", "comma"};

/// A value of thousands=, and the texts that it takes out between groups of three digits.
struct Marks {
  std::string_view name;
  std::vector<std::string_view> texts;
};
const std::array<Marks, 5>& mark_table() {
  static const std::array<Marks, 5> table{
      {{"none", {}},
       {"comma", {","}},
       {"dot", {"."}},
       // A space, and the no-break, narrow and thin spaces of Unicode.
       {"space", {" ", "\xc2\xa0", "\xe2\x80\xaf", "\xe2\x80\x89"}},
       {"apostrophe", {"'", "\xe2\x80\x99"}}}};
  return table;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& letter : out) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  return out;
}

void replace_all(std::string& text, std::string_view old, std::string_view by) {
  for (std::size_t at = text.find(old); at != std::string::npos;
       at = text.find(old, at + by.size()))
    text.replace(at, old.size(), by);
}

/// A number beyond the range of a double, rounded into it.
double rounded_into_range(std::string_view text) {
  std::istringstream in{std::string(text)};
  in.imbue(std::locale::classic());
  double number = 0;
  return in >> number ? number : std::numeric_limits<double>::infinity();
}

std::optional<double> plain_number(std::string_view text) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  double number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (end != text.data() + text.size()) return std::nullopt;
  if (failed == std::errc::result_out_of_range) return rounded_into_range(text);
  if (failed != std::errc{}) return std::nullopt;
  return number;
}

/// Takes the marks out of a whole part like "1,234,567"; false if they don't make groups of three.
bool remove_marks(std::string& text, std::span<const std::string_view> marks, char decimal) {
  constexpr char mark = '_';
  if (marks.empty()) return true;
  if (text.find(mark) != std::string::npos) return false;
  for (const std::string_view one : marks) replace_all(text, one, "_");
  if (text.find(mark) == std::string::npos) return true;
  std::string_view whole = text;
  whole = whole.substr(0, whole.find_first_of(std::string("eE") + decimal));
  if (text.find(mark, whole.size()) != std::string::npos) return false;
  whole.remove_prefix(std::min(whole.find_first_not_of("+-"), whole.size()));
  bool is_first = true;
  for (std::optional<std::string_view> rest = whole; rest; is_first = false) {
    const auto [group, next] = cut(*rest, mark);
    rest = next;
    const bool has_size = group.size() == 3 || (is_first && !group.empty() && group.size() < 3);
    if (!has_size || group.find_first_not_of(decimal_digits) != std::string_view::npos)
      return false;
  }
  std::erase(text, mark);
  return true;
}

std::optional<double> number_written(std::string_view field, std::string_view decimal,
                                     std::string_view thousands) {
  if (decimal == "point" && thousands == "none") return plain_number(field);
  const auto marks = std::ranges::find(mark_table(), thousands, &Marks::name);
  const bool has_comma = decimal == "comma";
  std::string text(field);
  if (!remove_marks(text, marks->texts, has_comma ? ',' : '.')) return std::nullopt;
  if (has_comma) {
    if (text.find('.') != std::string::npos) return std::nullopt;
    replace_all(text, ",", ".");
  }
  return plain_number(text);
}

bool are_compatible(std::string_view decimal, std::string_view thousands) {
  return decimal == "comma" ? thousands != "comma" : thousands != "dot";
}

/// "decimal=comma,thousands=dot", without what is the default.
std::string settings_text(std::string_view decimal, std::string_view thousands) {
  std::string text;
  if (decimal != "point") text = fmt::format("decimal={}", decimal);
  if (thousands != "none")
    text += fmt::format("{}thousands={}", text.empty() ? "" : ",", thousands);
  return text;
}

/// The settings that would read the field as a number, the simplest ones first: "decimal=comma or
/// thousands=comma". "" if there are none.
std::string settings_for(std::string_view field) {
  std::vector<std::string> found;
  for (const std::string_view decimal : decimals) {
    for (const Marks& marks : mark_table()) {
      if (!are_compatible(decimal, marks.name) || !number_written(field, decimal, marks.name))
        continue;
      std::string text = settings_text(decimal, marks.name);
      if (text.empty()) return "no decimal= and no thousands=";
      found.push_back(std::move(text));
    }
  }
  std::ranges::stable_sort(found, {}, &std::string::size);
  std::vector<std::string_view> simple;
  for (const std::string& text : found) {
    const bool has_more = std::ranges::any_of(
        simple, [&](std::string_view one) { return text.find(one) != std::string::npos; });
    if (!has_more) simple.push_back(text);
  }
  return alternatives(simple);
}

/// Whether the text is a number in any notation.
bool reads_as_number(std::string_view text) { return !settings_for(trimmed(text)).empty(); }

bool has_sign(std::string_view field) {
  for (const std::string_view sign :
       {"%", "$", "\xe2\x82\xac", "\xc2\xa3", "\xc2\xa5"}) {  // The last are euro, pound and yen.
    std::string text(field);
    replace_all(text, sign, "");
    if (text.size() < field.size() && reads_as_number(text)) return true;
  }
  return false;
}

bool is_date(std::string_view field) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (field.empty() || !is_digit(field.front())) return false;
  const bool has_mark = field.find_first_of("-/:.", 1) != std::string_view::npos;
  return has_mark && std::ranges::count_if(field, is_digit) >= 3 &&
         field.find_first_not_of("0123456789-/:.TZ+ ") == std::string_view::npos;
}

}  // namespace

Result<CsvNotation> CsvNotation::parse(const DataRequest& request, ReaderOptions& options) {
  CsvNotation notation;
  if (std::string text = options.text("decimal"); !text.empty()) notation.decimal_ = text;
  if (std::string text = options.text("thousands"); !text.empty()) notation.thousands_ = text;
  notation.missing_ = options.words("missing");
  if (std::ranges::find(decimals, notation.decimal_) == decimals.end())
    return wrong_data(request,
                      fmt::format("decimal={}: must be point or comma", notation.decimal_));
  if (std::ranges::find(mark_table(), notation.thousands_, &Marks::name) == mark_table().end()) {
    return wrong_data(request, fmt::format("thousands={}: must be {}", notation.thousands_,
                                           alternatives(mark_table(), &Marks::name)));
  }
  if (!are_compatible(notation.decimal_, notation.thousands_)) {
    return wrong_data(request, fmt::format("decimal={} and thousands={} are the same character",
                                           notation.decimal_, notation.thousands_));
  }
  return notation;
}

bool CsvNotation::is_missing(std::string_view field) const {
  constexpr std::array<std::string_view, 15> words = {
      "",     "?",   "na",   "nan",      "-nan",   "null",    "none",   "n/a",
      "#n/a", "#na", "<na>", "#n/a n/a", "1.#ind", "1.#qnan", "-1.#ind"};
  constexpr std::string_view longest = "-1.#qnan";
  field = trimmed(field);
  if (std::ranges::find(missing_, field) != missing_.end()) return true;
  if (field.size() > longest.size()) return false;
  if (!field.empty() && decimal_digits.find(field.back()) != std::string_view::npos) return false;
  const std::string word = lower(field);
  return word == longest || std::ranges::find(words, word) != words.end();
}

std::optional<double> CsvNotation::number_in(std::string_view field) const {
  field = trimmed(field);
  if (const auto number = number_written(field, decimal_, thousands_)) return number;
  constexpr std::string_view longest = "false";
  if (field.size() > longest.size()) return std::nullopt;
  const std::string word = lower(field);
  if (word == "true") return 1;
  if (word == longest) return 0;
  return std::nullopt;
}

std::string CsvNotation::advice(std::string_view field) const {
  constexpr std::array<std::string_view, 15> usual = {
      ".",       "-",       "--",      "*",     "\\n",    "nat",   "n.a.",  "missing",
      "unknown", "#div/0!", "#value!", "#ref!", "#name?", "#num!", "#null!"};
  field = trimmed(field);
  constexpr std::size_t bytes_max = 64;
  if (field.size() > bytes_max) return "";
  if (const std::string settings = settings_for(field); !settings.empty())
    return fmt::format("It looks like a number in another notation, which needs {} in --data.",
                       settings);
  if (std::ranges::find(usual, lower(field)) != usual.end())
    return fmt::format("If it stands for a missing value, add missing={} to --data.", field);
  if (has_sign(field))
    return "It looks like a number with a percent or currency sign; write it without.";
  std::string text(field);
  replace_all(text, "\xe2\x88\x92", "-");
  std::ranges::replace(text, 'D', 'E');
  std::ranges::replace(text, 'd', 'e');
  if (reads_as_number(text))
    return "It looks like a number with another sign for minus or for the exponent; use - and E.";
  if (is_date(field)) {
    return "It looks like a date or a time; write it as a number, such as the days since a day "
           "that "
           "all members share.";
  }
  return "";
}

}  // namespace fl
