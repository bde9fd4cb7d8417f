// SPDX-License-Identifier: Apache-2.0
// CsvNotation: how a table writes numbers and missing values. It reads what pandas reads without
// options, and what the options decimal=, thousands= and missing= of --data add. Any thread.
#pragma once

#include "client/learn/data/readers/reader_options.hpp"
#include "shared/base/error.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fl {

class CsvNotation {
 public:
  /// Takes its options. Errors: invalid_input, which lists the words that an option may have.
  static Result<CsvNotation> parse(const DataRequest& request, ReaderOptions& options);

  /// Whether the field stands for a value that is not known: it is empty, a word of missing=, or
  /// one of pandas' words (NA, None, #N/A, ...), in letters of any case.
  [[nodiscard]] bool is_missing(std::string_view field) const;
  /// The field as a number; True is 1 and False is 0, in letters of any case. A number too small
  /// for a double is 0, and one too large is infinite. None if the field is no number.
  [[nodiscard]] std::optional<double> number_in(std::string_view field) const;
  /// Says in a sentence what a field that is no number looks like, and how to read it; "" if it
  /// looks like a word.
  [[nodiscard]] std::string advice(std::string_view field) const;

 private:
  std::string decimal_ = "point";
  std::string thousands_ = "none";
  std::vector<std::string> missing_ = {};
};

}  // namespace fl
