// SPDX-License-Identifier: Apache-2.0
#include "shared/flags/flags.hpp"

#include "shared/base/spec/spec_text.hpp"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

namespace fl {

namespace {

constexpr std::size_t typed_bytes_max = 40;  // A longer word is no mistyped flag.

/// How many letters of `a` must be put in, left out or replaced to get `b`.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t before = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = before + (a[i - 1] == b[j - 1] ? 0 : 1);
      before = row[j];
      row[j] = std::min({replaced, before + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

/// The long flags and the sub-commands of a program, and the flags of the sub-commands in use.
std::vector<std::string> names_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* const option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  const auto is_any = [](const CLI::App*) { return true; };
  for (const CLI::App* const command : app.get_subcommands(is_any)) {
    names.push_back(command->get_name());
    if (!command->parsed()) continue;
    const auto deeper = names_of(*command);
    names.insert(names.end(), deeper.begin(), deeper.end());
  }
  return names;
}

/// "; did you mean --rounds?" for a word that is nearly a name, else "".
std::string suggestion(const CLI::App& app, std::string_view word) {
  word = word.substr(0, word.find('='));
  if (word.size() > typed_bytes_max) return "";
  const std::size_t far = word.size() < 6 ? 2 : 3;  // Most mistypings are nearer than this.
  std::string nearest;
  std::size_t least = far;
  for (const std::string& name : names_of(app)) {
    const std::size_t apart = distance(word, name);
    if (apart < least) nearest = name;
    least = std::min(least, apart);
  }
  return nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest);
}

/// What a text that is no TOML in this line may be instead, as the end of a sentence; else "".
std::string_view other_format(std::string_view text, std::uint32_t number) {
  std::string_view line = text;
  for (; number > 1; --number) line.remove_prefix(std::min(line.find('\n') + 1, line.size()));
  line = line.substr(0, line.find('\n'));
  line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  if (line.starts_with('{')) return "; it looks like JSON, and this file is TOML: `flag = value`";
  const bool is_yaml =
      line.starts_with("- ") || line.starts_with("---") || line.find(':') < line.find('=');
  return is_yaml ? "; it looks like YAML, and this file is TOML: `flag = value`" : "";
}

class TomlFile final : public CLI::Config {
 public:
  explicit TomlFile(const CLI::App& app) : app_(&app) {}

  std::string to_config(const CLI::App*, bool, bool, std::string) const override { return ""; }

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    const std::string text(std::istreambuf_iterator<char>(input), {});
    toml::table table;
    try {
      table = toml::parse(text);
    } catch (const toml::parse_error& error) {
      throw wrong(error.source(), fmt::format("{}{}", error.description(),
                                              other_format(text, error.source().begin.line)));
    }
    std::vector<CLI::ConfigItem> flags;
    for (const auto& [key, value] : table) {
      const std::string name(key.str());
      if (value.is_table() || value.is_array_of_tables())
        throw wrong(value.source(),
                    fmt::format("[{}]: this file takes lines `flag = value`, no tables", name));
      if (app_->get_option_no_throw("--" + name) == nullptr)
        throw wrong(key.source(),
                    fmt::format("there is no flag --{}{}", name, suggestion(*app_, "--" + name)));
      CLI::ConfigItem& item = flags.emplace_back();
      item.name = name;
      item.inputs.push_back(text_of(name, value));
      // A flag on the command line overrides the file, so an error can't be about the file's value.
      if (app_->get_option("--" + name)->empty()) lines_[name] = key.source().begin.line;
    }
    return flags;
  }

  /// Returns "FILE:LINE: " if CLI11's error message names a flag whose value came from this file,
  /// else "".
  std::string place_of(std::string_view complaint) const {
    for (const auto& [name, line] : lines_) {
      const std::string flag = "--" + name;
      const auto at = complaint.find(flag);
      if (at == std::string_view::npos) continue;
      const auto behind = complaint.substr(at + flag.size(), 1);
      if (behind.empty() || behind == ":" || behind == " ")
        return fmt::format("{}:{}: ", file(), line);
    }
    return "";
  }

 private:
  std::string file() const { return app_->get_config_ptr()->as<std::string>(); }

  std::string text_of(const std::string& name, const toml::node& value) const {
    if (const auto text = value.value_exact<std::string>()) return *text;
    if (const auto whole = value.value_exact<std::int64_t>()) return std::to_string(*whole);
    if (const auto real = value.value_exact<double>()) return fmt::format("{}", *real);
    if (const auto truth = value.value_exact<bool>()) return *truth ? "true" : "false";
    throw wrong(value.source(), fmt::format("{} must be a string, a number, true or false", name));
  }

  CLI::ConfigError wrong(const toml::source_region& place, std::string_view what) const {
    return {fmt::format("{}:{}: {}", file(), place.begin.line, what), CLI::ExitCodes::ConfigError};
  }

  const CLI::App* app_;
  // Line of each flag whose value came from the file. Mutable because CLI11's from_config() is
  // const.
  mutable std::map<std::string, std::uint32_t> lines_;
};

}  // namespace

void add_config_flag(CLI::App& app, const std::string& help) {
  app.config_formatter(std::make_shared<TomlFile>(app));
  app.set_config("--config", "", help)->check(CLI::ExistingFile);
  app.allow_config_extras(CLI::config_extras_mode::error);
}

std::string error_text(const CLI::App& app, const CLI::ParseError& error) {
  const auto* const file = dynamic_cast<const TomlFile*>(app.get_config_formatter().get());
  std::string text = (file == nullptr ? "" : file->place_of(error.what())) + error.what();
  if (error.get_exit_code() != static_cast<int>(CLI::ExitCodes::ExtrasError)) return text;
  for (const std::string& word : app.remaining(true)) {
    if (const std::string meant = suggestion(app, word); !meant.empty()) return text + meant;
  }
  return text;
}

int exit_code(const CLI::App& app, const CLI::ParseError& error) {
  const std::string text = error_text(app, error);
  if (text == error.what()) return app.exit(error) == 0 ? 0 : wrong_usage;
  app.exit(CLI::ParseError(text, error.get_exit_code()));
  return wrong_usage;
}

CLI::Validator whole_number(std::uint64_t least, std::uint64_t most) {
  const auto check = [least, most](const std::string& text) -> std::string {
    const auto value = number_in<std::uint64_t>(text);
    const bool is_octal = text.size() > 1 && text.front() == '0';
    if (value && !is_octal && *value >= least && *value <= most) return "";
    return fmt::format("'{}' is not a whole number from {} to {}", text, least, most);
  };
  return {check, ""};
}

CLI::Validator whole_number_in(std::uint64_t least, std::uint64_t most) {
  return whole_number(least, most).description(fmt::format("INT in [{} - {}]", least, most));
}

CLI::Validator real_number() {
  const auto check = [](const std::string& text) -> std::string {
    const auto value = number_in<double>(text);
    return value && std::isfinite(*value) ? "" : fmt::format("'{}' is not a number", text);
  };
  return {check, ""};
}

CLI::Validator real_number_in(double least, double most) {
  const auto check = [least, most](const std::string& text) -> std::string {
    const auto value = number_in<double>(text);
    if (value && *value >= least && *value <= most) return "";
    return fmt::format("'{}' is not a number from {:g} to {:g}", text, least, most);
  };
  return {check, fmt::format("FLOAT in [{:g} - {:g}]", least, most)};
}

CLI::Validator not_empty() {
  const auto check = [](const std::string& text) -> std::string {
    return text.empty() ? "the value is empty (is a shell variable unset?)" : "";
  };
  return {check, ""};
}

}  // namespace fl
