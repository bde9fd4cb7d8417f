// SPDX-License-Identifier: Apache-2.0
#include "server/app/compare_runs.hpp"

#include "server/history/cells.hpp"
#include "server/history/rows.hpp"
#include "server/history/run_name.hpp"
#include "server/run/best_of_run.hpp"
#include "server/run/settings_table.hpp"
#include "server/run/target.hpp"
#include "shared/base/json.hpp"
#include "shared/base/printable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

namespace fl::server {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t shown_value_bytes_max = 60;
/// The settings that a run's name has (name_of()).
constexpr std::array<std::string_view, 3> named_settings{"model", "strategy", "codec"};

/// A run as it is read, before its goal is known.
struct RunRead {
  RunFigures figures;
  RunSettings settings;
  std::vector<RoundSummary> rounds;
};

bool is_better(double value, double other, bool lower_is_better) {
  return lower_is_better ? value < other : value > other;
}

void add_up(RunRead& run) {
  RunFigures& sum = run.figures;
  for (const RoundSummary& round : run.rounds) {
    ++sum.rounds;
    sum.seconds += round.seconds;
    sum.bytes_up += round.bytes_up;
    sum.bytes_down += round.bytes_down;
    sum.updates += round.clients_accepted;
    if (round.train_loss) sum.train_loss = round.train_loss;
    if (round.eval_loss) sum.eval_loss = round.eval_loss;
    if (!round.eval_metric) continue;
    sum.last = round.eval_metric;
    if (sum.best && !is_better(*round.eval_metric, *sum.best, sum.lower_is_better)) continue;
    sum.best = round.eval_metric;
    sum.best_round = round.round;
  }
}

Result<RunRead> read_run(Store& store, const RunRecord& record) {
  RunRead run;
  run.figures.run = record;
  FL_TRY(run.settings, settings_from_json(record.config_json));
  run.settings.rounds = record.rounds_total;
  FL_TRY(run.rounds, store.summaries().rounds(record.id));
  FL_TRY(const MetricKind metric, main_metric_of(store, record.id, run.settings));
  run.figures.metric = metric.name;
  run.figures.lower_is_better = metric.lower_is_better;
  add_up(run);
  return run;
}

std::vector<SettingDifference> differences_of(const RunSettings& first, const RunSettings& second) {
  std::vector<SettingDifference> found;
  const RunSettingTable table = run_setting_table();
  for (const auto& row : table.rows()) {
    const auto one = row.value_of(first);
    const auto other = row.value_of(second);
    if (one == other) continue;
    const std::string flag = row.flag.empty() ? row.json_key() : fmt::format("--{}", row.flag);
    found.push_back({row.json_key(), flag, {json_text(one), json_text(other)}});
  }
  return found;
}

std::optional<double> target_in(const RunRead& run) {
  const auto target = target_of(run.settings);
  if (!target || target->metric != run.figures.metric) return std::nullopt;
  return target->bound;
}

/// Chooses the goal, of two runs with the same main metric.
void choose_goal(const RunRead& first, const RunRead& second, std::optional<double> asked,
                 RunComparison& out) {
  if (asked) {
    out.goal = asked;
    out.goal_from = "--reach";
    return;
  }
  for (const RunRead* run : {&first, &second}) {
    out.goal = target_in(*run);
    out.goal_from = fmt::format("the target of run {}", run->figures.run.id);
    if (out.goal) return;
  }
  out.goal_from = "";
  const auto one = first.figures.best;
  const auto other = second.figures.best;
  if (!one || !other) return;
  out.goal = is_better(*one, *other, first.figures.lower_is_better) ? other : one;
  out.goal_from = "the best that both have reached";
}

std::optional<Reached> first_reached(const RunRead& run, double goal) {
  Reached at;
  for (const RoundSummary& round : run.rounds) {
    at.round = round.round;
    at.seconds += round.seconds;
    at.bytes += round.bytes_up + round.bytes_down;
    if (round.eval_metric && !is_better(goal, *round.eval_metric, run.figures.lower_is_better))
      return at;
  }
  return std::nullopt;
}

Json number_or_null(std::optional<double> value) {
  return value && std::isfinite(*value) ? Json(*value) : Json();
}

Json object_of(const RunFigures& of) {
  Json reached;
  if (of.reached) {
    reached = {{"round", of.reached->round},
               {"seconds", of.reached->seconds},
               {"bytes", of.reached->bytes}};
  }
  return {{"run_id", of.run.id},
          {"key", of.run.key},
          {"model", of.run.model},
          {"state", to_text(of.run.state)},
          {"rounds", of.rounds},
          {"rounds_wanted", of.run.rounds_total},
          {"seconds", of.seconds},
          {"updates", of.updates},
          {"bytes_up", of.bytes_up},
          {"bytes_down", of.bytes_down},
          {"metric", of.metric},
          {"value_last", number_or_null(of.last)},
          {"value_best", number_or_null(of.best)},
          {"best_round", of.best ? Json(of.best_round) : Json()},
          {"train_loss", number_or_null(of.train_loss)},
          {"eval_loss", number_or_null(of.eval_loss)},
          {"reached", reached}};
}

class ComparisonTable {
 public:
  explicit ComparisonTable(const RunComparison& of) : of_(of) {}

