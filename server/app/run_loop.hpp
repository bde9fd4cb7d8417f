// SPDX-License-Identifier: Apache-2.0
// One run after the other: the chosen one, those queued behind it and, with --stay, those that are
// still to come. Each gets an engine of its own. On the engines' strand.
#pragma once

#include "server/app/run_queue.hpp"
#include "server/history/history_changes.hpp"
#include "server/history/store_thread.hpp"
#include "server/round/engines.hpp"
#include "shared/base/async/task_group.hpp"

#include <atomic>
#include <functional>
#include <memory>
#include <optional>

namespace fl::server {

class RunLoop {
 public:
  struct Actions {
    /// Makes the engine of a run. Errors: invalid_input when this program doesn't know its model.
    std::function<Result<std::shared_ptr<RoundEngine>>(const ChosenRun&)> make_engine;
    /// Called when a run begins: tells users and other programs.
    std::function<Result<void>(const RunRecord&)> announce;
  };

  /// `engines` has the engine of `run`. `store` is the server's own, not a run's. `stop` is set
  /// when the server is to end, and then changes.wake() is called.
  RunLoop(Engines& engines, StoreThread& store, HistoryChanges& changes, RunRecord run,
          const ServeOptions& options, Actions actions, const std::atomic<bool>& stop);

  /// Returns when there is no other run, the server is to stop, or an error makes it end.
  Awaitable<Result<RoundEngine::Outcome>> run();

 private:
  Awaitable<void> watch_clients(std::shared_ptr<RoundEngine> engine,
                                std::shared_ptr<bool> has_ended);
  Awaitable<void> summarise();
  Awaitable<Result<void>> give_up(const Error& error);
  Awaitable<Result<bool>> begin_next();
  Awaitable<Result<std::optional<ChosenRun>>> wait_for_next();

  Engines& engines_;
  StoreThread& store_;
  HistoryChanges& changes_;
  RunRecord run_;
  const ServeOptions& options_;
  Actions actions_;
  const std::atomic<bool>& stop_;
  TaskGroup group_;
  bool is_aside_ = false;  // The run at hand has stepped aside for the next one.
};

}  // namespace fl::server
