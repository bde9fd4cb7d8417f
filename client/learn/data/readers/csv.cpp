// SPDX-License-Identifier: Apache-2.0
// csv:FILE,target=COLUMN: a table whose first line names its columns. docs/guide/data.md has the
// options.
#include "client/learn/data/kept_bytes.hpp"
#include "client/learn/data/normal_form.hpp"
#include "client/learn/data/readers/csv_columns.hpp"
#include "client/learn/data/readers/csv_notation.hpp"
#include "client/learn/data/readers/csv_rows.hpp"
#include "client/learn/data/readers/csv_schema.hpp"
#include "client/learn/data/readers/group_names.hpp"
#include "client/learn/data/readers/reader_options.hpp"
#include "client/learn/data/shifted_values.hpp"
#include "client/learn/data/storage_writer.hpp"
#include "shared/base/log.hpp"
#include "shared/base/printable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

namespace fl {

namespace {

constexpr std::string_view csv_usage = "csv:FILE,target=COLUMN";
constexpr double missing = std::numeric_limits<double>::quiet_NaN();

class CsvTable {
 public:
  CsvTable(CsvRows rows, CsvPlan plan, CsvNotation notation, std::uint64_t memory_bytes)
      : rows_(std::move(rows)),
        plan_(std::move(plan)),
        notation_(std::move(notation)),
        writer_(memory_bytes),
        kept_(KeptBytes::beside(memory_bytes)) {}

  Result<DataSet> read() {
    FL_TRY(CsvColumns columns, read_csv_columns(rows_, plan_));
    columns_ = std::move(columns.all);
    prepare(columns.inputs, columns.classes);
    for (;;) {
      FL_TRY(const bool has_row, rows_.next());
      if (!has_row) break;
      FL_CHECK(read_row());
    }
    return finish();
  }

 private:
  void prepare(std::size_t inputs, std::uint32_t classes);
  Result<void> read_row();
  Result<void> check_fields();
  Result<void> take(const CsvColumn& column, std::string_view field);
  Result<double> number_of(const CsvColumn& column, std::string_view field) const;
  Result<std::uint32_t> word_of(const CsvColumn& column, std::string_view field) const;
  [[nodiscard]] std::string advice(const CsvColumn& column, std::string_view field) const;
  [[nodiscard]] Error missing_target(const CsvColumn& column) const;
  [[nodiscard]] Error wrong_field(const CsvColumn& column, std::string_view what) const;
  Result<void> finish_values();
  Result<DataSet> finish();

