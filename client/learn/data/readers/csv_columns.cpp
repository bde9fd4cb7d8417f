// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/readers/csv_columns.hpp"

#include "client/learn/data/normal_form.hpp"
#include "client/learn/data/readers/readers.hpp"
#include "shared/base/log.hpp"
#include "shared/base/printable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

namespace fl {

namespace {

std::map<std::string, std::uint32_t, std::less<>> numbered(const std::vector<std::string>& words) {
  std::map<std::string, std::uint32_t, std::less<>> numbers;
  for (const std::string& word : words)
    numbers.emplace(word, static_cast<std::uint32_t>(numbers.size()));
  return numbers;
}

/// Gives the columns of one file their uses.
class Assignment {
 public:
  Assignment(CsvRows& rows, const CsvPlan& plan) : rows_(rows), plan_(plan) {}

  Result<CsvColumns> read() {
    FL_CHECK(read_names());
    FL_CHECK(expect_names());
    FL_CHECK(assign_roles());
    FL_CHECK(assign_inputs());
    if (columns_.inputs == 0) return rows_.wrong("no column is left to predict from");
    if (columns_.inputs > row_elements_max) {
      return rows_.wrong(fmt::format("the columns make {} inputs; the limit is {}", columns_.inputs,
                                     row_elements_max));
    }
    return std::move(columns_);
  }

 private:
  using Role = CsvColumn::Role;

  Result<void> read_names();
  Result<void> expect_names() const;
  [[nodiscard]] std::string advice() const;
  Result<CsvColumn*> assign(const std::string& name, Role role);
  Result<void> assign_roles();
  Result<void> assign_inputs();
  Result<void> assign_schema();
  [[nodiscard]] CsvColumn* find(std::string_view name) {
    const auto found = places_.find(name);
    return found == places_.end() ? nullptr : &columns_.all[found->second];
  }

  CsvRows& rows_;
  const CsvPlan& plan_;
  CsvColumns columns_;
  std::map<std::string, std::size_t, std::less<>> places_;  // Where in columns_.all, by name.
};

Result<void> Assignment::read_names() {
  FL_TRY(const bool has_names, rows_.next());
  if (!has_names) return rows_.wrong("the file is empty; its first line must name the columns");
  for (const std::string_view name : rows_.fields()) {
    const std::size_t at = columns_.all.size();
    CsvColumn column{.name = normal_form(name)};
    if (name.empty()) {
      column.role = at > 0 ? Role::empty : role_of_nameless(plan_);
    } else if (const auto [place, is_new] = places_.emplace(column.name, at); !is_new) {
      return rows_.wrong(fmt::format("columns {} and {} are both called {}; rename one",
                                     place->second + 1, at + 1, csv_shown(name)));
    }
    columns_.all.push_back(std::move(column));
  }
  if (columns_.all.front().name.empty()) {
    log_info("{}: the first column has no name, so it holds the names of the rows and is no input",
             rows_.path());
  }
  return {};
}

/// All columns that the command line and the schema name must be there.
Result<void> Assignment::expect_names() const {
  std::vector<std::string> wanted = plan_.ignored;
  if (plan_.reads_targets)
    wanted.insert(wanted.begin(), plan_.targets.begin(), plan_.targets.end());
  if (!plan_.row_name.empty()) wanted.push_back(plan_.row_name);
  if (!plan_.group.empty()) wanted.push_back(plan_.group);
  if (plan_.schema) {
    for (const auto& column : plan_.schema->columns) wanted.push_back(column.name);
  }
  for (const std::string& name : wanted) {
    if (places_.contains(name)) continue;
    std::string all;
    for (const CsvColumn& column : columns_.all) all += (all.empty() ? "" : ", ") + column.name;
    return rows_.wrong(fmt::format("there is no column {}; the columns are: {}{}", csv_shown(name),
                                   printable(all, 1000), advice()));
  }
  return {};
}

/// Says what may be wrong with a first line that lacks a column; "" if nothing shows.
std::string Assignment::advice() const {
  const std::string& first = columns_.all.front().name;
  if (first.starts_with('#'))
    return ". The first line must name the columns: remove the lines of comments before it";
  if (columns_.all.size() > 1) return "";
  for (const auto& [mark, name] : csv_separators) {
    if (first.find(mark) != std::string::npos) return separator_advice(name);
  }
  return "";
}

Result<CsvColumn*> Assignment::assign(const std::string& name, Role role) {
  CsvColumn* const column = find(name);
  if (column->role != Role::number) {
    return rows_.wrong(
        fmt::format("column {} has two uses: a column is a target, ignored, that of name=, the "
                    "column of by:, or an input",
                    csv_shown(name)));
  }
  column->role = role;
  return column;
}

Result<void> Assignment::assign_roles() {
  for (const std::string& name : plan_.ignored) FL_CHECK(assign(name, Role::ignored));
  if (!plan_.row_name.empty()) FL_CHECK(assign(plan_.row_name, Role::row_name));
  if (!plan_.group.empty()) FL_CHECK(assign(plan_.group, Role::group));
  const bool has_classes = plan_.schema && !plan_.schema->classes.empty();
  if (has_classes && plan_.targets.size() > 1)
    return rows_.wrong("several targets must be numbers, but the schema has words for the target");
  if (has_classes) columns_.classes = static_cast<std::uint32_t>(plan_.schema->classes.size());
  if (!plan_.reads_targets) {
    for (const std::string& name : plan_.targets)
      if (find(name) != nullptr) FL_CHECK(assign(name, Role::ignored));
    return {};
  }
  for (std::size_t i = 0; i < plan_.targets.size(); ++i) {
    FL_TRY(CsvColumn* const column,
           assign(plan_.targets[i], has_classes ? Role::classes : Role::target));
    column->at = i;
    if (has_classes) column->words = numbered(plan_.schema->classes);
  }
  return {};
}

Result<void> Assignment::assign_inputs() {
  if (plan_.schema) return assign_schema();
  for (CsvColumn& column : columns_.all) {
    if (column.role == Role::number) column.at = columns_.inputs++;
  }
  return {};
}

Result<void> Assignment::assign_schema() {
  std::set<std::string_view> known;
  for (const auto& wanted : plan_.schema->columns) {
    known.insert(wanted.name);
    CsvColumn& column = *find(wanted.name);
    if (column.role != Role::number) {
      return rows_.wrong(
          fmt::format("column {} stands in the schema as an input; a target, an "
                      "ignored column and those of name= and by: must not",
                      csv_shown(wanted.name)));
    }
    column.at = columns_.inputs;
    column.words = numbered(wanted.words);
    columns_.inputs += std::max<std::size_t>(1, wanted.words.size());
    if (!wanted.words.empty()) column.role = Role::words;
  }
  for (const CsvColumn& column : columns_.all) {
    if (column.role == Role::number && !known.contains(column.name)) {
      return rows_.wrong(
          fmt::format("column {} is not in the schema; add it there, or leave it "
                      "out: ignore={}",
                      csv_shown(column.name), printable(column.name)));
    }
  }
  return {};
}

}  // namespace

std::string csv_shown(std::string_view text) {
  return fmt::format("\"{}\"", printable(text, csv_shown_bytes_max));
}

Result<CsvColumns> read_csv_columns(CsvRows& rows, const CsvPlan& plan) {
  return Assignment(rows, plan).read();
}

}  // namespace fl
