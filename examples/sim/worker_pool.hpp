// SPDX-License-Identifier: Apache-2.0
// WorkerPool: the user's trainer programs in a simulation. Each plays many clients, one request
// after the other (docs/design/trainer-protocol.md). Any thread.
#pragma once

#include "client/learn/process/process_trainer.hpp"
#include "shared/base/async/mutex.hpp"
#include "shared/base/error.hpp"

#include <boost/asio/thread_pool.hpp>

#include <filesystem>
#include <functional>
#include <memory>
#include <stop_token>
#include <vector>

namespace fl::sim {

class WorkerPool {
 public:
  using Work = std::function<void(const std::shared_ptr<TrainerProgram>&)>;

  /// Starts `workers` programs, at the same time. With command.socket each listens at a path of its
  /// own, SOCKET.1 and so on. `state` is the simulation's folder. Errors: those of
  /// TrainerProgram::start(); invalid_input: the program can't play many clients; conflict: the
  /// programs differ.
  [[nodiscard]] static Result<std::unique_ptr<WorkerPool>> start(const TrainerCommand& command,
                                                                 const std::filesystem::path& state,
                                                                 int workers, std::stop_token stop);
  /// Asks all programs to end, and waits until they have.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// The hello that all programs have sent.
  [[nodiscard]] const TrainerHello& hello() const { return workers_.front()->program->hello(); }
  /// Waits until a program is free, and then until `work` is done with it, in that program's
  /// thread.
  void run(const Work& work);
  /// Writes initial weights that one of the programs makes, as the server's file.
  [[nodiscard]] Result<void> write_initial_weights(std::uint64_t seed,
                                                   const std::filesystem::path& path);

 private:
  struct Worker {
    boost::asio::thread_pool thread{1};
    std::shared_ptr<TrainerProgram> program;  // Null until it has been started.
  };
  WorkerPool() = default;
  [[nodiscard]] Result<void> start_all(const TrainerCommand& command,
                                       const std::filesystem::path& state, std::stop_token stop);
  [[nodiscard]] Result<void> check() const;

  std::vector<std::unique_ptr<Worker>> workers_;
  Mutex mutex_;
  Condition freed_;
  std::vector<Worker*> free_ FL_GUARDED_BY(mutex_);
};

}  // namespace fl::sim
