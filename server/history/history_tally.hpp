// SPDX-License-Identifier: Apache-2.0
// Adds up what the rounds that close have cost and brought, for the metrics: as counters and
// histograms from when it was opened. It reads the history over a connection of its own, only what
// is new each time. One thread at a time.
#pragma once

#include "shared/base/error.hpp"

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

namespace fl::server {

class Database;

/// Counts of values by upper bound, as Prometheus has them.
struct SecondsHistogram {
  static constexpr std::array bounds{0.001, 0.003, 0.01, 0.03,  0.1,   0.3,    1.0,
                                     3.0,   10.0,  30.0, 100.0, 300.0, 1000.0, 3600.0};
  std::array<std::uint64_t, bounds.size()> counts{};  // Up to each bound, not cumulative.
  std::uint64_t count = 0;  // All values, also those above the last bound.
  double sum = 0;

  void add(double seconds);
};

struct HistoryTally {
  struct Codec {
    std::uint64_t updates = 0;
    std::uint64_t bytes = 0;      // The updates as they were sent.
    std::uint64_t raw_bytes = 0;  // These updates in fp32.
  };
  struct Client {
    std::map<std::string, std::uint64_t> updates;  // Keyed by verdict.
    std::uint64_t bytes_up = 0;
    std::uint64_t bytes_down = 0;
  };
  SecondsHistogram round_s;
  SecondsHistogram upload_s;
  SecondsHistogram train_s;
  std::uint64_t bytes_up = 0;
  std::uint64_t bytes_down = 0;
  std::map<std::string, std::uint64_t> updates{// Keyed by verdict.
                                               {"accepted", 0},
                                               {"refused", 0},
                                               {"late", 0},
                                               {"lost", 0}};
  std::map<std::string, std::uint64_t> events{
      {"info", 0}, {"warning", 0}, {"error", 0}};  // Keyed by level.
  std::map<std::string, Codec> codecs;
  std::map<std::string, Client> clients;  // Only if asked for.
  double last_round_at = 0;               // Unix seconds; 0: none closed yet.
};

class HistoryReader {
 public:
  /// Begins behind what the history has now.
  static Result<std::unique_ptr<HistoryReader>> open(const std::filesystem::path& history,
                                                     bool by_client);
  ~HistoryReader();

  /// Adds what has come since the last call. After an error the next call goes on there.
  [[nodiscard]] Result<void> catch_up();
  [[nodiscard]] const HistoryTally& tally() const { return tally_; }

 private:
  HistoryReader(std::unique_ptr<Database> database, bool by_client);
  Result<void> read_round(std::int64_t run, std::int64_t round);
  Result<void> read_events();

  std::unique_ptr<Database> database_;
  bool by_client_;
  HistoryTally tally_;
  std::int64_t run_ = 0;  // The last round that is counted.
  std::int64_t round_ = 0;
  std::int64_t event_ = 0;
};

}  // namespace fl::server
