// SPDX-License-Identifier: Apache-2.0
#include "server/history/format.hpp"

#include "server/history/cells.hpp"
#include "server/history/rows.hpp"
#include "server/history/run_name.hpp"
#include "shared/base/error.hpp"
#include "shared/base/json.hpp"
#include "shared/base/printable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fl::server {

namespace {

using Json = nlohmann::ordered_json;
using Line = CellLine;
constexpr const char* unknown = unknown_cell;

/// JSON has neither infinity nor NaN.
Json number_or_null(std::optional<double> number) {
  return number && std::isfinite(*number) ? Json(*number) : Json();
}
Json time_or_null(double time) { return time == 0 ? Json() : Json(time); }

/// A round, and whether it made its run's best version.
struct MarkedRound {
  RoundSummary round;
  bool is_best = false;
};

std::vector<MarkedRound> marked(const std::vector<RoundSummary>& rounds, const BestVersions& best) {
  std::vector<MarkedRound> all;
  for (const RoundSummary& round : rounds) {
    const auto found = best.find(round.run);
    all.push_back({round, found != best.end() && found->second.version == made_by(round.round)});
  }
  return all;
}

Json object_of(const MarkedRound& of) {
  const RoundSummary& round = of.round;
  return {{"run_id", round.run},
          {"round", round.round},
          {"started_at", round.started_at},
          {"seconds", round.seconds},
          {"clients_offered", round.clients_offered},
          {"clients_accepted", round.clients_accepted},
          {"bytes_up", round.bytes_up},
          {"bytes_down", round.bytes_down},
          {"train_loss", number_or_null(round.train_loss)},
          {"eval_loss", number_or_null(round.eval_loss)},
          {"eval_accuracy", number_or_null(round.eval_accuracy)},
          {"model_digest", round.model_digest},
          {"own_accuracy", number_or_null(round.own_accuracy)},
          {"metric", round.metric},
          {"eval_metric", number_or_null(round.eval_metric)},
          {"own_metric", number_or_null(round.own_metric)},
          {"is_exact", round.is_exact},
          {"is_best", of.is_best}};
}

Json object_of(const MetricSummary& of) {
  return {{"run_id", of.run},        {"version", of.version},
          {"name", of.name},         {"value", number_or_null(of.value)},
          {"is_exact", of.is_exact}, {"clients", of.clients},
          {"examples", of.examples}, {"evaluator", of.by_evaluators}};
}

Line line_of(const MetricSummary& of) {
  return {fmt::format("{}:{}", of.run, of.version), of.name,
          figure_text(of.name, of.value, of.is_exact),
          fmt::format("{} {}{}", of.clients, of.by_evaluators ? "evaluator" : "trainer",
                      of.clients == 1 ? "" : "s"),
          fmt::format("{}", of.examples)};
}

Json object_of(const ClientRecord& client) {
  return {{"name", client.name},
          {"enrolled_at", time_or_null(client.enrolled_at)},
          {"last_seen_at", time_or_null(client.last_seen_at)},
          {"certificate_serial", client.certificate_serial},
          {"revoked_at", time_or_null(client.revoked_at)},
          {"evaluator", client.evaluator},
          {"examples_max", client.examples_max == 0 ? Json() : Json(client.examples_max)}};
}

Json object_of(const EventRecord& event) {
  return {{"run_id", event.run == 0 ? Json() : Json(event.run)},
          {"at", event.at},
          {"level", to_text(event.level)},
          {"text", event.text}};
}

Line line_of(const EventRecord& event) {
  return {utc_time(event.at), std::string(to_text(event.level)), event.text};
}

Json object_of(const AuditRecord& row) {
  return {{"at", row.at},
          {"kind", to_text(row.kind)},
          {"who", row.who},
          {"client", row.client},
          {"text", row.text}};
}

Line line_of(const AuditRecord& row) {
  const auto name = [](const std::string& text) { return text.empty() ? "-" : printable(text); };
  return {utc_time(row.at), std::string(to_text(row.kind)), name(row.who), name(row.client),
          printable(row.text)};
}

Json object_of(const OperatorRecord& of) {
  return {{"name", of.name},
          {"role", of.role},
          {"made_at", of.made_at},
          {"revoked_at", time_or_null(of.revoked_at)}};
}

Line line_of(const OperatorRecord& of) {
  return {of.name, of.role, utc_time(of.made_at), utc_time(of.revoked_at, "no")};
}

Json object_of(const RunSummary& of) {
  const auto settings = parse_json(of.run.config_json);
  const RunName name = name_of(of.run);
  return {
      {"run_id", of.run.id},        {"key", of.run.key},
      {"model", of.run.model},      {"strategy", name.method},
      {"codec", name.codec},        {"state", to_text(of.run.state)},
      {"rounds", of.rounds_closed}, {"rounds_wanted", of.run.rounds_total},
      {"seed", of.run.seed},        {"made_at", of.run.started_at},
      {"queued", of.run.queued},    {"settings", settings.is_object() ? Json(settings) : Json()}};
}

Line line_of(const RunSummary& of) {
  const RunName name = name_of(of.run);
  return {fmt::format("{}", name.number),
          name.model,
          name.method,
          name.codec,
          std::string(to_text(of.run.state)),
          fmt::format("{} of {}", of.rounds_closed, of.run.rounds_total),
          utc_time(of.run.started_at),
          of.run.key};
}

/// Nothing for a metric that is not from 0 to 1, of which there are no points.
std::optional<double> bytes_per_point(const CodecSummary& of) {
  const KnownMetric* const known = find_known_metric(of.metric);
  if (known == nullptr || !known->is_fraction) return std::nullopt;
  if (!of.value_first || !of.value_last) return std::nullopt;
  const double points = 100 * (*of.value_last - *of.value_first);
  if (!(points > 0)) return std::nullopt;
  return static_cast<double>(of.bytes) / points;
}

Json object_of(const CodecSummary& of) {
  return {{"run_id", of.run},
          {"codec", of.codec},
          {"updates", of.updates},
          {"raw_bytes", of.raw_bytes},
          {"update_bytes", of.update_bytes},
          {"encode_seconds", of.encode_seconds},
          {"save_seconds", of.save_seconds},
          {"residual_seconds", of.residual_seconds},
          {"digest_seconds", of.digest_seconds},
          {"sync_seconds", of.sync_seconds},
          {"decode_seconds", of.decode_seconds},
          {"train_seconds", of.train_seconds},
          {"nmse", of.nmse},
          {"bytes", of.bytes},
          {"accuracy_first", number_or_null(of.accuracy_first)},
          {"accuracy_last", number_or_null(of.accuracy_last)},
          {"metric", of.metric},
          {"value_first", number_or_null(of.value_first)},
          {"value_last", number_or_null(of.value_last)},
          {"bytes_per_point", number_or_null(bytes_per_point(of))}};
}

Json object_of(const CodecAsked& of) {
  return {{"run_id", of.run},
          {"round", of.round},
          {"client", of.client},
          {"codec", of.codec},
          {"state", to_text(of.state)},
          {"update_bytes", of.update_bytes},
          {"ready_seconds", of.ready_seconds},
          {"upload_seconds", of.upload_seconds},
          {"reason", of.reason}};
}

Line line_of(const CodecAsked& of) {
  const bool has_come = of.upload_seconds > 0;
  return {fmt::format("{}:{}", of.run, of.round),
          of.client,
          of.codec,
          std::string(to_text(of.state)),
          has_come ? human_bytes(of.update_bytes) : unknown,
          has_come ? human_seconds(of.ready_seconds) : unknown,
          has_come ? human_seconds(of.upload_seconds) : unknown,
          of.reason};
}

Line line_of(const CodecSummary& of) {
  const auto per_update = [&of](double sum) {
    return fmt::format("{:.2f} ms", 1000 * sum / static_cast<double>(of.updates));
  };
  const double ratio = of.update_bytes == 0 ? 0
                                            : static_cast<double>(of.raw_bytes) /
                                                  static_cast<double>(of.update_bytes);
  const auto a_point = bytes_per_point(of);
  return {of.codec,
          fmt::format("{}", of.run),
          fmt::format("{}", of.updates),
          human_bytes(of.raw_bytes),
          human_bytes(of.update_bytes),
          ratio > 0 ? fmt::format("{:.1f}", ratio) : unknown,
          per_update(of.encode_seconds),
          per_update(of.residual_seconds),
          per_update(of.sync_seconds),
          per_update(of.save_seconds),
          per_update(of.decode_seconds),
          fmt::format("{:.4f}", of.nmse),
          of.value_last ? fmt::format("{} {}", of.metric, figure_text(of.metric, of.value_last))
                        : unknown,
          a_point ? human_bytes(static_cast<std::uint64_t>(*a_point)) : unknown};
}

Line line_of(const RoundSummary& round, const std::string& name, const std::string& started) {
  return {name,
          started,
          human_seconds(round.seconds),
          fmt::format("{}/{}", round.clients_accepted, round.clients_offered),
          human_bytes(round.bytes_up),
          human_bytes(round.bytes_down),
          loss_text(round.train_loss),
          loss_text(round.eval_loss)};
}

/// The cell of the main metric. Where the runs of a table have different ones, it names its own.
std::string main_cell(const RoundSummary& round, bool names_it) {
  const std::string text = figure_text(round.metric, round.eval_metric, round.is_exact);
  return names_it && round.eval_metric ? fmt::format("{} {}", round.metric, text) : text;
}

Line line_of(const ClientRecord& client) {
  const std::string& serial = client.certificate_serial;
  return {client.name,
          utc_time(client.enrolled_at),
          utc_time(client.last_seen_at, "never"),
          serial.empty() ? unknown : serial,
          utc_time(client.revoked_at, "no"),
          client.evaluator ? "evaluator" : "trainer",
          client.examples_max == 0 ? "" : fmt::format("{}", client.examples_max)};
}

RoundSummary total_of(const std::vector<RoundSummary>& rounds) {
  RoundSummary total;
  for (const RoundSummary& round : rounds) {
    total.seconds += round.seconds;
    total.clients_offered += round.clients_offered;
    total.clients_accepted += round.clients_accepted;
    total.bytes_up += round.bytes_up;
    total.bytes_down += round.bytes_down;
    if (round.train_loss) total.train_loss = round.train_loss;
    if (round.eval_loss) total.eval_loss = round.eval_loss;
    if (round.eval_accuracy) total.eval_accuracy = round.eval_accuracy;
    if (round.own_accuracy) total.own_accuracy = round.own_accuracy;
    if (round.own_metric) total.own_metric = round.own_metric;
    total.metric = round.metric;
    if (!round.eval_metric) continue;
    total.eval_metric = round.eval_metric;
    total.is_exact = round.is_exact;
  }
  return total;
}

/// Adds a column with a mark, if one of the rounds has one. The first of the lines has the titles.
void mark_best(const std::vector<MarkedRound>& rounds, std::vector<Line>& lines) {
  if (std::ranges::none_of(rounds, &MarkedRound::is_best)) return;
  lines.front().emplace_back("");
  for (std::size_t i = 0; i < rounds.size(); ++i)
    if (rounds[i].is_best) lines[i + 1].emplace_back("best");
}

/// The line below the rounds of one run.
std::string best_line(const BestVersion& best) {
  return fmt::format("best: {}{}\n", printable(best_text(best)),
                     best.is_kept ? "" : "; its model is not kept");
}

std::string table_of(const std::vector<RoundSummary>& rounds, const BestVersions& best) {
  const bool one_run = std::all_of(rounds.begin(), rounds.end(), [&](const RoundSummary& round) {
    return round.run == rounds.front().run;
  });
  const bool one_metric = std::all_of(rounds.begin(), rounds.end(), [&](const RoundSummary& round) {
    return round.metric == rounds.front().metric;
  });
  std::vector<Line> lines{
      {"round", "started (UTC)", "time", "clients", "up", "down", "train loss", "eval loss"}};
  std::vector<RoundSummary> all = rounds;
  all.push_back(total_of(rounds));
  for (const RoundSummary& round : rounds) {
    const std::string name =
        one_run ? fmt::format("{}", round.round) : fmt::format("{}:{}", round.run, round.round);
    lines.push_back(line_of(round, name, utc_time(round.started_at)));
  }
  lines.push_back(line_of(all.back(), "total", ""));
  // The loss has a column already.
  if (!one_metric || rounds.front().metric != loss_name) {
    lines.front().push_back(one_metric ? rounds.front().metric : "metric");
    for (std::size_t i = 0; i < all.size(); ++i)
      lines[i + 1].push_back(main_cell(all[i], !one_metric));
  }
  if (all.back().own_metric) {
    lines.front().emplace_back("own model");
    for (std::size_t i = 0; i < all.size(); ++i)
      lines[i + 1].push_back(figure_text(all[i].metric, all[i].own_metric));
  }
  mark_best(marked(rounds, best), lines);
  const auto of_run = best.find(rounds.front().run);
  const bool tells = one_run && of_run != best.end();
  return align_cells(std::move(lines), 2) + (tells ? best_line(of_run->second) : "");
}

/// The first `left` columns are text.
template <class Row>
std::string table_of(Line titles, const std::vector<Row>& rows, std::size_t left) {
  std::vector<Line> lines{std::move(titles)};
  for (const Row& row : rows) lines.push_back(line_of(row));
  return align_cells(std::move(lines), left);
}

/// JSON, or CSV with the same names and the same numbers.
template <class Row>
std::string machine_text(const std::vector<Row>& rows, Format format) {
  Json objects = Json::array();
  for (const Row& row : rows) objects.push_back(object_of(row));
  // Names come from people. json_text() replaces what is not UTF-8, so this can't throw.
  if (format == Format::json) return json_text(objects, 2) + "\n";
  Line columns;
  const Json any = object_of(Row());
  for (const auto& [name, value] : any.items()) columns.push_back(name);
  std::string text = fmt::format("{}\n", fmt::join(columns, ","));
  for (const Json& object : objects) {
    Line fields;
    for (const Json& value : object) {
      fields.push_back(value.is_null()     ? ""
                       : value.is_string() ? csv_field(value.get<std::string>())
                                           : csv_field(json_text(value)));
    }
    text += fmt::format("{}\n", fmt::join(fields, ","));
  }
  return text;
}

}  // namespace

