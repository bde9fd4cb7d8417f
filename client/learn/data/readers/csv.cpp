// SPDX-License-Identifier: Apache-2.0
// csv:FILE,target=COLUMN: a table whose first line names its columns. docs/guide/data.md has the
// options.
#include "client/learn/data/kept_bytes.hpp"
#include "client/learn/data/readers/csv_rows.hpp"
#include "client/learn/data/readers/csv_schema.hpp"
#include "client/learn/data/readers/group_names.hpp"
#include "client/learn/data/readers/reader_options.hpp"
#include "client/learn/data/storage_writer.hpp"
#include "shared/base/printable.hpp"
#include "shared/base/spec/spec_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace fl {

namespace {

constexpr std::string_view csv_usage = "csv:FILE,target=COLUMN";
constexpr std::size_t shown_bytes_max = 64;  // Bytes of a field that an error shows.
constexpr float missing = std::numeric_limits<float>::quiet_NaN();

/// The options of --data and --partition.
struct Plan {
  std::vector<std::string> targets;
  std::vector<std::string> ignored;
  std::string group;
  std::optional<CsvSchema> schema;
};

/// How a column of the file is used.
struct Column {
  enum class Role { ignored, number, words, target, classes, group };
  std::string name;
  Role role = Role::number;
  std::size_t at = 0;  // The index of its first input, or of its target.
  std::map<std::string, std::uint32_t, std::less<>> words = {};
};

bool is_missing(std::string_view field) {
  constexpr std::array<std::string_view, 5> words = {"", "?", "na", "nan", "null"};
  std::string lower(field.substr(0, 5));
  for (char& letter : lower) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  return std::ranges::find(words, lower) != words.end();
}

std::map<std::string, std::uint32_t, std::less<>> numbered(const std::vector<std::string>& words) {
  std::map<std::string, std::uint32_t, std::less<>> numbers;
  for (const std::string& word : words)
    numbers.emplace(word, static_cast<std::uint32_t>(numbers.size()));
  return numbers;
}

/// A word that a column may not have; long ones are cut.
std::string shown(std::string_view field) {
  return fmt::format("\"{}\"", printable(field, shown_bytes_max));
}

class CsvTable {
 public:
  CsvTable(CsvRows rows, Plan plan, std::uint64_t memory_bytes)
      : rows_(std::move(rows)),
        plan_(std::move(plan)),
        writer_(memory_bytes),
        kept_(KeptBytes::beside(memory_bytes)) {}

  Result<DataSet> read() {
    FL_CHECK(read_names());
    set_.outputs = static_cast<std::uint32_t>(plan_.targets.size());
    for (;;) {
      FL_TRY(const bool has_row, rows_.next());
      if (!has_row) break;
      FL_CHECK(read_row());
    }
    return finish();
  }

 private:
  Result<void> read_names();
  Result<void> assign_roles();
  Result<void> assign_inputs();
  Result<void> expect_names() const;
  [[nodiscard]] Column* find(std::string_view name);
  Result<void> read_row();
  Result<void> take(const Column& column, std::string_view field);
  Result<float> number_of(const Column& column, std::string_view field) const;
  Result<std::uint32_t> word_of(const Column& column, std::string_view field) const;
  [[nodiscard]] std::string advice(const Column& column) const;
  [[nodiscard]] Error missing_target(const Column& column) const;
  [[nodiscard]] Error wrong_field(const Column& column, std::string_view what) const;
  Result<DataSet> finish();

