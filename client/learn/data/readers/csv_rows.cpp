// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/readers/csv_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fl {

namespace {

constexpr std::size_t csv_buffer_bytes = 64 << 10;
constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";

/// Advises another separator if a quoted field of the line ends before one; "" otherwise.
std::string other_separator(std::string_view line, char separator) {
  for (const auto& [mark, name] : csv_separators) {
    const char end[] = {'"', mark};
    if (mark != separator && line.find(std::string_view(end, 2)) != line.npos)
      return separator_advice(name);
  }
  return "";
}

}  // namespace

std::string separator_advice(std::string_view name) {
  return fmt::format(". If the {0}s separate columns, add sep={0} to --data", name);
}

CsvRows::Parser::Parser() : csv() {
  csv_init(&csv, CSV_STRICT | CSV_STRICT_FINI);
  // A long field grows by so much; by the 128 bytes of libcsv it would be copied too often.
  csv_set_blk_size(&csv, csv_buffer_bytes);
}
CsvRows::Parser::~Parser() { csv_free(&csv); }

CsvRows::CsvRows(GzipReader file)
    : file_(std::move(file)), parser_(std::make_unique<Parser>()), buffer_(csv_buffer_bytes) {}

Result<CsvRows> CsvRows::open(const std::filesystem::path& path, std::optional<char> separator) {
  FL_TRY(GzipReader file, GzipReader::open(path));
  CsvRows rows(std::move(file));
  rows.may_choose_ = !separator;
  csv_set_delim(&rows.parser_->csv, static_cast<unsigned char>(separator.value_or(CSV_COMMA)));
  return rows;
}

Error CsvRows::wrong(std::string_view what) const {
  return {Errc::corrupt, fmt::format("{}, line {}: {}", path(), row_line_, what)};
}

/// Reads on when everything was parsed; false at the end of the file.
Result<bool> CsvRows::fill() {
  if (begin_ < end_) return true;
  FL_TRY(end_, file_.read_some(buffer_));
  begin_ = 0;
  if (std::exchange(is_at_start_, false)) {
    const std::string_view start(reinterpret_cast<const char*>(buffer_.data()), end_);
    if (start.starts_with(byte_order_mark)) begin_ = byte_order_mark.size();
    if (start.starts_with("\xff\xfe") || start.starts_with("\xfe\xff"))
      return wrong("the file is UTF-16; save it as UTF-8");
    take_separator_line();
  }
  return begin_ < end_;
}

void CsvRows::take_separator_line() {
  const std::string_view text(reinterpret_cast<const char*>(buffer_.data()) + begin_,
                              end_ - begin_);
  const std::size_t end = text.find_first_of("\r\n");
  if (end == std::string_view::npos) return;
  std::string_view line = text.substr(0, end);
  if (line.size() > 1 && line.front() == '"' && line.back() == '"')
    line = line.substr(1, line.size() - 2);
  constexpr std::string_view setting = "sep=";
  constexpr std::string_view separators = ",;\t|";
  if (!line.starts_with(setting) || line.size() != setting.size() + 1 ||
      separators.find(line.back()) == std::string_view::npos)
    return;
  if (may_choose_) csv_set_delim(&parser_->csv, static_cast<unsigned char>(line.back()));
  begin_ += end + (text.substr(end).starts_with("\r\n") ? 2 : 1);
  ++line_;
}

// Up to the next line end, so that a piece ends at most one row and lies in one line.
std::string_view CsvRows::next_piece() {
  const std::uint8_t* const from = buffer_.data() + begin_;
  const std::uint8_t* const until = buffer_.data() + end_;
  const std::uint8_t* at =
      std::find_if(from, until, [](std::uint8_t byte) { return byte == CSV_LF || byte == CSV_CR; });
  if (at != until) ++at;
  begin_ += static_cast<std::size_t>(at - from);
  return {reinterpret_cast<const char*>(from), static_cast<std::size_t>(at - from)};
}

Result<void> CsvRows::feed(std::string_view piece) {
  // libcsv is C: nothing may be thrown through it.
  const auto on_field = [](void* field, std::size_t bytes, void* user) noexcept {
    auto& parser = *static_cast<Parser*>(user);
    if (bytes > 0) parser.text.append(static_cast<const char*>(field), bytes);
    parser.ends.push_back(parser.text.size());
  };
  const auto on_row = [](int, void* user) noexcept {
    static_cast<Parser*>(user)->is_complete = true;
  };
  csv_parser& csv = parser_->csv;
  if (piece.empty()) {
    if (csv_fini(&csv, on_field, on_row, parser_.get()) != 0)
      return wrong("a quoted field does not end");
  } else if (csv_parse(&csv, piece.data(), piece.size(), on_field, on_row, parser_.get()) !=
             piece.size()) {
    if (csv_error(&csv) != CSV_EPARSE) return wrong(csv_strerror(csv_error(&csv)));
    return wrong(
        "a quote stands where none may: a field with quotes must be quoted as a whole, and quotes "
        "in it doubled" +
        other_separator(piece, static_cast<char>(csv_get_delim(&csv))));
  }
  if (parser_->text.size() + csv_get_buffer_size(&csv) <= csv_row_bytes_max &&
      parser_->ends.size() <= csv_row_bytes_max / sizeof(float)) {
    return {};
  }
  return Error(Errc::too_large,
               fmt::format("{}, line {}: the row has more than {} bytes; is a quote missing?",
                           path(), row_line_, csv_row_bytes_max));
}

void CsvRows::take_row() {
  fields_.clear();
  std::size_t from = 0;
  for (const std::size_t end : parser_->ends) {
    fields_.emplace_back(parser_->text.data() + from, end - from);
    from = end;
  }
}

Result<bool> CsvRows::next() {
  parser_->text.clear();
  parser_->ends.clear();
  parser_->is_complete = false;
  while (!is_at_end_) {
    FL_TRY(const bool has_more, fill());
    if (!is_in_row_) row_line_ = line_;
    if (!has_more) {
      is_at_end_ = true;
      FL_CHECK(feed({}));
      break;
    }
    const std::string_view piece = next_piece();
    // The line end "\r\n" is two pieces and one line.
    if (after_return_ && piece.front() == CSV_LF) --line_;
    if (!is_in_row_) row_line_ = line_;
    FL_CHECK(feed(piece));
    after_return_ = piece.back() == CSV_CR;
    if (after_return_ || piece.back() == CSV_LF) ++line_;
    if (parser_->is_complete) {
      is_in_row_ = false;
      break;
    }
    if (piece.find_first_not_of(" \t\r\n") != std::string_view::npos) is_in_row_ = true;
  }
  if (!parser_->is_complete) return false;
  take_row();
  return true;
}

}  // namespace fl