std::string format_rows(const std::vector<RoundSummary>& rounds, const BestVersions& best,
                        Format format) {
  if (format != Format::table) return machine_text(marked(rounds, best), format);
  if (rounds.empty()) return "no round is finished yet\n";
  return table_of(rounds, best);
}

std::string format_rows(const std::vector<MetricSummary>& metrics, Format format) {
  if (format != Format::table) return machine_text(metrics, format);
  if (metrics.empty()) return "nothing is measured yet\n";
  return table_of({"version", "metric", "value", "measured by", "examples"}, metrics, 2);
}

std::string format_rows(const std::vector<CodecSummary>& codecs, Format format) {
  if (format != Format::table) return machine_text(codecs, format);
  if (codecs.empty()) return "no update was accepted yet\n";
  return table_of({"codec", "run", "updates", "fp32", "sent", "ratio", "encode", "residual", "sync",
                   "save", "decode", "NMSE", "measured last", "traffic a point"},
                  codecs, 1);
}

std::string format_rows(const std::vector<CodecAsked>& asked, Format format) {
  if (format != Format::table) return machine_text(asked, format);
  if (asked.empty()) return "no codec was chosen: --codec is not auto, or no round has begun\n";
  return table_of({"round", "client", "codec", "state", "sent", "ready after", "upload", "why"},
                  asked, 8);
}

