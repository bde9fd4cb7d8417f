// SPDX-License-Identifier: Apache-2.0
// What the status line and the admin pages show of a run.
#pragma once

#include "server/history/records.hpp"
#include "server/host/hello_facts.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fl::server {

/// What the main loop is doing.
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

/// The number of waiting or running items in each of the engine's queues.
struct QueueLengths {
  std::size_t store = 0;         // Calls of the store, which has one thread.
  std::size_t events = 0;        // Events and rows of the audit among these.
  std::size_t verdicts = 0;      // Verdicts that will be made durable with the next group.
  std::size_t checks = 0;        // Complete updates that are being checked and added up.
  std::size_t uploads = 0;       // Uploads under way.
  std::size_t downloads = 0;     // Downloads under way.
  std::size_t buffer_bytes = 0;  // The part of limits::bulk_bytes_max that these transfers use.
};

struct EngineStatus {
  RunId run = 0;
  std::string run_key;
  std::string model;
  std::string strategy;
  std::string codec;
  std::string phase;  // In words: "waiting for 2 clients (1 is here)", "collecting", ...
  Round round = 0;    // The round under way, or the last one.
  Round rounds_total = 0;
  std::uint32_t clients = 0;  // Connected trainers.
  std::uint32_t evaluators = 0;
  std::uint32_t present = 0;   // Members that are here and in no run (Activity::present).
  std::uint32_t asked = 0;     // Clients that have, or had, a task in the open round.
  std::uint32_t accepted = 0;  // Clients among them whose updates have come.
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
  present,      // Has said Hello, and is in no run: it gets ready, or waits for a run (WaitsFor).
  idle,         // Has nothing to do.
  paused,       // Missed too often: it is not asked for a while.
  downloading,  // Gets a version of the model.
  training,     // Has its task, and has not begun to upload.
  uploading,
  interrupted,  // The upload has begun and is not under way.
  checking,     // The update is here, and being checked.
  waiting,      // The update is here, and waits for a round that takes it.
  accepted,     // The update counts in the open round.
  failed,       // The client brought no update that counts in the open round.
};
inline constexpr std::size_t activity_count = 12;

/// The reason why a member is present and in no run. One that waits for a run connects again and
/// again.
enum class WaitsFor {
  its_data,     // It loads data and model, and joins this run.
  a_run,        // The run is over.
  another_run,  // It can't take part in this run.
};

/// One client, as the engine sees it now.
struct MemberStatus {
  std::string name;
  Activity activity = Activity::away;
  WaitsFor waits_for = WaitsFor::its_data;  // Holds while the activity is `present`.
  bool is_awaited = false;                  // The client is here, or expected back.
  std::optional<HelloFacts> said;           // None while the client is away.
  std::uint64_t examples = 0;      // To train on, or to evaluate on; 0: unknown, as in no run.
  double certificate_ends_at = 0;  // Unix seconds; 0: unknown.
  std::string expelled;            // Why it was expelled; "": it was not.
  std::uint64_t bytes_up = 0;      // Since this process began the run.
  std::uint64_t bytes_down = 0;
  Round round = 0;                // The round of its task; 0: it has none.
  std::optional<double> task_s;   // For how long the client has had its task.
  std::optional<double> due_s;    // Until the time for its task is over.
  std::optional<double> pause_s;  // Until the client may be asked again.
  int misses = 0;                 // Misses in a row.
  std::string trouble;            // What last went wrong with it; "": nothing.
  double trouble_at = 0;          // Unix seconds.
};

struct TransferStatus {
  std::string client;
  bool is_up = false;
  std::uint32_t number = 0;  // The number of the version that is sent, or of the update's round.
  std::uint64_t bytes = 0;
  std::uint64_t done = 0;
  std::uint64_t offset = 0;     // Bytes that were there before this transfer began.
  double seconds = 0;           // Time since it began.
  std::optional<double> due_s;  // Until the client's time is over.
};

struct LiveStatus {
  EngineStatus status;
  Phase phase = Phase::starting;
  std::string paused;  // Why nothing goes on (for example a full disk); "": it does.
  bool is_async = false;
  Version version = 0;        // The newest version.
  std::uint32_t target = 0;   // Updates that close the round.
  std::uint32_t quorum = 0;   // The fewest updates that it may close with.
  std::uint32_t refused = 0;  // Refused updates of the open round.
  std::uint32_t lost = 0;
  std::uint32_t min_clients = 0;
  std::string unfit;            // RunView::why_unfit().
  std::size_t absent = 0;       // Clients that are expected back.
  std::optional<double> due_s;  // Until the open round's deadline.
  std::array<std::uint32_t, activity_count>
      activities{};                // The number of clients here, by Activity.
  double certificate_ends_at = 0;  // The earliest end of the clients' certificates; 0: unknown.
  std::string certificate_of;      // The client with that certificate.
  std::vector<TransferStatus> transfers;  // The first limits::admin_transfers_max.
  std::size_t transfers_total = 0;
};

}  // namespace fl::server
