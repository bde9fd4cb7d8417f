// A server's engine and many virtual clients in one process: real sessions, agents, codecs and
// trainers over pipes, on as many threads as are given. Only a few clients are at work at once;
// one that waits for its turn is two coroutines and no model.
//
// The model that comes out is a function of settings, data and seed, whatever the threads: but for
// runs that ask more clients than they need (--over-select) or close at a --deadline, where it
// matters who is first.
#pragma once

#include "examples/sim/options.hpp"
#include "server/history/store.hpp"

#include <vector>

namespace fl {

/// Begins a run in options.state and works it off, or until SIGINT or SIGTERM. Returns its rounds.
[[nodiscard]] Result<std::vector<RoundSummary>> run_federation(const SimOptions& options);

}  // namespace fl