  CsvRows rows_;
  Plan plan_;
  StorageWriter writer_;
  KeptBytes kept_;
  GroupNames groups_;
  DataSet set_;
  std::vector<Column> columns_;
  std::map<std::string, std::size_t, std::less<>> places_;  // Where in columns_, by name.
  std::vector<float> inputs_;                               // The inputs of the row being read.
  std::uint64_t examples_ = 0;
};

Column* CsvTable::find(std::string_view name) {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : &columns_[found->second];
}

Result<void> CsvTable::read_names() {
  FL_TRY(const bool has_names, rows_.next());
  if (!has_names) return rows_.wrong("the file is empty; its first line must name the columns");
  for (const std::string_view name : rows_.fields()) {
    if (name.empty()) {
      return rows_.wrong(
          fmt::format("column {} has no name (pandas writes no index with "
                      "to_csv(index=False))",
                      columns_.size() + 1));
    }
    const auto [place, is_new] = places_.emplace(name, columns_.size());
    if (!is_new) {
      return rows_.wrong(fmt::format("columns {} and {} are both called {}", place->second + 1,
                                     columns_.size() + 1, shown(name)));
    }
    columns_.push_back({.name = std::string(name)});
  }
  FL_CHECK(expect_names());
  FL_CHECK(assign_roles());
  FL_CHECK(assign_inputs());
  if (inputs_.empty()) return rows_.wrong("no column is left to predict from");
  if (inputs_.size() > row_elements_max)
    return rows_.wrong(fmt::format("the columns make {} inputs; the limit is {}", inputs_.size(),
                                   row_elements_max));
  set_.shape = {static_cast<std::int64_t>(inputs_.size())};
  return {};
}

/// All columns that the command line and the schema name must be there.
Result<void> CsvTable::expect_names() const {
  std::vector<std::string> wanted = plan_.targets;
  wanted.insert(wanted.end(), plan_.ignored.begin(), plan_.ignored.end());
  if (!plan_.group.empty()) wanted.push_back(plan_.group);
  if (plan_.schema) {
    for (const auto& column : plan_.schema->columns) wanted.push_back(column.name);
  }
  for (const std::string& name : wanted) {
    if (places_.contains(name)) continue;
    std::string all;
    for (const Column& column : columns_) all += (all.empty() ? "" : ", ") + column.name;
    return rows_.wrong(fmt::format("there is no column {}; the columns are: {}", shown(name),
                                   printable(all, 1000)));
  }
  return {};
}

Result<void> CsvTable::assign_roles() {
  using Role = Column::Role;
  const auto assign = [this](const std::string& name, Role role) -> Result<Column*> {
    Column* const column = find(name);
    if (column->role != Role::number) {
      return rows_.wrong(
          fmt::format("column {} has two uses: a column is a target, ignored, the "
                      "column of by:, or an input",
                      shown(name)));
    }
    column->role = role;
    return column;
  };
  for (const std::string& name : plan_.ignored) FL_CHECK(assign(name, Role::ignored));
  if (!plan_.group.empty()) FL_CHECK(assign(plan_.group, Role::group));
  const bool has_classes = plan_.schema && !plan_.schema->classes.empty();
  if (has_classes && plan_.targets.size() > 1)
    return rows_.wrong("several targets must be numbers, but the schema has words for the target");
  for (std::size_t i = 0; i < plan_.targets.size(); ++i) {
    FL_TRY(Column* const column,
           assign(plan_.targets[i], has_classes ? Role::classes : Role::target));
    column->at = i;
    if (!has_classes) continue;
    column->words = numbered(plan_.schema->classes);
    set_.classes = static_cast<std::uint32_t>(column->words.size());
  }
  return {};
}

Result<void> CsvTable::assign_inputs() {
  using Role = Column::Role;
  std::size_t inputs = 0;
  if (!plan_.schema) {
    for (Column& column : columns_) {
      if (column.role == Role::number) column.at = inputs++;
    }
    inputs_.resize(inputs);
    return {};
  }
  std::set<std::string_view> known;
  for (const auto& wanted : plan_.schema->columns) {
    known.insert(wanted.name);
    Column& column = *find(wanted.name);
    if (column.role != Role::number) {
      return rows_.wrong(
          fmt::format("column {} stands in the schema as an input; a target, an "
                      "ignored column and the column of by: must not",
                      shown(wanted.name)));
    }
    column.at = inputs;
    column.words = numbered(wanted.words);
    inputs += std::max<std::size_t>(1, wanted.words.size());
    if (!wanted.words.empty()) column.role = Role::words;
  }
  for (const Column& column : columns_) {
    if (column.role == Role::number && !known.contains(column.name)) {
      return rows_.wrong(
          fmt::format("column {} is not in the schema; add it there, or leave it "
                      "out: ignore={}",
                      shown(column.name), printable(column.name)));
    }
  }
  inputs_.resize(inputs);
  return {};
}

Result<void> CsvTable::read_row() {
  const auto& fields = rows_.fields();
  if (fields.size() != columns_.size()) {
    return rows_.wrong(
        fmt::format("it has {} fields; the first line has {}", fields.size(), columns_.size()));
  }
  if (++examples_ > examples_max)
    return rows_.wrong(fmt::format("there are more than {} examples", examples_max));
  // Counts the row's targets, as numbers and as a class, and its group.
  FL_CHECK(kept_.add((set_.outputs + 2) * sizeof(float)));
  std::ranges::fill(inputs_, 0.0F);
  for (std::size_t i = 0; i < fields.size(); ++i) FL_CHECK(take(columns_[i], fields[i]));
  return writer_.append(std::span<const float>(inputs_));
}

Result<void> CsvTable::take(const Column& column, std::string_view field) {
  using Role = Column::Role;
  switch (column.role) {
    case Role::ignored: break;
    case Role::group: {
      if (field.empty()) return wrong_field(column, "it is empty, but by: needs it in each line");
      if (const auto added = groups_.add(field); !added)
        return wrong_field(column, added.error().message());
      break;
    }
    case Role::number: {
      if (is_missing(field)) {
        inputs_[column.at] = missing;
        break;
      }
      FL_TRY(inputs_[column.at], number_of(column, field));
      break;
    }
    case Role::words: {
      // A word that means "missing" elsewhere may be a word of the schema.
      if (!column.words.contains(field) && is_missing(field)) break;
      FL_TRY(const std::uint32_t word, word_of(column, field));
      inputs_[column.at + word] = 1;
      break;
    }
    case Role::target: {
      if (is_missing(field)) return missing_target(column);
      FL_TRY(const float target, number_of(column, field));
      // Several targets may stand in another order in the file.
      set_.targets.resize(examples_ * set_.outputs);
      set_.targets[(examples_ - 1) * set_.outputs + column.at] = target;
      break;
    }
    case Role::classes: {
      if (!column.words.contains(field) && is_missing(field)) return missing_target(column);
      FL_TRY(const std::uint32_t word, word_of(column, field));
      set_.labels.push_back(word);
      break;
    }
  }
  return {};
}

Error CsvTable::wrong_field(const Column& column, std::string_view what) const {
  return rows_.wrong(fmt::format("column {}: {}", shown(column.name), what));
}

Error CsvTable::missing_target(const Column& column) const {
  return wrong_field(column, "the target is missing; remove the line, or fill it in");
}

std::string CsvTable::advice(const Column& column) const {
  const std::string name = printable(column.name, shown_bytes_max);
  if (column.role == Column::Role::target) {
    return fmt::format(
        "Classes that are words need a schema that all members share: schema=FILE "
        "with {{\"columns\": {{...}}, \"target\": [\"no\", \"yes\"]}}");
  }
  return fmt::format(
      "Name the words of this column in a schema that all members share: "
      "schema=FILE with {{\"columns\": {{\"{}\": [\"one\", \"another\"], ...}}}}; "
      "or leave the column out: ignore={}",
      name, name);
}

Result<float> CsvTable::number_of(const Column& column, std::string_view field) const {
  const auto number = number_in<double>(field.starts_with('+') ? field.substr(1) : field);
  if (!number)
    return wrong_field(column, fmt::format("{} is not a number. {}", shown(field), advice(column)));
  // Written so that infinity and what becomes infinity as fp32 fail.
  if (!(std::abs(*number) <= std::numeric_limits<float>::max()))
    return wrong_field(column, fmt::format("{} is too large for fp32", shown(field)));
  return static_cast<float>(*number);
}

Result<std::uint32_t> CsvTable::word_of(const Column& column, std::string_view field) const {
  const auto found = column.words.find(field);
  if (found != column.words.end()) return found->second;
  return wrong_field(column, fmt::format("{} is not one of the {} words that the schema has for it",
                                         shown(field), column.words.size()));
}

Result<DataSet> CsvTable::finish() {
  if (examples_ == 0) return rows_.wrong("there is no line behind the names of the columns");
  FL_TRY(set_.inputs, writer_.finish());
  groups_.finish(set_);
  if (!set_.labels.empty()) {
    set_.outputs = 0;
    return std::move(set_);
  }
  const bool are_classes =
      set_.outputs == 1 && std::ranges::all_of(set_.targets, [](float value) {
        return value >= 0 && value < static_cast<float>(classes_max) && value == std::floor(value);
      });
  if (are_classes) {
    for (const float value : set_.targets) set_.labels.push_back(static_cast<std::uint32_t>(value));
    set_.classes = std::ranges::max(set_.labels) + 1;
  }
  return std::move(set_);
}

Result<char> parse_separator(const DataRequest& request, const std::string& text) {
  if (text.empty() || text == "comma") return ',';
  if (text == "tab") return '\t';
  if (text == "semicolon") return ';';
  return wrong_data(request, fmt::format("sep={}: must be comma, semicolon or tab", text));
}

}  // namespace

Result<DataSet> read_csv(const DataRequest& request) {
  FL_TRY(ReaderOptions options, ReaderOptions::parse(request, csv_usage));
  Plan plan{.targets = options.words("target"),
            .ignored = options.words("ignore"),
            .group = std::string(request.group),
            .schema = std::nullopt};
  const std::string schema = options.text("schema");
  FL_TRY(const char separator, parse_separator(request, options.text("sep")));
  FL_CHECK(options.finish());
  if (plan.targets.empty())
    return wrong_data(request, "say which column to predict: target=COLUMN");
  if (!schema.empty()) {
    FL_TRY(plan.schema, read_csv_schema(schema));
  }
  FL_TRY(CsvRows rows, CsvRows::open(options.path(), separator));
  return CsvTable(std::move(rows), std::move(plan), request.memory_bytes).read();
}

}  // namespace fl
