// SPDX-License-Identifier: Apache-2.0
// The part that all others of an engine share: the run's plan, the way to its store, whether the
// run goes on, where the main loop is, and the one signal that wakes whatever waits. On the
// engine's strand.
#pragma once

#include "server/history/store_thread.hpp"
#include "server/round/status.hpp"
#include "server/run/run_plan.hpp"
#include "shared/base/async/mailbox.hpp"
#include "shared/base/async/task_group.hpp"
#include "shared/base/error.hpp"
#include "shared/base/line_limit.hpp"

#include <atomic>
#include <map>
#include <optional>
#include <string>

namespace fl::server {

class RunControl {
 public:
  RunControl(net::any_io_executor strand, const RunPlan& run_plan, StoreThread& run_store)
      : plan(run_plan), store(run_store), changed(strand), group(strand), strand_(strand) {}

  const RunPlan& plan;
  StoreThread& store;
  [[nodiscard]] const net::any_io_executor& strand() const { return strand_; }  // From any thread.

  /// Asks for a clean end: everything that waits looks at is_stopping().
  void stop();
  /// Stops the run for an error that must not be retried. run() returns the first of these errors.
  void fail(const Error& error);
  /// Says that the main loop is over; nothing waits for a round any more.
  void end();
  /// Says that the main loop has read from the history what a restart needs: clients may join.
  void set_restored();

  // Three different questions. is_stopping(): the process shall end, and the run goes on at the
  // next start. has_ended(): the main loop has returned, for whatever reason. And
  // RunEnd::is_over(): the run has all its rounds, or its goal.
  [[nodiscard]] bool is_restored() const { return is_restored_; }
  [[nodiscard]] bool is_stopping() const { return is_stopping_; }
  [[nodiscard]] bool has_ended() const { return has_ended_; }
  [[nodiscard]] bool is_going_down() const { return is_stopping_ || has_ended_; }
  [[nodiscard]] const std::optional<Error>& failure() const { return failure_; }

  /// Writes a line into the log and an event of this run.
  void report(EventLevel level, std::string text) { store.report(level, std::move(text)); }
  /// Reports what a client can cause as often as it likes: for each client only a few in a minute
  /// are reported one by one, and the number of the others when the minute is over (LineLimit).
  void report_of(const std::string& client, EventLevel level, std::string text);

  /// The last thing that went wrong with a client, since this process began the run. report_of()
  /// notes what is a warning or worse.
  struct Trouble {
    std::string text;
    double at = 0;  // Unix seconds.
  };
  void note_trouble(const std::string& client, const std::string& text);
  /// Null: nothing went wrong with the client.
  [[nodiscard]] const Trouble* trouble_of(const std::string& client) const;

  /// Counts a call from another strand, which is a mistake of ours. What sessions call begins with
  /// this, and so do the parts' functions that change much. (A function without it is not for any
  /// thread: its header says so if it is.) The simulated federations check the count.
  void expect_strand() const;
  [[nodiscard]] int calls_off_strand() const { return calls_off_strand_; }

  Phase phase = Phase::starting;  // Written by the main loop.
  double started_at = 0;          // Unix seconds; when the main loop began.
  Signal changed;                 // Anything that a part may wait for has changed.
  TaskGroup group;                // The coroutines beside the main loop, which waits for their end.

 private:
  Awaitable<void> tell_left_out();

  const net::any_io_executor strand_;
  bool is_restored_ = false;
  bool is_stopping_ = false;
  bool has_ended_ = false;
  std::optional<Error> failure_;
  LineLimit lines_of_clients_;
  bool has_left_out_ = false;                // Since tell_left_out() has last looked.
  bool tells_left_out_ = false;              // tell_left_out() is at work.
  std::map<std::string, Trouble> troubles_;  // By client; at most limits::troubles_max.
  mutable std::atomic<int> calls_off_strand_ = 0;
};

}  // namespace fl::server
