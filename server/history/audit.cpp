// SPDX-License-Identifier: Apache-2.0
#include "server/history/audit.hpp"

#include "server/history/sqlite.hpp"
#include "server/history/tables.hpp"

#include <fmt/format.h>

namespace fl::server {

Result<void> Audit::add(AuditKind kind, std::string_view client, std::string_view text,
                        std::string_view who) {
  if (!passes(kind, client, who)) return {};
  const std::string_view actor = !who.empty() ? who : !client.empty() ? client : a_stranger;
  return db_.write([&] { return note(kind, client, text, actor); });
}

Result<void> Audit::add_counts() {
  const auto counts = lines_.take_left_out();
  if (counts.empty()) return {};
  const auto written = db_.write([&]() -> Result<void> {
    for (const auto& count : counts)
      FL_CHECK(note(AuditKind::repeats, "", to_string(count), the_server));
    return {};
  });
  if (!written) lines_.put_back(counts);
  return written;
}

Result<void> Audit::add_control(std::string_view who, std::string_view client,
                                std::string_view text) {
  return db_.write([&] { return note(AuditKind::control, client, text, who); });
}

Result<std::int64_t> Audit::rows() {
  FL_TRY(const auto rows, db_.find("SELECT ifnull(max(id), 0) FROM audit",
                                   [](const Row& row) { return row.integer(0); }));
  return *rows;
}

Result<std::vector<AuditRecord>> Audit::all(const std::string& client) {
  return db_.query(audit_table.select("WHERE ?1 = '' OR client = ?1 ORDER BY id"),
                   audit_table.reader(), client);
}

Result<void> Audit::note(AuditKind kind, std::string_view client, std::string_view text,
                         std::string_view who) {
  FL_TRY(const double now, db_.now());
  return audit_table.insert(
      db_, AuditRecord{now, kind, std::string(client), std::string(text), std::string(who)});
}

bool Audit::passes(AuditKind kind, std::string_view client, std::string_view who) {
  const std::string whose = !who.empty()     ? std::string(who)
                            : client.empty() ? std::string(a_stranger)
                                             : fmt::format("'{}'", client);
  return lines_.passes(fmt::format("{} of {}", to_text(kind), whose));
}

}  // namespace fl::server
