// SPDX-License-Identifier: Apache-2.0
// What the status line and the admin pages show of a run.
#pragma once

#include "server/history/store.hpp"

#include <cstdint>
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
};

}  // namespace fl
