// SPDX-License-Identifier: Apache-2.0
// Reads the history for the admin pages, page by page: a query looks at a part of a table that does
// not grow with the history, except where a comment says so. `clients_min`: figures that fewer
// clients have made are left out, but not those of evaluators. Threads, transactions and errors are
// as store.hpp says.
#pragma once

#include "server/history/page_records.hpp"
#include "server/history/records.hpp"
#include "shared/base/error.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fl::server {

class Database;
class Summaries;

class Pages {
 public:
  Pages(Database& db, Summaries& summaries) : db_(db), summaries_(summaries) {}

  /// Newest first: the runs before `before` (0: all).
  [[nodiscard]] Result<std::vector<RunRow>> runs(RunId before, int runs_max,
                                                 std::uint32_t clients_min = 0);
  /// The closed rounds of the run after `after`.
  [[nodiscard]] Result<std::vector<RoundSummary>> rounds(RunId run, Round after, int rounds_max,
                                                         std::uint32_t clients_min = 0);
  /// The run's newest round, or this one.
  [[nodiscard]] Result<std::optional<RoundRow>> round(RunId run, std::optional<Round> round);
  /// The tasks of a round after `after`, by id.
  [[nodiscard]] Result<std::vector<TaskRow>> tasks(RunId run, Round round, TaskId after,
                                                   int tasks_max);
  /// The figures of the accepted updates of a round, one value for each client: the training loss,
  /// the norm, how long it took, and what trainers measured of the version.
  [[nodiscard]] Result<std::vector<SpreadFigures>> spread(RunId run, Round round);
  /// Kept versions, newest first, of those before `before` (none: all).
  [[nodiscard]] Result<std::vector<VersionRow>> versions(RunId run, std::optional<Version> before,
                                                         int versions_max);
  /// All codecs of the run.
  [[nodiscard]] Result<std::vector<CodecSummary>> codecs(RunId run, std::uint32_t clients_min);
  /// Which codecs clients were asked for in the `rounds_max` rounds after `after`.
  [[nodiscard]] Result<std::vector<CodecAsked>> codecs_asked(RunId run, Round after,
                                                             int rounds_max);
  /// Clients by name, of those after `after` with `text` in their name.
  [[nodiscard]] Result<std::vector<ClientRecord>> clients(const std::string& after,
                                                          const std::string& text, int clients_max);
  [[nodiscard]] Result<std::size_t> client_count();
  /// Each client's newest upload in the run's last rounds, by client.
  [[nodiscard]] Result<std::map<std::string, NewestUpload>> newest_uploads(RunId run);
  /// Newest first.
  [[nodiscard]] Result<std::vector<EventRow>> events(const LogQuery& query);
  /// Newest first.
  [[nodiscard]] Result<std::vector<AuditRow>> audit(const LogQuery& query);
  [[nodiscard]] Result<NewestRows> newest_rows();

 private:
  Result<MetricEnds> metric_ends(RunId run, std::uint32_t clients_min);

  Database& db_;
  Summaries& summaries_;
};

}  // namespace fl::server