std::string format_rows(const std::vector<EventRecord>& events, Format format) {
  if (format != Format::table) return machine_text(events, format);
  if (events.empty()) return "nothing has happened yet\n";
  return table_of({"time (UTC)", "level", "event"}, events, 3);
}

std::string format_event(const EventRecord& event, Format format) {
  FL_ASSERT(format != Format::csv);
  if (format == Format::json) return json_text(object_of(event)) + "\n";
  constexpr std::size_t level_width = 7;  // As wide as "warning", the longest.
  const Line line = line_of(event);
  return fmt::format("{}  {:<{}}  {}\n", line[0], line[1], level_width, line[2]);
}

std::string format_rows(const std::vector<AuditRecord>& rows, Format format) {
  if (format != Format::table) return machine_text(rows, format);
  if (rows.empty()) return "nobody has come in or was kept out yet\n";
  return table_of({"time (UTC)", "what", "who", "client", "details"}, rows, 5);
}

std::string format_rows(const std::vector<ClientRecord>& clients, Format format) {
  if (format != Format::table) return machine_text(clients, format);
  if (clients.empty()) return "no client is enrolled yet\n";
  return table_of({"name", "enrolled (UTC)", "last seen", "certificate serial", "revoked", "role",
                   "examples at most"},
                  clients, 6);
}

std::string format_rows(const std::vector<OperatorRecord>& operators, Format format) {
  if (format != Format::table) return machine_text(operators, format);
  if (operators.empty()) return "there is no operator: the admin pages are read-only\n";
  return table_of({"name", "role", "since (UTC)", "revoked"}, operators, 4);
}

std::string format_rows(const std::vector<RunSummary>& runs, Format format) {
  if (format != Format::table) return machine_text(runs, format);
  if (runs.empty()) return "there is no run yet\n";
  return table_of({"run", "model", "method", "codec", "state", "rounds", "made (UTC)", "key"}, runs,
                  8);
}

std::string format_run_header(const RunRecord& run) {
  return fmt::format("{}: {}\n{} rounds wanted, seed {}, key {}, started {} UTC\n",
                     to_text(name_of(run)), to_text(run.state), run.rounds_total, run.seed, run.key,
                     utc_time(run.started_at));
}

}  // namespace fl::server
