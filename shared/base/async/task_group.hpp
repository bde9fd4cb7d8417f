// SPDX-License-Identifier: Apache-2.0
// A group of coroutines that belong to one owner. No coroutine is detached: the owner cancels and
// joins them before it is destroyed, and join() rethrows the first exception. The coroutines and
// all calls run on the executor given, which is the owner's strand.
#pragma once

#include "shared/base/async/mailbox.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>

#include <exception>
#include <list>
#include <utility>
#include <vector>

namespace fl {

class TaskGroup {
 public:
  explicit TaskGroup(net::any_io_executor executor)
      : executor_(std::move(executor)), changed_(executor_) {}
  ~TaskGroup() { FL_ASSERT(tasks_.empty()); }
  TaskGroup(const TaskGroup&) = delete;
  TaskGroup& operator=(const TaskGroup&) = delete;

  void spawn(Awaitable<void> task) {
    const auto place = tasks_.emplace(tasks_.end());
    net::co_spawn(executor_, std::move(task),
                  net::bind_cancellation_slot(place->slot(), Done{this, place}));
  }

  /// Asks all coroutines to end at their next wait.
  void cancel() {
    // emit() may complete a coroutine and so erase its list entry, so iterate over a copy.
    std::vector<net::cancellation_signal*> signals;
    for (auto& signal : tasks_) signals.push_back(&signal);
    for (auto* signal : signals) signal->emit(net::cancellation_type::terminal);
  }

  /// Waits until all coroutines have ended, then rethrows the first exception. Can't be cancelled.
  Awaitable<void> join() {
    co_await net::this_coro::reset_cancellation_state(net::disable_cancellation());
    while (!tasks_.empty()) co_await changed_.wait();
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

  [[nodiscard]] bool empty() const { return tasks_.empty(); }

 private:
  using Place = std::list<net::cancellation_signal>::iterator;

  struct Done {
    TaskGroup* group;
    Place place;
    void operator()(const std::exception_ptr& failure) const {
      if (failure && !group->failure_) group->failure_ = failure;
      group->tasks_.erase(place);
      group->changed_.notify();
    }
  };

  net::any_io_executor executor_;
  std::list<net::cancellation_signal> tasks_;
  std::exception_ptr failure_;
  Signal changed_;
};

}  // namespace fl
