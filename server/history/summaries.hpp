// SPDX-License-Identifier: Apache-2.0
// Reads what runs cost and brought, as a whole: for tables, plots and comparisons. pages.hpp reads
// parts of it. Threads, transactions and errors are as store.hpp says.
#pragma once

#include "server/history/records.hpp"
#include "shared/base/error.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace fl::server {

class Database;

/// Without a run the functions read all runs.
class Summaries {
 public:
  explicit Summaries(Database& db) : db_(db) {}

  /// The closed rounds, by run and round.
  [[nodiscard]] Result<std::vector<RoundSummary>> rounds(std::optional<RunId> run);
  /// Sorted by run, version and name.
  [[nodiscard]] Result<std::vector<MetricSummary>> metrics(std::optional<RunId> run);
  [[nodiscard]] Result<std::vector<CodecSummary>> codecs(std::optional<RunId> run);
  [[nodiscard]] Result<std::vector<CodecAsked>> codecs_asked(std::optional<RunId> run);

  /// Sets the figures of evaluations in rows of rounds, which are in their order: for all of them
  /// at once, as a look into the view for each round would cost much more. Leaves out figures that
  /// fewer than `clients_min` clients have made, but not those of evaluators.
  [[nodiscard]] Result<void> add_evaluations(std::vector<RoundSummary>& rounds,
                                             std::uint32_t clients_min);

 private:
  Database& db_;
};

}  // namespace fl::server