  void add(std::string name, const std::function<std::string(const RunFigures&)>& cell) {
    lines_.push_back({std::move(name), cell(of_.runs[0]), cell(of_.runs[1])});
  }
  void add(CellLine line) { lines_.push_back(std::move(line)); }
  [[nodiscard]] std::string text() { return align_cells(std::move(lines_), 3); }

 private:
  const RunComparison& of_;
  std::vector<CellLine> lines_;
};

void add_goal(ComparisonTable& table, const RunComparison& of) {
  const std::string value = figure_text(of.runs[0].metric, of.goal);
  const auto cell = [](const auto& of_reached) {
    return [of_reached](const RunFigures& run) {
      return run.reached ? of_reached(*run.reached) : std::string("not reached");
    };
  };
  table.add("rounds to " + value,
            cell([](const Reached& at) { return fmt::format("{}", at.round); }));
  table.add("time to " + value, cell([](const Reached& at) { return human_seconds(at.seconds); }));
  table.add("bytes to " + value, cell([](const Reached& at) { return human_bytes(at.bytes); }));
}

}  // namespace

Result<RunComparison> compare_runs(Store& store, const RunRecord& first, const RunRecord& second,
                                   std::optional<double> goal) {
  FL_TRY(RunRead one, read_run(store, first));
  FL_TRY(RunRead other, read_run(store, second));
  RunComparison comparison;
  comparison.settings = differences_of(one.settings, other.settings);
  if (one.figures.metric == other.figures.metric) {
    choose_goal(one, other, goal, comparison);
  } else if (goal) {
    return Error(
        Errc::invalid_input,
        fmt::format("--reach: run {} is judged by {} and run {} by {}, so no value of both "
                    "can be compared: leave --reach out",
                    first.id, one.figures.metric, second.id, other.figures.metric));
  }
  for (RunRead* run : {&one, &other})
    if (comparison.goal) run->figures.reached = first_reached(*run, *comparison.goal);
  comparison.runs = {std::move(one.figures), std::move(other.figures)};
  return comparison;
}

std::string comparison_table(const RunComparison& of) {
  ComparisonTable table(of);
  table.add("", [](const RunFigures& run) { return fmt::format("run {}", run.run.id); });
  table.add("model", [](const RunFigures& run) { return name_of(run.run).model; });
  table.add("method", [](const RunFigures& run) { return name_of(run.run).method; });
  table.add("codec", [](const RunFigures& run) { return name_of(run.run).codec; });
  for (const SettingDifference& difference : of.settings) {
    if (std::ranges::find(named_settings, difference.setting) != named_settings.end()) continue;
    table.add({difference.flag, printable(difference.values[0], shown_value_bytes_max),
               printable(difference.values[1], shown_value_bytes_max)});
  }
  table.add("state", [](const RunFigures& run) { return std::string(to_text(run.run.state)); });
  table.add("rounds", [](const RunFigures& run) {
    return fmt::format("{} of {}", run.rounds, run.run.rounds_total);
  });
  table.add("time of rounds", [](const RunFigures& run) { return human_seconds(run.seconds); });
  table.add("updates", [](const RunFigures& run) { return fmt::format("{}", run.updates); });
  table.add("up", [](const RunFigures& run) { return human_bytes(run.bytes_up); });
  table.add("down", [](const RunFigures& run) { return human_bytes(run.bytes_down); });
  const bool one_metric = of.runs[0].metric == of.runs[1].metric;
  const auto figure = [one_metric](const RunFigures& run, std::optional<double> value) {
    const std::string text = figure_text(run.metric, value);
    return one_metric || !value ? text : fmt::format("{} {}", run.metric, text);
  };
  const std::string name = one_metric ? of.runs[0].metric : "metric";
  table.add(name + ", last", [&](const RunFigures& run) { return figure(run, run.last); });
  table.add(name + ", best", [&](const RunFigures& run) {
    return figure(run, run.best) + (run.best ? fmt::format(" (round {})", run.best_round) : "");
  });
  table.add("train loss", [](const RunFigures& run) { return loss_text(run.train_loss); });
  table.add("eval loss", [](const RunFigures& run) { return loss_text(run.eval_loss); });
  if (!of.goal) return table.text();
  add_goal(table, of);
  return fmt::format("{}({} is {})\n", table.text(), figure_text(of.runs[0].metric, of.goal),
                     of.goal_from);
}

std::string comparison_json(const RunComparison& of) {
  Json settings = Json::array();
  for (const SettingDifference& difference : of.settings) {
    settings.push_back(
        {{"setting", difference.setting},
         {"values",
          {parse_ordered_json(difference.values[0]), parse_ordered_json(difference.values[1])}}});
  }
  Json goal;
  if (of.goal) goal = {{"value", *of.goal}, {"from", of.goal_from}};
  const Json object{{"runs", {object_of(of.runs[0]), object_of(of.runs[1])}},
                    {"settings", settings},
                    {"goal", goal}};
  return json_text(object, 2) + "\n";
}

}  // namespace fl::server
