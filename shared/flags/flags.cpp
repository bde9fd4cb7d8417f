// SPDX-License-Identifier: Apache-2.0
#include "shared/flags/flags.hpp"

#include "shared/base/spec/nearest_name.hpp"
#include "shared/base/spec/spec_text.hpp"
#include "shared/base/state_lock.hpp"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace fl {

namespace {

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
  const auto names = names_of(app);
  return did_you_mean(word.substr(0, word.find('=')), {names.begin(), names.end()});
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

void add_fixed_modes_flag(CLI::App& app) {
  app.add_flag_callback("--accept-fixed-modes", accept_fixed_modes,
                        "Take a --state whose file system shows the same rights for all files "
                        "(CIFS, WSL's drives), because nobody else can reach it");
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

CLI::Validator one_of(std::vector<std::string> words) {
  const std::string all = fmt::format("{{{}}}", fmt::join(words, ","));
  const auto check = [words = std::move(words), all](const std::string& text) -> std::string {
    if (std::ranges::find(words, text) != words.end()) return "";
    return fmt::format("{} not in {}{}", text, all,
                       did_you_mean(text, {words.begin(), words.end()}));
  };
  return {check, all};
}

CLI::Validator not_empty() {
  const auto check = [](const std::string& text) -> std::string {
    return text.empty() ? "the value is empty (is a shell variable unset?)" : "";
  };
  return {check, ""};
}

}  // namespace fl
