// SPDX-License-Identifier: Apache-2.0
// What one setting of a run is, as a row of a table, and everything that follows from such a table:
// flags (server/app/setting_flags.hpp), stored JSON, checks, and what clients are told. The rows of
// RunSettings are in settings_table.cpp; docs/design/adding-a-setting.md says how to add one.
//
// Templates on the struct of settings and on the struct of a round's work, so that a test can add a
// setting to a table of its own. Pure functions; any thread.
#pragma once

#include "shared/algorithm/strategy.hpp"
#include "shared/base/error.hpp"
#include "shared/base/json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace fl::server {

/// Names and shapes of tensors, in order.
using NamedShapes = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;

/// Which numbers a setting may be.
struct NumberRange {
  double least = 0;
  double most = std::numeric_limits<double>::infinity();
  bool is_above = false;  // `least` itself is too little.
  bool is_below = false;  // `most` itself is too much.
  bool or_zero = false;   // 0 is right too; the hint says what it means.
  std::string_view hint = {};

  [[nodiscard]] bool has(double value) const {
    if (value == 0 && or_zero) return true;
    return std::isfinite(value) && (is_above ? value > least : value >= least) &&
           (is_below ? value < most : value <= most);
  }
  /// "from 1 to 100, or 0 to adapt".
  [[nodiscard]] std::string text() const {
    const bool has_end = std::isfinite(most);
    if (!has_end && !is_above) return fmt::format("{} or more{}", least, hint);
    if (!has_end) return fmt::format("above {}{}", least, hint);
    if (!is_above && !is_below) return fmt::format("from {} to {}{}", least, most, hint);
    return fmt::format("{} {} and {} {}{}", is_above ? "above" : "at least", least,
                       is_below ? "below" : "at most", most, hint);
  }
};

/// How long an existing run accepts another value of a setting.
enum class Changeable {
  always,              // Also between two rounds: from the next start on.
  before_first_model,  // As long as the run has no initial model.
  not_at_all,
};

/// The facts that local work depends on besides the settings.
struct WorkRound {
  const Strategy& strategy;
  std::uint32_t round;             // From 1.
  std::span<const double> losses;  // The training losses of the rounds before it, at least.
};

template <class Settings, class Work>
struct SettingRow {
  using Field =
      std::variant<std::string Settings::*, double Settings::*, bool Settings::*,
                   std::uint32_t Settings::*, std::uint64_t Settings::*, NamedShapes Settings::*>;
  Field field;
  /// Without "--"; also the key in a TOML file of flags. "": the setting has no flag.
  std::string_view flag = {};
  std::string_view group = {};  // The heading that the setting stands under in a form.
  bool is_usual = false;        // A form shows it first.
  /// The help text. Where it has "{}", the names of a table stand in it (help_names).
  std::string_view help = {};
  std::string (*help_names)() = nullptr;
  /// The key in stored JSON, and so in `history --runs --json`. "": the flag, with _ for -.
  std::string_view key = {};
  /// The default that --help shows. "": the field's value.
  std::string_view default_shown = {};
  std::uint32_t flag_min = 0;     // The least whole number that the flag takes.
  bool is_existing_file = false;  // The flag names a file, and the setting is its absolute path.
  Changeable changeable = Changeable::always;
  NumberRange range = {};  // Of a number.
  /// Checks a text by itself. Its error is shown behind "--FLAG: ". May be null.
  Result<void> (*check)(const Settings&) = nullptr;
  /// Computes what a round's work has for a setting that clients see; null in the others.
  void (*into_work)(const Settings&, const WorkRound&, Work&) = nullptr;

  [[nodiscard]] std::string json_key() const {
    std::string name(key.empty() ? flag : key);
    std::ranges::replace(name, '-', '_');
    return name;
  }
  [[nodiscard]] std::string help_text() const {
    std::string text(help);
    if (help_names != nullptr) text.replace(text.find("{}"), 2, help_names());
    return text;
  }
  [[nodiscard]] nlohmann::json value_of(const Settings& settings) const {
    return std::visit([&](auto of) { return nlohmann::json(settings.*of); }, field);
  }
};

