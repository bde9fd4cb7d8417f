// SPDX-License-Identifier: Apache-2.0
// Reads the spans of recorded rounds from the history, over a connection of its own that can't
// write, a few tasks at a time: so a round with thousands of clients takes no more memory than one
// with ten. One thread at a time.
#pragma once

#include "server/history/recorded_rounds.hpp"
#include "server/history/store.hpp"
#include "server/traces/round_spans.hpp"

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

namespace fl::server {

/// The content of one request: spans of one round or of several.
struct TraceBatch {
  std::vector<Span> spans;
  std::vector<RecordedRound> rounds;  // The rounds that the spans belong to.
  std::vector<RecordedRound> lost;    // Rounds whose remaining spans could not be read.
  std::optional<Error> trouble;       // Why they could not be read.
};

class TraceReader {
 public:
  /// `by_client`: with the clients' names.
  static Result<std::unique_ptr<TraceReader>> open(const std::filesystem::path& history,
                                                   bool by_client);

  /// Reads up to limits::otlp_spans_max spans. The next call goes on there, with the rest of a
  /// round or the next one of the queue. A batch without spans and trouble: there is nothing to
  /// send.
  [[nodiscard]] TraceBatch next(RecordedRounds& rounds);

 private:
  /// The round that is being read.
  struct Current {
    RecordedRound recorded;
    RunRecord run;
    Digest trace;
    TaskId after = TaskId::none;  // The last task that was read.
    TaskCounts counts{};
  };

  TraceReader(std::unique_ptr<Store> store, bool by_client)
      : store_(std::move(store)), by_client_(by_client) {}
  Result<void> begin(const RecordedRound& recorded);
  Result<void> read_on(std::vector<Span>& spans);

  std::unique_ptr<Store> store_;
  const bool by_client_;
  std::optional<Current> current_;
};

}  // namespace fl::server
