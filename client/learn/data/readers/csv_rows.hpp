// SPDX-License-Identifier: Apache-2.0
// CsvRows: the rows of a CSV file one after another, parsed by libcsv (RFC 4180: quoted fields may
// have separators, line ends and doubled quotes), plain or gzipped. Takes UTF-8 with or without a
// byte order mark, any line end, and a last line without one. Blank lines are skipped, and so is a
// first line "sep=;", with which Excel names the separator. One thread at a time.
#pragma once

#include "client/learn/data/gzip_reader.hpp"
#include "shared/base/error.hpp"

#include <csv.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fl {

inline constexpr std::size_t csv_row_bytes_max = 16 << 20;

/// The separators that --data can name, by the names that it has for them.
inline constexpr std::pair<char, std::string_view> csv_separators[] = {
    {';', "semicolon"}, {'\t', "tab"}, {',', "comma"}};
/// The end of an error that may come from another separator, with its name.
[[nodiscard]] std::string separator_advice(std::string_view name);

class CsvRows {
 public:
  /// Without `separator` it is the one that the first line names, or a comma.
  static Result<CsvRows> open(const std::filesystem::path& path, std::optional<char> separator);

  /// Reads the next row; false at the end of the file. Errors: corrupt, which names the file and
  /// the line, too_large for a row beyond the limit, and io.
  [[nodiscard]] Result<bool> next();
  /// The fields of the row, without quotes and without spaces around them. Valid until next().
  [[nodiscard]] const std::vector<std::string_view>& fields() const { return fields_; }
  /// The line where the row begins, from 1.
  [[nodiscard]] std::uint64_t line() const { return row_line_; }
  [[nodiscard]] const std::string& path() const { return file_.path(); }
  /// An error of code corrupt: `FILE, line LINE: WHAT`.
  [[nodiscard]] Error wrong(std::string_view what) const;

 private:
  /// The object that libcsv calls back with. It stays where it is when the object moves.
  struct Parser {
    Parser();
    ~Parser();
    Parser(const Parser&) = delete;
    Parser& operator=(const Parser&) = delete;

    csv_parser csv;
    std::string text;               // The fields of the row one after another.
    std::vector<std::size_t> ends;  // The end of each in `text`.
    bool is_complete = false;       // The row has ended.
  };

  explicit CsvRows(GzipReader file);
  Result<bool> fill();
  void take_separator_line();
  Result<void> feed(std::string_view piece);
  [[nodiscard]] std::string_view next_piece();
  void take_row();

  GzipReader file_;
  bool may_choose_ = false;  // The file may name the separator.
  std::unique_ptr<Parser> parser_;
  std::vector<std::uint8_t> buffer_;
  std::size_t begin_ = 0;  // The first byte in buffer_ that was not parsed yet.
  std::size_t end_ = 0;
  bool is_at_start_ = true;
  bool is_at_end_ = false;
  bool is_in_row_ = false;     // A row has begun and not ended.
  bool after_return_ = false;  // The last byte that was parsed is a carriage return.
  std::uint64_t line_ = 1;     // The line of the next byte to parse.
  std::uint64_t row_line_ = 1;
  std::vector<std::string_view> fields_;
};

}  // namespace fl
