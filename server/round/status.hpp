// SPDX-License-Identifier: Apache-2.0
// What the status line and the admin pages show of a run.
#pragma once

#include "server/history/records.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fl {

/// Where the main loop is.
enum class Phase {
  starting,
  restoring,
  waiting_for_clients,
  collecting,
  making_model,
  waiting_for_absent,  // The run is over; clients that lost their connection may come back.
  waiting_for_evaluations,
  dismissing,  // The run is over, and the clients are being told.
  finished,
  stopping,
};

/// What waits or is being done, in each of the engine's queues.
struct QueueLengths {
  std::size_t store = 0;         // Calls of the store, which has one thread.
  std::size_t events = 0;        // Of these, rows of events and of the audit.
  std::size_t verdicts = 0;      // To be made durable with the next group.
  std::size_t checks = 0;        // Updates that are all here, and are checked and added up.
  std::size_t uploads = 0;       // Updates under way.
  std::size_t downloads = 0;     // Versions under way.
  std::size_t buffer_bytes = 0;  // Of limits::bulk_bytes_max, for these transfers.
};

struct EngineStatus {
  RunId run = 0;
  std::string run_key;
  std::string model;
  std::string phase;  // In words: "waiting for 2 clients (1 is here)", "collecting", ...
  Round round = 0;    // The one under way, or the last.
  Round rounds_total = 0;
  std::uint32_t clients = 0;  // Connected trainers.
  std::uint32_t evaluators = 0;
  std::uint32_t asked = 0;  // Clients that have, or had, a task in the open round.
  std::uint32_t accepted = 0;
  std::uint64_t bytes_up = 0;  // Since this process began the run.
  std::uint64_t bytes_down = 0;
  std::string metric;                 // The name of the run's main metric.
  std::vector<MetricFigure> metrics;  // Evaluators' figures for the newest version.
  double round_seconds = 0;           // Mean of the rounds that this process ran.
  double started_at = 0;              // Unix seconds.
  QueueLengths queues;
};

/// What a client is doing, as far as the server knows.
enum class Activity {
  away,         // No session.
  idle,         // Has nothing to do.
  paused,       // Missed too often: it is not asked for a while.
  downloading,  // Gets a version of the model.
  training,     // Has its task, and has not begun to upload.
  uploading,
  interrupted,  // Its upload has begun and is not under way.
  checking,     // Its update is here, and being checked.
  waiting,      // Its update is here, and waits for a round that takes it.
  accepted,     // Its update counts in the open round.
  failed,       // It brought no update that counts in the open round.
};
inline constexpr std::size_t activity_count = 11;

/// One client, as the engine sees it now.
struct MemberStatus {
  std::string name;
  Activity activity = Activity::away;
  bool is_awaited = false;  // Here, or expected back.
  bool evaluator = false;   // These four only while it is here.
  std::string software;
  double certificate_ends_at = 0;  // Unix seconds; 0: unknown.
  std::string expelled;            // Why; "": it was not.
  std::uint64_t bytes_up = 0;      // Since this process began the run.
  std::uint64_t bytes_down = 0;
  Round round = 0;                // Of its task; 0: it has none.
  std::optional<double> task_s;   // For how long it has had its task.
  std::optional<double> due_s;    // Until its task's time is over.
  std::optional<double> pause_s;  // Until it may be asked again.
  int misses = 0;                 // In a row.
  std::string trouble;            // What last went wrong with it; "": nothing.
  double trouble_at = 0;          // Unix seconds.
};

struct TransferStatus {
  std::string client;
  bool is_up = false;
  std::uint32_t number = 0;  // The version that is sent, or the round of the update.
  std::uint64_t bytes = 0;
  std::uint64_t done = 0;
  std::uint64_t offset = 0;     // So much was there before it began.
  double seconds = 0;           // Since it began.
  std::optional<double> due_s;  // Until its client's time is over.
};

struct LiveStatus {
  EngineStatus status;
  Phase phase = Phase::starting;
  std::string paused;  // Why nothing goes on (the disk is full, say); "": it does.
  bool is_async = false;
  Version version = 0;        // The newest.
  std::uint32_t target = 0;   // Updates that close the round.
  std::uint32_t quorum = 0;   // The least that it may close with.
  std::uint32_t refused = 0;  // Of the open round.
  std::uint32_t lost = 0;
  std::uint32_t min_clients = 0;
  std::size_t absent = 0;                                  // Expected back.
  std::optional<double> due_s;                             // Until the open round's deadline.
  std::array<std::uint32_t, activity_count> activities{};  // Clients here, by Activity.
  double certificate_ends_at = 0;         // The first of those of clients here; 0: unknown.
  std::string certificate_of;             // Whose.
  std::vector<TransferStatus> transfers;  // The first limits::admin_transfers_max.
  std::size_t transfers_total = 0;
};

}  // namespace fl