  CsvRows rows_;
  CsvPlan plan_;
  CsvNotation notation_;
  StorageWriter writer_;
  KeptBytes kept_;
  GroupNames groups_;
  DataSet set_;
  std::vector<CsvColumn> columns_;
  std::vector<double> inputs_;   // The inputs of the row being read.
  std::vector<double> targets_;  // Likewise its targets; empty if they are words.
  std::optional<ShiftedValues> input_values_;
  std::optional<ShiftedValues> target_values_;
  std::uint64_t examples_ = 0;
};

void CsvTable::prepare(std::size_t inputs, std::uint32_t classes) {
  inputs_.resize(inputs);
  set_.shape = {static_cast<std::int64_t>(inputs)};
  set_.classes = classes;
  if (plan_.schema) set_.class_names = plan_.schema->classes;
  if (plan_.reads_targets) set_.outputs = static_cast<std::uint32_t>(plan_.targets.size());
  if (classes == 0) targets_.resize(set_.outputs);
  set_.input_names.resize(inputs);
  for (const CsvColumn& column : columns_) {
    if (column.role == CsvColumn::Role::number) set_.input_names[column.at] = column.name;
    for (const auto& [word, number] : column.words) {
      if (column.role == CsvColumn::Role::words)
        set_.input_names[column.at + number] = fmt::format("{}={}", column.name, word);
    }
  }
  set_.target_names = plan_.targets;
  input_values_.emplace(inputs,
                        [this](std::span<const float> values) { return writer_.append(values); });
  target_values_.emplace(targets_.size(), [this](std::span<const float> values) {
    set_.targets.insert(set_.targets.end(), values.begin(), values.end());
    return success();
  });
}

/// The row must have a field for each column. R's write.table() names no column for the rows'
/// names, so the first row may have one field more, and that is its name.
Result<void> CsvTable::check_fields() {
  const auto& fields = rows_.fields();
  if (fields.size() == columns_.size()) return {};
  const bool is_one_more = fields.size() == columns_.size() + 1;
  if (examples_ == 0 && is_one_more && !fields.back().empty()) {
    columns_.insert(columns_.begin(), {.name = "", .role = role_of_nameless(plan_)});
    log_warn(
        "{}: rows have one field more than the first line has names, so the first field of "
        "each holds the name of the row and is no input",
        rows_.path());
    return {};
  }
  return rows_.wrong(fmt::format(
      "it has {} fields; the first line has {}{}", fields.size(), columns_.size(),
      is_one_more && fields.back().empty() ? "; remove the separator at the end of the line" : ""));
}

Result<void> CsvTable::read_row() {
  FL_CHECK(check_fields());
  if (++examples_ > examples_max)
    return rows_.wrong(fmt::format("there are more than {} examples", examples_max));
  // Counts the row's targets, as numbers and as a class, and its group.
  FL_CHECK(kept_.add((set_.outputs + 2) * sizeof(float)));
  std::ranges::fill(inputs_, 0.0);
  const auto& fields = rows_.fields();
  for (std::size_t i = 0; i < fields.size(); ++i) FL_CHECK(take(columns_[i], fields[i]));
  FL_CHECK(target_values_->append(targets_));
  return input_values_->append(inputs_);
}

Result<void> CsvTable::take(const CsvColumn& column, std::string_view field) {
  using Role = CsvColumn::Role;
  switch (column.role) {
    case Role::ignored: break;
    case Role::row_name:
      if (plan_.reads_targets) break;  // Only predictions show it.
      FL_CHECK(kept_.add(field.size() + sizeof(std::string)));
      set_.example_names.emplace_back(field);
      set_.example_heading = column.name.empty() ? "name" : column.name;
      break;
    case Role::empty:
      if (field.empty()) break;
      return rows_.wrong(fmt::format(
          "column {} has no name in the first line, and here it has {}; give it a name, or write "
          "no index (pandas: to_csv(index=False))",
          &column - columns_.data() + 1, csv_shown(field)));
    case Role::group: {
      if (field.empty()) return wrong_field(column, "it is empty, but by: needs it in each line");
      if (const auto added = groups_.add(normal_form(field)); !added)
        return wrong_field(column, added.error().message());
      break;
    }
    case Role::number: {
      if (notation_.is_missing(field)) {
        inputs_[column.at] = missing;
        break;
      }
      FL_TRY(inputs_[column.at], number_of(column, field));
      break;
    }
    case Role::words: {
      // A word that means "missing" elsewhere may be a word of the schema.
      if (!column.words.contains(field) && notation_.is_missing(field)) break;
      FL_TRY(const std::uint32_t word, word_of(column, field));
      inputs_[column.at + word] = 1;
      break;
    }
    case Role::target: {
      if (notation_.is_missing(field)) return missing_target(column);
      FL_TRY(targets_[column.at], number_of(column, field));
      break;
    }
    case Role::classes: {
      if (!column.words.contains(field) && notation_.is_missing(field))
        return missing_target(column);
      FL_TRY(const std::uint32_t word, word_of(column, field));
      set_.labels.push_back(word);
      break;
    }
  }
  return {};
}

Error CsvTable::wrong_field(const CsvColumn& column, std::string_view what) const {
  return rows_.wrong(fmt::format("column {}: {}", csv_shown(column.name), what));
}

Error CsvTable::missing_target(const CsvColumn& column) const {
  return wrong_field(column, "the target is missing; remove the line, or fill it in");
}

/// Says what to do about a field that is no number.
std::string CsvTable::advice(const CsvColumn& column, std::string_view field) const {
  if (std::string advice = notation_.advice(field); !advice.empty()) return advice;
  const std::string name = printable(column.name, csv_shown_bytes_max);
  if (column.role == CsvColumn::Role::target) {
    return fmt::format(
        "Classes that are words need a schema that all members share: schema=FILE "
        "with {{\"columns\": {{...}}, \"target\": [\"no\", \"yes\"]}}");
  }
  return fmt::format(
      "Name the words of this column in a schema that all members share: "
      "schema=FILE with {{\"columns\": {{\"{}\": [\"one\", \"another\"], ...}}}}; "
      "or leave the column out: ignore={}; or, if this word stands for a missing value: missing={}",
      name, name, printable(field, csv_shown_bytes_max));
}

Result<double> CsvTable::number_of(const CsvColumn& column, std::string_view field) const {
  const auto number = notation_.number_in(field);
  if (!number) {
    return wrong_field(
        column, fmt::format("{} is not a number. {}", csv_shown(field), advice(column, field)));
  }
  const bool is_word = field.find_first_of("0123456789") == std::string_view::npos;
  if (is_word && !std::isfinite(*number)) {
    return wrong_field(column, fmt::format("{} is no finite number; if it stands for a missing "
                                           "value, add missing={} to --data",
                                           csv_shown(field), printable(field)));
  }
  // Written so that infinity and NaN fail.
  if (!(std::abs(*number) <= std::numeric_limits<float>::max())) {
    return wrong_field(column, fmt::format("{} is too large: a value is at most 3.4e38; divide the "
                                           "column by a number that all members share",
                                           csv_shown(field)));
  }
  return *number;
}

Result<std::uint32_t> CsvTable::word_of(const CsvColumn& column, std::string_view field) const {
  const auto found = column.words.find(field);
  if (found != column.words.end()) return found->second;
  const auto normal = column.words.find(normal_form(field));
  if (normal != column.words.end()) return normal->second;
  return wrong_field(column, fmt::format("{} is not one of the {} words that the schema has for it",
                                         csv_shown(field), column.words.size()));
}

/// Takes in what is left of the values.
Result<void> CsvTable::finish_values() {
  FL_TRY(set_.input_offsets, input_values_->finish());
  FL_TRY(set_.target_offsets, target_values_->finish());
  FL_TRY(set_.inputs, writer_.finish());
  for (const bool is_input : {true, false}) {
    const auto lost = (is_input ? input_values_ : target_values_)->vanished();
    if (!lost) continue;
    const auto& names = is_input ? set_.input_names : set_.target_names;
    return Error(Errc::corrupt,
                 fmt::format("{}: column {}: its values are too small, such as {:.3g}; multiply "
                             "the column by a number that all members share",
                             rows_.path(), csv_shown(names[lost->column]), lost->value));
  }
  return {};
}

Result<DataSet> CsvTable::finish() {
  if (examples_ == 0) return rows_.wrong("there is no line behind the names of the columns");
  FL_CHECK(finish_values());
  groups_.finish(set_);
  if (!set_.labels.empty()) {
    set_.outputs = 0;
    return std::move(set_);
  }
  const bool are_classes =
      set_.outputs == 1 && set_.target_offsets.empty() &&
      std::ranges::all_of(set_.targets, [](float value) {
        return value >= 0 && value < static_cast<float>(classes_max) && value == std::floor(value);
      });
  if (are_classes) {
    for (const float value : set_.targets) set_.labels.push_back(static_cast<std::uint32_t>(value));
    set_.classes = std::ranges::max(set_.labels) + 1;
  }
  return std::move(set_);
}

Result<std::optional<char>> parse_separator(const DataRequest& request, const std::string& text) {
  if (text.empty()) return std::optional<char>();
  for (const auto& [mark, name] : csv_separators)
    if (text == name) return std::optional(mark);
  return wrong_data(request, fmt::format("sep={}: must be comma, semicolon or tab", text));
}

}  // namespace

Result<DataSet> read_csv(const DataRequest& request) {
  FL_TRY(ReaderOptions options, ReaderOptions::parse(request, csv_usage));
  CsvPlan plan{.targets = options.words("target"),
               .reads_targets = !request.to_predict,
               .ignored = options.words("ignore"),
               .row_name = normal_form(options.text("name")),
               .group = std::string(request.group),
               .schema = std::nullopt};
  const std::string schema = options.text("schema");
  FL_TRY(const auto separator, parse_separator(request, options.text("sep")));
  FL_TRY(CsvNotation notation, CsvNotation::parse(request, options));
  FL_CHECK(options.finish());
  for (auto* const names : {&plan.targets, &plan.ignored})
    for (std::string& name : *names) name = normal_form(name);
  plan.group = normal_form(plan.group);
  if (plan.targets.empty() && plan.reads_targets)
    return wrong_data(request, "say which column to predict: target=COLUMN");
  if (!schema.empty()) {
    FL_TRY(plan.schema, read_csv_schema(schema));
  }
  FL_TRY(CsvRows rows, CsvRows::open(options.path(), separator));
  return CsvTable(std::move(rows), std::move(plan), std::move(notation), request.memory_bytes)
      .read();
}

}  // namespace fl
