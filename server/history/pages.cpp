// SPDX-License-Identifier: Apache-2.0
#include "server/history/pages.hpp"

#include "server/history/sqlite.hpp"
#include "server/history/summaries.hpp"
#include "server/history/tables.hpp"

#include <fmt/format.h>

#include <array>
#include <limits>
#include <utility>

namespace fl::server {

namespace {

/// The number of newest rounds that newest_uploads() looks at.
constexpr Round pace_rounds = 5;

std::string_view levels_from(EventLevel level) {
  switch (level) {
    case EventLevel::info: return "'info', 'notice', 'warning', 'error'";
    case EventLevel::notice: return "'notice', 'warning', 'error'";
    case EventLevel::warning: return "'warning', 'error'";
    case EventLevel::error: return "'error'";
  }
  return "";
}

/// Reads a record of `table` from the columns behind the first `before`.
template <class Record>
Result<void> read_columns(const Table<Record>& table, const Row& row, int before, Record& record) {
  for (const auto& each : table.columns) FL_CHECK(each.read(row, before++, record));
  return {};
}

template <class Record>
std::string names_of(const Table<Record>& table) {
  std::string names;
  for (const auto& each : table.columns) add_to_list(names, each.name);
  return names;
}

/// Makes a reader of rows with the id and then the columns of the table.
template <class Found, class Record>
auto reader_after_id(Record Found::*record, const Table<Record>& table) {
  return [record, &table](const Row& row) -> Result<Found> {
    Found found;
    found.id = row.integer(0);
    FL_CHECK(read_columns(table, row, 1, found.*record));
    return found;
  };
}

}  // namespace

Result<std::vector<RunRow>> Pages::runs(RunId before, int runs_max, std::uint32_t clients_min) {
  return db_.read([&]() -> Result<std::vector<RunRow>> {
    FL_TRY(const auto runs,
           db_.query(run_table.select("WHERE ?1 = 0 OR id < ?1 ORDER BY id DESC LIMIT ?2"),
                     run_table.reader(), before, runs_max));
    std::vector<RunRow> rows;
    for (const RunRecord& run : runs) {
      RunRow& row = rows.emplace_back();
      row.run = run;
      // This reads all rounds of the run.
      const auto note_rounds = [&row](const Row& read) {
        row.rounds_closed = static_cast<Round>(read.integer(0));
        row.seconds = read.optional_real(1).value_or(0);
        row.bytes_up = unsigned_of(read, 2);
        row.bytes_down = unsigned_of(read, 3);
        return true;
      };
      FL_CHECK(
          db_.query("SELECT count(*), sum(ended_at - started_at), sum(bytes_up), sum(bytes_down)"
                    " FROM round WHERE run_id = ?1 AND ended_at IS NOT NULL",
                    note_rounds, run.id));
      FL_TRY(row.values, metric_ends(run.id, clients_min));
    }
    return rows;
  });
}

Result<MetricEnds> Pages::metric_ends(RunId run, std::uint32_t clients_min) {
  MetricEnds ends;
  FL_TRY(const auto metric, db_.find(
                                "SELECT name FROM run_metric WHERE run_id = ?1",
                                [](const Row& read) { return read.text(0); }, run));
  ends.metric = metric.value_or("");
  const auto note_value = [&ends](const Row& read) {
    (read.integer(1) == 0 ? ends.first : ends.last) = read.optional_real(0);
    return true;
  };
  for (const int is_last : {0, 1}) {
    FL_CHECK(
        db_.query(fmt::format("SELECT value, ?3 FROM evaluation WHERE run_id = ?1 AND name = ?2"
                              " AND (evaluator = 1 OR clients >= ?4)"
                              " AND version = (SELECT {}(version) FROM metric"
                              " WHERE run_id = ?1 AND name = ?2 AND value IS NOT NULL)",
                              is_last != 0 ? "max" : "min"),
                  note_value, run, ends.metric, is_last, clients_min));
  }
  return ends;
}

Result<std::vector<RoundSummary>> Pages::rounds(RunId run, Round after, int rounds_max,
                                                std::uint32_t clients_min) {
  FL_TRY(auto rounds, db_.query(round_page.select("WHERE r.run_id = ?1 AND r.round > ?2"
                                                  " AND r.ended_at IS NOT NULL"
                                                  " ORDER BY r.round LIMIT ?3"),
                                round_page.reader(), run, after, rounds_max));
  FL_CHECK(summaries_.add_evaluations(rounds, clients_min));
  for (RoundSummary& round : rounds)
    if (round.clients_accepted < clients_min) round.train_loss.reset();
  return rounds;
}

Result<std::optional<RoundRow>> Pages::round(RunId run, std::optional<Round> round) {
  const auto read = [](const Row& row) {
    return RoundRow{.round = static_cast<Round>(row.integer(0)),
                    .started_at = row.real(1),
                    .ended_at = row.optional_real(2).value_or(0),
                    .target = static_cast<std::uint32_t>(row.integer(3))};
  };
  return db_.find(
      "SELECT round, started_at, ended_at, target FROM round"
      " WHERE run_id = ?1 AND (?2 IS NULL OR round = ?2) ORDER BY round DESC LIMIT 1",
      read, run, round ? std::optional<std::int64_t>(*round) : std::nullopt);
}

Result<std::vector<TaskRow>> Pages::tasks(RunId run, Round round, TaskId after, int tasks_max) {
  const auto read = [](const Row& row) -> Result<TaskRow> {
    TaskRow found;
    found.offered_at = row.real(0);
    found.decided_at = row.optional_real(1).value_or(0);
    found.bytes_up = unsigned_of(row, 2);
    found.bytes_down = unsigned_of(row, 3);
    FL_CHECK(read_columns(task_table, row, 4, found.task));
    return found;
  };
  return db_.query(fmt::format("SELECT offered_at, decided_at, bytes_up, bytes_down, {} FROM task"
                               " WHERE run_id = ?1 AND round = ?2 AND id > ?3 ORDER BY id LIMIT ?4",
                               names_of(task_table)),
                   read, run, round, number_of(after), tasks_max);
}

Result<std::vector<SpreadFigures>> Pages::spread(RunId run, Round round) {
  std::vector<SpreadFigures> figures;
  constexpr std::array<std::pair<std::string_view, std::string_view>, 7> columns{
      {{"training loss", "loss"},
       {"norm of the update", "nullif(norm, 0)"},
       {"cosine with the round's mean", "cosine"},
       {"training time", "nullif(train_seconds, 0)"},
       {"coding error", "iif(raw_bytes > 0, nmse, NULL)"},
       {"upload speed", "update_bytes / nullif(upload_seconds, 0)"},
       {"bytes of the update", "nullif(update_bytes, 0)"}}};
  for (const auto& [name, column] : columns) {
    FL_TRY(auto values, db_.query(
                            fmt::format("SELECT {0} FROM task WHERE run_id = ?1 AND round = ?2"
                                        " AND state = 'accepted' AND {0} IS NOT NULL ORDER BY 1",
                                        column),
                            [](const Row& row) { return row.real(0); }, run, round));
    figures.push_back({std::string(name), std::move(values)});
  }
  const auto note = [&figures](const Row& row) {
    const std::string name = "trainers' " + row.text(0);
    if (figures.back().name != name) figures.push_back({name, {}});
    figures.back().values.push_back(row.real(1));
    return true;
  };
  FL_CHECK(
      db_.query("SELECT name, value FROM metric WHERE run_id = ?1 AND version = ?2"
                " AND evaluator = 0 AND value IS NOT NULL ORDER BY name, value",
                note, run, round));
  return figures;
}

Result<std::vector<VersionRow>> Pages::versions(RunId run, std::optional<Version> before,
                                                int versions_max) {
  const auto read = [](const Row& row) -> Result<VersionRow> {
    VersionRow found;
    found.made_at = row.real(0);
    FL_CHECK(read_columns(checkpoint_table, row, 1, found.checkpoint));
    return found;
  };
  return db_.query(
      fmt::format("SELECT made_at, {} FROM checkpoint WHERE run_id = ?1 AND dropped_at IS NULL"
                  " AND (?2 IS NULL OR version < ?2) ORDER BY version DESC LIMIT ?3",
                  names_of(checkpoint_table)),
      read, run, before ? std::optional<std::int64_t>(*before) : std::nullopt, versions_max);
}

Result<std::vector<CodecSummary>> Pages::codecs(RunId run, std::uint32_t clients_min) {
  FL_TRY(auto found, summaries_.codecs(run));
  FL_TRY(const MetricEnds ends, metric_ends(run, clients_min));
  std::map<std::string, std::uint64_t> clients;  // Keyed by codec.
  const auto note_clients = [&clients](const Row& row) {
    clients[row.text(0)] = unsigned_of(row, 1);
    return true;
  };
  FL_CHECK(
      db_.query("SELECT codec, count(DISTINCT client) FROM task WHERE run_id = ?1"
                " AND state = 'accepted' GROUP BY codec",
                note_clients, run));
  for (CodecSummary& codec : found) {
    codec.value_first = ends.first;
    codec.value_last = ends.last;
    if (clients[codec.codec] < clients_min) codec.nmse = std::numeric_limits<double>::quiet_NaN();
  }
  return found;
}

Result<std::vector<CodecAsked>> Pages::codecs_asked(RunId run, Round after, int rounds_max) {
  return db_.query(
      codec_asked_table.select("WHERE codec_reason <> '' AND run_id = ?1 AND round > ?2"
                               " AND round <= ?2 + ?3 ORDER BY id"),
      codec_asked_table.reader(), run, after, rounds_max);
}

Result<std::vector<ClientRecord>> Pages::clients(const std::string& after, const std::string& text,
                                                 int clients_max) {
  return db_.query(
      client_table.select("WHERE name > ?1 AND (?2 = '' OR instr(lower(name), lower(?2)) > 0)"
                          " ORDER BY name LIMIT ?3"),
      client_table.reader(), after, text, clients_max);
}

Result<std::size_t> Pages::client_count() {
  FL_TRY(const auto found, db_.find("SELECT count(*) FROM client", [](const Row& row) {
    return static_cast<std::size_t>(row.integer(0));
  }));
  return *found;
}

Result<std::map<std::string, NewestUpload>> Pages::newest_uploads(RunId run) {
  std::map<std::string, NewestUpload> uploads;
  // Newer ones come later, and replace those before.
  const auto note = [&uploads](const Row& row) {
    uploads[row.text(0)] = {row.real(1), static_cast<std::uint64_t>(row.integer(2))};
    return true;
  };
  FL_CHECK(
      db_.query("SELECT client, update_bytes / upload_seconds, examples FROM task WHERE run_id = ?1"
                " AND round > (SELECT max(round) FROM round WHERE run_id = ?1) - ?2"
                " AND upload_seconds > 0 ORDER BY round, id",
                note, run, pace_rounds));
  return uploads;
}

Result<std::vector<EventRow>> Pages::events(const LogQuery& query) {
  return db_.query(
      fmt::format("SELECT id, {} FROM event WHERE (?1 = 0 OR id < ?1)"
                  " AND (?2 IS NULL OR run_id IS NULL OR run_id = ?2) AND level IN ({})"
                  " AND (?3 = '' OR instr(lower(text), lower(?3)) > 0) ORDER BY id DESC LIMIT ?4",
                  names_of(event_table), levels_from(query.level)),
      reader_after_id(&EventRow::event, event_table), query.before, query.run, query.text,
      query.limit);
}

Result<std::vector<AuditRow>> Pages::audit(const LogQuery& query) {
  const std::string kind = query.kind ? std::string(to_text(*query.kind)) : "";
  return db_.query(
      fmt::format("SELECT id, {} FROM audit WHERE (?1 = 0 OR id < ?1) AND (?2 = '' OR kind = ?2)"
                  " AND (?3 = '' OR instr(lower(who || ' ' || client || ' ' || text), lower(?3))"
                  " > 0)"
                  " ORDER BY id DESC LIMIT ?4",
                  names_of(audit_table)),
      reader_after_id(&AuditRow::audit, audit_table), query.before, kind, query.text, query.limit);
}

Result<NewestRows> Pages::newest_rows() {
  FL_TRY(
      const auto found,
      db_.find(
          "SELECT (SELECT ifnull(max(id), 0) FROM event), (SELECT ifnull(max(id), 0) FROM audit)",
          [](const Row& row) {
            return NewestRows{row.integer(0), row.integer(1)};
          }));
  return *found;
}

}  // namespace fl::server