template <class Settings, class Work>
class SettingTable {
 public:
  using Row = SettingRow<Settings, Work>;

  /// The rows must outlive the table.
  constexpr explicit SettingTable(std::span<const Row> rows) : rows_(rows) {}

  [[nodiscard]] std::span<const Row> rows() const { return rows_; }

  /// Null: no setting has this flag.
  [[nodiscard]] const Row* find(std::string_view flag) const {
    const auto row = std::ranges::find(rows_, flag, &Row::flag);
    return row == rows_.end() || flag.empty() ? nullptr : &*row;
  }

  [[nodiscard]] std::string to_json(const Settings& settings) const {
    nlohmann::json object = nlohmann::json::object();
    for (const Row& row : rows_) object[row.json_key()] = row.value_of(settings);
    return json_text(object);
  }

  /// Reads settings. A missing key leaves the default: the run is older than the setting. Unknown
  /// keys are ignored. Errors: corrupt, with the key, the value and what it must be.
  [[nodiscard]] Result<Settings> from_json(std::string_view text) const {
    const auto object = parse_json(text);
    if (!object.is_object()) return Error(Errc::corrupt, "they are not a JSON object");
    Settings settings;
    for (const Row& row : rows_) {
      const auto found = object.find(row.json_key());
      if (found == object.end()) continue;
      const auto take = [&found, &settings](auto of) { return read(*found, settings.*of); };
      if (auto taken = std::visit(take, row.field); !taken)
        return taken.error().at(fmt::format("\"{}\"", row.json_key()));
    }
    return settings;
  }

  /// Checks each value by itself, in the order of the table. Errors name the flag.
  [[nodiscard]] Result<void> check_each(const Settings& settings) const {
    for (const Row& row : rows_) {
      auto checked = check_range(row, settings);
      if (checked && row.check != nullptr) checked = row.check(settings);
      if (!checked) return checked.error().at(fmt::format("--{}", row.flag));
    }
    return {};
  }

  /// Copies the settings of these flags.
  void copy(const std::set<std::string>& flags, const Settings& from, Settings& to) const {
    for (const Row& row : rows_) {
      if (!flags.contains(std::string(row.flag))) continue;
      std::visit([&](auto of) { to.*of = from.*of; }, row.field);
    }
  }

  /// The work that one round asks all its clients for.
  [[nodiscard]] Work work(const Settings& settings, const WorkRound& round) const {
    Work work;
    for (const Row& row : rows_) {
      if (row.into_work != nullptr) row.into_work(settings, round, work);
    }
    return work;
  }

 private:
  static Result<void> check_range(const Row& row, const Settings& settings) {
    const auto check = [&]<class T>(T Settings::*of) -> Result<void> {
      if constexpr (is_number<T>) {
        if (!row.range.has(static_cast<double>(settings.*of)))
          return Error(Errc::invalid_input,
                       fmt::format("it must be {}, not {}", row.range.text(), settings.*of));
      }
      return {};
    };
    return std::visit(check, row.field);
  }

  template <class T>
  static Result<void> read(const nlohmann::json& from, T& value) {
    std::string wanted = std::is_same_v<T, bool> ? "true or false" : "a text";
    if constexpr (is_number<T>) {
      if (const auto number = number_in<T>(from)) {
        value = *number;
        return {};
      }
      wanted = numbers_of<T>();
    } else {
      try {
        from.get_to(value);
        return {};
      } catch (const nlohmann::json::exception& error) {
        if constexpr (!std::is_same_v<T, std::string> && !std::is_same_v<T, bool>)
          wanted = error.what();
      }
    }
    return Error(Errc::corrupt, fmt::format("it must be {}, not {}", wanted, short_json(from)));
  }

  std::span<const Row> rows_;
};

}  // namespace fl::server
