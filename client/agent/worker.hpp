// SPDX-License-Identifier: Apache-2.0
// Worker: the agent's worker thread, which does one piece of work at a time. A job (training, an
// evaluation) runs while the agent talks with the server; its end is an event. A step (a few calls
// to the disk) is awaited. No step may run during a job, because both use the client's state and
// its trainer.
//
//   idle --start()--> busy --JobDone, finished()--> idle
//
// All members are called on the agent's strand.
#pragma once

#include "client/agent/events.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/async/offload.hpp"
#include "shared/base/async/task_group.hpp"
#include "shared/base/error.hpp"

#include <cstdint>
#include <functional>
#include <stop_token>
#include <type_traits>
#include <utility>

namespace fl::client {

class Worker {
 public:
  /// The arguments must outlive the worker. `group` must be joined before they are destroyed.
  Worker(Offload& offload, TaskGroup& group, AgentEvents& events)
      : offload_(offload), group_(group), events_(events) {}

  /// The job's work, on the worker thread. It ends soon after a request through `stop`.
  using Work = std::function<JobDone(std::stop_token stop)>;
  /// Begins a job; none may be running. `task` is the task that it trains for, or 0. Its end
  /// arrives as a JobDone event. An exception of `work` becomes an internal error.
  void start(std::int64_t task, Work work);
  /// Call when the JobDone event has been taken from the queue of events.
  void finished();

  [[nodiscard]] bool is_busy() const { return is_busy_; }
  /// The task that the running job trains for; 0 if there is no such job.
  [[nodiscard]] std::int64_t task() const { return is_busy_ ? task_ : 0; }
  /// Asks the job to end; its event still comes.
  void request_stop() { stop_.request_stop(); }
  /// Stops the job and waits for its end, dropping other events. Returns false if the queue of
  /// events was closed meanwhile.
  Awaitable<bool> end();

  /// Call when the group has been joined: no job runs any more, even if nobody took its event.
  void joined() { is_busy_ = false; }

  /// Runs a step on the worker thread and returns its result. No job may be running. Name the
  /// function object before, as for Offload::run().
  template <class Function>
  Awaitable<std::invoke_result_t<Function&>> step(Function work) {
    FL_ASSERT(!is_busy_);
    co_return co_await offload_.run(std::move(work));
  }

  /// The disk is full: no job and no step that can wait begins before the pause is over.
  void pause_for_disk();
  [[nodiscard]] bool is_paused() const { return Clock::now() < paused_until_; }
  [[nodiscard]] TimePoint paused_until() const { return paused_until_; }

 private:
  Awaitable<void> run(std::int64_t task, Work work, std::stop_token stop);

  Offload& offload_;
  TaskGroup& group_;
  AgentEvents& events_;
  bool is_busy_ = false;
  std::int64_t task_ = 0;
  std::stop_source stop_;
  TimePoint paused_until_{};
};

}  // namespace fl::client
