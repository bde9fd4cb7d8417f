// SPDX-License-Identifier: Apache-2.0
#include "server/history/events.hpp"

#include "server/history/sqlite.hpp"
#include "server/history/tables.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/base/printable.hpp"

#include <fmt/format.h>

namespace fl::server {

Result<void> Events::add(RunId run, EventLevel level, std::string_view text) {
  return db_.write([&]() -> Result<void> {
    FL_TRY(const double now, db_.now());
    FL_CHECK(event_table.insert(
        db_, EventRecord{run, now, level, printable(text, limits::event_bytes_max)}));
    FL_CHECK(db_.run("DELETE FROM event WHERE id <= (SELECT max(id) FROM event) - ?1", rows_max));
    return {};
  });
}

void Events::note(RunId run, EventLevel level, std::string_view text) {
  if (auto written = add(run, level, text); !written)
    log_warn("this event is not in the history: {}", written.error().message());
}

Result<std::vector<EventRecord>> Events::all(std::optional<RunId> run) {
  return db_.query(
      event_table.select("WHERE ?1 IS NULL OR run_id IS NULL OR run_id = ?1 ORDER BY id"),
      event_table.reader(), run);
}

Result<std::vector<EventRecord>> Events::since(std::int64_t& seen, std::optional<RunId> run) {
  FL_TRY(const auto newest, db_.find("SELECT coalesce(max(id), 0) FROM event",
                                     [](const Row& row) { return row.integer(0); }));
  FL_TRY(auto events,
         db_.query(event_table.select("WHERE (?1 IS NULL OR run_id IS NULL OR run_id = ?1)"
                                      " AND id > ?2 AND id <= ?3 ORDER BY id"),
                   event_table.reader(), run, seen, newest.value()));
  seen = newest.value();
  return events;
}

}  // namespace fl::server
