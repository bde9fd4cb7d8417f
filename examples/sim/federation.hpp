// SPDX-License-Identifier: Apache-2.0
// Runs a whole federation in one process: the server's engine and many virtual clients, with the
// real sessions, agents, codecs and trainers, over in-process links and on a given number of
// threads. Only a few clients work at the same time; a client that waits for a work slot is two
// coroutines and has no model in memory.
//
// The resulting model depends only on settings, data and seed, not on the number of threads. The
// exceptions are runs in which the order of arrival matters: with --over-select, --deadline
// or --drop-outs.
#pragma once

#include "examples/sim/options.hpp"
#include "server/history/store.hpp"

#include <vector>

namespace fl::sim {

struct SimulatedRun {
  std::vector<server::RoundSummary> rounds;
  server::BestVersions best;
};

/// Begins a new run in options.state and runs it to its end, or until SIGINT or SIGTERM.
[[nodiscard]] Result<SimulatedRun> run_federation(SimOptions options);

}  // namespace fl::sim
