// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/readers/csv_schema.hpp"

#include "client/learn/data/normal_form.hpp"
#include "client/learn/data/readers/readers.hpp"
#include "shared/base/io/file.hpp"
#include "shared/base/json.hpp"
#include "shared/base/printable.hpp"

#include <fmt/format.h>

#include <set>

namespace fl {

namespace {

constexpr std::uint64_t schema_bytes_max = 16 << 20;
constexpr std::string_view schema_example =
    R"({"columns": {"age": "number", "sex": ["female", "male"]}, "target": ["no", "yes"]})";

Error wrong(std::string_view what) { return {Errc::invalid_input, std::string(what)}; }

/// The words of a column; none for "number".
Result<std::vector<std::string>> parse_words(const nlohmann::ordered_json& value,
                                             std::string_view name) {
  std::vector<std::string> words;
  if (value.is_string() && value.get_ref<const std::string&>() == "number") return words;
  const auto bad = [name](std::string_view why) {
    return wrong(fmt::format("{}: {}", printable(name), why));
  };
  if (!value.is_array() || value.empty() || value.size() > classes_max)
    return bad(fmt::format("must be \"number\" or an array of 1 to {} words", classes_max));
  std::set<std::string> seen;
  for (const auto& word : value) {
    if (!word.is_string() || word.get_ref<const std::string&>().empty())
      return bad(fmt::format("{} is not a word", json_text(word)));
    words.push_back(normal_form(word.get_ref<const std::string&>()));
    if (!seen.insert(words.back()).second)
      return bad(fmt::format("the word {} stands in it twice", json_text(word)));
  }
  return words;
}

Result<CsvSchema> parse_schema(std::string_view text) {
  const auto json = parse_ordered_json(text);
  const auto columns = json.find("columns");
  if (!json.is_object() || columns == json.end() || !columns->is_object() || columns->empty())
    return wrong(fmt::format("must be JSON like {}", schema_example));
  CsvSchema schema;
  for (const auto& entry : json.items()) {
    if (entry.key() != "columns" && entry.key() != "target") {
      return wrong(fmt::format("\"{}\" is unknown; a schema has \"columns\" and \"target\"",
                               printable(entry.key())));
    }
  }
  for (const auto& entry : columns->items()) {
    FL_TRY(auto words, parse_words(entry.value(), fmt::format("column \"{}\"", entry.key())));
    schema.columns.push_back({.name = normal_form(entry.key()), .words = std::move(words)});
  }
  if (const auto target = json.find("target"); target != json.end()) {
    FL_TRY(schema.classes, parse_words(*target, "\"target\""));
  }
  return schema;
}

}  // namespace

Result<CsvSchema> read_csv_schema(const std::filesystem::path& path) {
  FL_TRY(const std::string text, posix_files().read_all(path, schema_bytes_max));
  auto schema = parse_schema(text);
  if (!schema) return schema.error().at(fmt::format("schema {}", path.string()));
  return schema;
}

}  // namespace fl
