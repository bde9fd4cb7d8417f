// SPDX-License-Identifier: Apache-2.0
#include "server/admin/pages/history_pages.hpp"

#include "server/admin/pages/json_values.hpp"
#include "server/admin/pages/remedies.hpp"
#include "server/history/client_figures.hpp"
#include "server/history/format.hpp"
#include "server/history/rows.hpp"
#include "server/run/best_of_run.hpp"
#include "shared/base/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <numeric>

namespace fl::server {

namespace {

using nlohmann::json;

constexpr std::int64_t any = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t any_round = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t groups_max = 5;

/// The run that a page is about, or none: then the page is empty.
Result<std::optional<RunRecord>> run_of(Runs& runs, const AddressQuery& query) {
  FL_TRY(const auto asked, query.number("run", 1, any));
  if (!asked) return runs.shown();
  FL_TRY(auto found, runs.find(*asked));
  if (!found) return Error(Errc::not_found, fmt::format("there is no run {}", *asked));
  return found;
}

Result<int> limit_of(const AddressQuery& query, int most) {
  FL_TRY(const auto limit, query.number("limit", 1, most));
  return static_cast<int>(limit.value_or(most));
}

/// {"<name>": rows, "next": the key of the last row, if the page is full}.
template <class Rows, class Key>
json page_of(const char* name, json rows, const Rows& read, int limit, Key key) {
  json page{{name, std::move(rows)}, {"next", nullptr}};
  if (!read.empty() && read.size() == static_cast<std::size_t>(limit))
    page["next"] = key(read.back());
  return page;
}

/// The run's best version, unless too few clients have measured it to be shown. This reads what
/// was measured in the whole run.
Result<std::optional<BestVersion>> shown_best(Store& store, const RunRecord& run,
                                              bool show_clients) {
  FL_TRY(auto best, best_of_run(store, run, Measurements::Of::all));
  const bool is_shown =
      best && (best->by_evaluators || best->clients >= clients_of_a_mean(show_clients));
  return is_shown ? std::move(best) : std::nullopt;
}

/// The best version of a page's run; null if there is none.
Result<json> best_json(Store& store, const std::optional<RunRecord>& run, bool show_clients) {
  if (!run) return json();
  FL_TRY(const auto best, shown_best(store, *run, show_clients));
  if (!best) return json();
  return json{{"version", best->version},
              {"metric", best->figure.name},
              {"value", best->figure.value},
              {"is_exact", best->figure.is_exact},
              {"is_kept", best->is_kept}};
}

// Runs -------------------------------------------------------------------------------------------

json settings_of(const RunRecord& run) {
  json settings = parse_json(run.config_json);
  return settings.is_object() ? settings : json::object();
}

Result<std::string> runs_text(Store& store, const AddressQuery& query, bool show_clients) {
  FL_TRY(const int limit, limit_of(query, limits::admin_page_runs_max));
  FL_TRY(const auto before, query.number("before", 1, any));
  FL_TRY(const auto shown, store.runs().shown());
  FL_TRY(const auto runs,
         store.pages().runs(before.value_or(0), limit, clients_of_a_mean(show_clients)));
  json rows = json::array();
  for (const RunRow& row : runs) {
    rows.push_back({{"id", row.run.id},
                    {"key", row.run.key},
                    {"model", row.run.model},
                    {"state", to_text(row.run.state)},
                    {"started_at", moment(row.run.started_at)},
                    {"queued", row.run.queued},
                    {"early_end", row.run.early_end},
                    {"rounds_total", row.run.rounds_total},
                    {"rounds_closed", row.rounds_closed},
                    {"seconds", row.seconds},
                    {"bytes_up", row.bytes_up},
                    {"bytes_down", row.bytes_down},
                    {"metric", row.values.metric},
                    {"value_first", figure(row.values.first)},
                    {"value_last", figure(row.values.last)},
                    {"settings", settings_of(row.run)}});
  }
  json page = page_of("runs", std::move(rows), runs, limit,
                      [](const RunRow& last) { return json(last.run.id); });
  page["shown"] = shown ? json(shown->id) : json();
  return json_text(page);
}

/// The rounds as compact rows; "columns" names the fields.
Result<std::string> series_text(Store& store, const AddressQuery& query, bool show_clients) {
  FL_TRY(const int limit, limit_of(query, limits::admin_page_rounds_max));
  FL_TRY(const auto after, query.number("after", 0, any_round));
  FL_TRY(const auto run, run_of(store.runs(), query));
  std::vector<RoundSummary> rounds;
  if (run) {
    FL_TRY(rounds, store.pages().rounds(run->id, static_cast<Round>(after.value_or(0)), limit,
                                        clients_of_a_mean(show_clients)));
  }
  json rows = json::array();
  for (const RoundSummary& round : rounds) {
    rows.push_back({round.round, round.started_at, round.seconds, round.clients_offered,
                    round.clients_accepted, round.bytes_up, round.bytes_down,
                    figure(round.train_loss), figure(round.eval_loss), figure(round.eval_metric),
                    round.is_exact});
  }
  json page = page_of("rows", std::move(rows), rounds, limit,
                      [](const RoundSummary& last) { return json(last.round); });
  page["run"] = run ? json(run->id) : json();
  FL_TRY(page["best"], best_json(store, run, show_clients));
  page["metric"] = rounds.empty() ? "" : rounds.front().metric;
  page["columns"] = {"round",    "started_at", "seconds",    "clients_offered", "clients_accepted",
                     "bytes_up", "bytes_down", "train_loss", "eval_loss",       "eval_metric",
                     "is_exact"};
  return json_text(page);
}

/// The run of a page that is an array: an unknown one has no rows.
Result<std::optional<RunId>> run_id_of(Runs& runs, const AddressQuery& query) {
  FL_TRY(const auto asked, query.number("run", 0, any));
  if (asked) return std::optional<RunId>(*asked);
  FL_TRY(const auto shown, runs.shown());
  return shown ? std::optional(shown->id) : std::nullopt;
}

/// An array of the rounds with all their columns.
Result<std::string> rounds_text(Store& store, const AddressQuery& query, bool show_clients) {
  FL_TRY(const int limit, limit_of(query, limits::admin_page_rounds_max));
  FL_TRY(const auto after, query.number("after", 0, any_round));
  FL_TRY(const auto run, run_id_of(store.runs(), query));
  std::vector<RoundSummary> rounds;
  BestVersions marked;
  if (run) {
    FL_TRY(rounds, store.pages().rounds(*run, static_cast<Round>(after.value_or(0)), limit,
                                        clients_of_a_mean(show_clients)));
    FL_TRY(const auto record, store.runs().find(*run));
    if (record) {
      FL_TRY(const auto best, shown_best(store, *record, show_clients));
      if (best) marked[*run] = *best;
    }
  }
  return format_rows(rounds, marked, Format::json);
}

/// An array of what --codec auto chose in each round.
Result<std::string> choices_text(Store& store, const AddressQuery& query, bool) {
  FL_TRY(const int limit, limit_of(query, limits::admin_page_choices_max));
  FL_TRY(const auto after, query.number("after", 0, any_round));
  FL_TRY(const auto run, run_id_of(store.runs(), query));
  std::vector<CodecAsked> asked;
  if (run) {
    FL_TRY(asked, store.pages().codecs_asked(*run, static_cast<Round>(after.value_or(0)), limit));
  }
  return format_rows(asked, Format::json);
}

Result<std::string> codecs_text(Store& store, const AddressQuery& query, bool show_clients) {
  FL_TRY(const auto run, run_of(store.runs(), query));
  json rows = json::array();
  if (run) {
    FL_TRY(const auto codecs, store.pages().codecs(run->id, clients_of_a_mean(show_clients)));
    for (const CodecSummary& codec : codecs) {
      rows.push_back({{"codec", codec.codec},
                      {"updates", codec.updates},
                      {"raw_bytes", codec.raw_bytes},
                      {"update_bytes", codec.update_bytes},
                      {"bytes", codec.bytes},
                      {"encode_seconds", codec.encode_seconds},
                      {"save_seconds", codec.save_seconds},
                      {"residual_seconds", codec.residual_seconds},
                      {"digest_seconds", codec.digest_seconds},
                      {"sync_seconds", codec.sync_seconds},
                      {"decode_seconds", codec.decode_seconds},
                      {"nmse", figure(codec.nmse)},
                      {"metric", codec.metric},
                      {"value_first", figure(codec.value_first)},
                      {"value_last", figure(codec.value_last)}});
    }
  }
  return json_text(json{{"run", run ? json(run->id) : json()}, {"codecs", std::move(rows)}});
}

// A round ----------------------------------------------------------------------------------------

json update_json(const TaskRow& row, bool show_clients) {
  const TaskRecord& task = row.task;
  json update{{"task", number_of(task.id)},
              {"client", task.client},
              {"state", to_text(task.state)},
              {"base_version", task.base_version},
              {"offered_at", moment(row.offered_at)},
              {"decided_at", moment(row.decided_at)},
              {"ready_seconds", task.ready_seconds},
              {"train_seconds", task.train_seconds},
              {"encode_seconds", task.encode_seconds},
              {"save_seconds", task.save_seconds},
              {"residual_seconds", task.residual_seconds},
              {"digest_seconds", task.digest_seconds},
              {"sync_seconds", task.sync_seconds},
              {"upload_seconds", task.upload_seconds},
              {"decode_seconds", task.decode_seconds},
              {"seconds", task.seconds},
              {"bytes_up", row.bytes_up},
              {"bytes_down", row.bytes_down},
              {"update_bytes", task.update_bytes},
              {"raw_bytes", task.raw_bytes},
              {"codec", task.codec},
              {"codec_reason", task.codec_reason},
              {"reason", show_clients ? task.reason : without_figures(task.reason)}};
  if (!show_clients) return update;
  const bool is_known = task.state == TaskState::accepted || task.norm > 0;
  update["examples"] = task.examples;
  update["steps"] = task.steps;
  update["loss"] = is_known ? figure(task.loss) : json();
  update["norm"] = is_known ? figure(task.norm) : json();
  update["cosine"] = figure(task.cosine);
  update["nmse"] = is_known ? figure(task.nmse) : json();
  return update;
}

json round_json(const RoundRow& round) {
  return {{"round", round.round},
          {"started_at", moment(round.started_at)},
          {"ended_at", moment(round.ended_at)},
          {"target", round.target}};
}

Result<std::optional<RoundRow>> round_of(Pages& pages, const AddressQuery& query,
                                         const std::optional<RunRecord>& run) {
  FL_TRY(const auto asked, query.number("round", 1, any_round));
  if (!run) return std::optional<RoundRow>();
  FL_TRY(auto found,
         pages.round(run->id, asked ? std::optional(static_cast<Round>(*asked)) : std::nullopt));
  if (asked && !found)
    return Error(Errc::not_found, fmt::format("run {} has no round {}", run->id, *asked));
  return found;
}

Result<std::string> updates_text(Store& store, const AddressQuery& query, bool show_clients) {
  FL_TRY(const int limit, limit_of(query, limits::admin_page_updates_max));
  FL_TRY(const auto after, query.number("after", 0, any));
  FL_TRY(const auto run, run_of(store.runs(), query));
  FL_TRY(const auto round, round_of(store.pages(), query, run));
  std::vector<TaskRow> tasks;
  if (round) {
    FL_TRY(tasks, store.pages().tasks(run->id, round->round, TaskId{after.value_or(0)}, limit));
  }
  json rows = json::array();
  for (const TaskRow& row : tasks) rows.push_back(update_json(row, show_clients));
  json page = page_of("updates", std::move(rows), tasks, limit,
                      [](const TaskRow& last) { return json(number_of(last.task.id)); });
  page["run"] = run ? json(run->id) : json();
  page["round"] = round ? round_json(*round) : json();
  page["shows_clients"] = show_clients;
  return json_text(page);
}

Result<std::string> spread_text(Store& store, const AddressQuery& query, bool) {
  FL_TRY(const auto run, run_of(store.runs(), query));
  FL_TRY(const auto round, round_of(store.pages(), query, run));
  json figures = json::array();
  if (round) {
    FL_TRY(const auto found, store.pages().spread(run->id, round->round));
    for (const SpreadFigures& each : found) {
      const auto means = group_means(each.values, limits::admin_group_min);
      json groups = json::array();
      for (const double mean : means) groups.push_back(figure(mean));
      // The count says nothing of any one client.
      figures.push_back(
          {{"name", each.name}, {"clients", each.values.size()}, {"group_means", groups}});
    }
  }
  return json_text(json{{"run", run ? json(run->id) : json()},
                        {"round", round ? round_json(*round) : json()},
                        {"group_min", limits::admin_group_min},
                        {"figures", std::move(figures)}});
}

// Logs -------------------------------------------------------------------------------------------

Result<LogQuery> log_query(const AddressQuery& query) {
  LogQuery log;
  FL_TRY(log.limit, limit_of(query, limits::admin_page_events_max));
  FL_TRY(const auto before, query.number("before", 1, any));
  FL_TRY(log.run, query.number("run", 1, any));
  log.before = before.value_or(0);
  log.text = query.text("text");
  if (const std::string& level = query.text("level"); !level.empty()) {
    const auto known = event_level_of(level);
    if (!known) return Error(Errc::invalid_input, "level= is info, notice, warning or error");
    log.level = *known;
  }
  if (const std::string& kind = query.text("kind"); !kind.empty()) {
    const auto known = audit_kind_of(kind);
    if (!known) return Error(Errc::invalid_input, "kind= is not one that the audit has");
    log.kind = *known;
  }
  return log;
}

bool contains(std::string_view text, std::string_view part) {
  const auto lower = [](unsigned char c) { return std::tolower(c); };
  const auto equal = [lower](char a, char b) { return lower(a) == lower(b); };
  return std::search(text.begin(), text.end(), part.begin(), part.end(), equal) != text.end() ||
         part.empty();
}

/// The events as they are shown without --admin-show-clients. It searches the shown text: a search
/// of the full text would tell the figures.
Result<std::vector<EventRow>> events_without_figures(Pages& pages, const LogQuery& log) {
  LogQuery all = log;
  all.text.clear();
  if (!log.text.empty()) all.limit = limits::admin_search_events;
  std::vector<EventRow> shown;
  for (;;) {
    FL_TRY(auto events, pages.events(all));
    for (EventRow& row : events) {
      row.event.text = without_figures(std::move(row.event.text));
      if (!contains(row.event.text, log.text)) continue;
      shown.push_back(std::move(row));
      if (shown.size() == static_cast<std::size_t>(log.limit)) return shown;
    }
    if (events.size() < static_cast<std::size_t>(all.limit)) return shown;
    all.before = events.back().id;
  }
}

Result<std::string> log_text(Store& store, const AddressQuery& query, bool show_clients) {
  FL_TRY(const LogQuery log, log_query(query));
  FL_TRY(const auto events,
         show_clients ? store.pages().events(log) : events_without_figures(store.pages(), log));
  json rows = json::array();
  for (const EventRow& row : events) {
    const Remedy* const remedy = find_remedy(row.event.text);
    rows.push_back({{"id", row.id},
                    {"at", row.event.at},
                    {"run_id", row.event.run == 0 ? json() : json(row.event.run)},
                    {"level", to_text(row.event.level)},
                    {"text", row.event.text},
                    {"cause", remedy != nullptr ? json(remedy->cause) : json()},
                    {"remedy", remedy != nullptr ? json(remedy->remedy) : json()}});
  }
  return json_text(page_of("events", std::move(rows), events, log.limit,
                           [](const EventRow& last) { return json(last.id); }));
}

Result<std::string> audit_text(Store& store, const AddressQuery& query, bool) {
  FL_TRY(const LogQuery log, log_query(query));
  FL_TRY(const auto found, store.pages().audit(log));
  json rows = json::array();
  for (const AuditRow& row : found) {
    rows.push_back({{"id", row.id},
                    {"at", row.audit.at},
                    {"kind", to_text(row.audit.kind)},
                    {"who", row.audit.who},
                    {"client", row.audit.client},
                    {"text", row.audit.text}});
  }
  return json_text(page_of("audit", std::move(rows), found, log.limit,
                           [](const AuditRow& last) { return json(last.id); }));
}

// The model --------------------------------------------------------------------------------------

Result<std::string> model_text(Store& store, const AddressQuery& query, bool show_clients) {
  FL_TRY(const int limit, limit_of(query, limits::admin_page_versions_max));
  FL_TRY(const auto before, query.number("before", 0, any_round));
  FL_TRY(const auto run, run_of(store.runs(), query));
  std::vector<VersionRow> versions;
  if (run) {
    const auto bound = before ? std::optional(static_cast<Version>(*before)) : std::nullopt;
    FL_TRY(versions, store.pages().versions(run->id, bound, limit));
  }
  json rows = json::array();
  for (const VersionRow& row : versions) {
    rows.push_back({{"version", row.checkpoint.version},
                    {"made_at", moment(row.made_at)},
                    {"bytes", row.checkpoint.bytes},
                    {"digest", row.checkpoint.digest.hex()},
                    {"delta_bytes", row.checkpoint.delta_bytes}});
  }
  json page = page_of("versions", std::move(rows), versions, limit,
                      [](const VersionRow& last) { return json(last.checkpoint.version); });
  page["run"] = run ? json(run->id) : json();
  FL_TRY(page["best"], best_json(store, run, show_clients));
  page["model"] = run ? run->model : "";
  return json_text(page);
}

constexpr std::array<std::string_view, 2> runs_names{"before", "limit"};
constexpr std::array<std::string_view, 3> rounds_names{"run", "after", "limit"};
constexpr std::array<std::string_view, 1> codecs_names{"run"};
constexpr std::array<std::string_view, 4> updates_names{"run", "round", "after", "limit"};
constexpr std::array<std::string_view, 2> spread_names{"run", "round"};
constexpr std::array<std::string_view, 5> log_names{"run", "before", "limit", "level", "text"};
constexpr std::array<std::string_view, 4> audit_names{"before", "limit", "kind", "text"};
constexpr std::array<std::string_view, 3> model_names{"run", "before", "limit"};

constexpr std::array pages{HistoryPage{"/api/runs", runs_names, runs_text},
                           HistoryPage{"/api/rounds", rounds_names, rounds_text},
                           HistoryPage{"/api/choices", rounds_names, choices_text},
                           HistoryPage{"/api/series", rounds_names, series_text},
                           HistoryPage{"/api/codecs", codecs_names, codecs_text},
                           HistoryPage{"/api/updates", updates_names, updates_text},
                           HistoryPage{"/api/spread", spread_names, spread_text},
                           HistoryPage{"/api/log", log_names, log_text},
                           HistoryPage{"/api/audit", audit_names, audit_text},
                           HistoryPage{"/api/model", model_names, model_text}};

}  // namespace

std::span<const HistoryPage> history_pages() { return pages; }

std::vector<double> group_means(std::vector<double> values, std::size_t group_min) {
  std::ranges::sort(values);
  const std::size_t groups = std::min(groups_max, values.size() / group_min);
  std::vector<double> means;
  for (std::size_t group = 0; group < groups; ++group) {
    const auto first = values.begin() + static_cast<std::ptrdiff_t>(group * values.size() / groups);
    const auto last =
        values.begin() + static_cast<std::ptrdiff_t>((group + 1) * values.size() / groups);
    means.push_back(std::accumulate(first, last, 0.0) / static_cast<double>(last - first));
  }
  return means;
}

}  // namespace fl::server
