// SPDX-License-Identifier: Apache-2.0
// Mailbox: a bounded queue between coroutines of one strand. Any number of coroutines push, one
// pops. Asio's experimental channel is not used, because it loses messages when a receive is
// cancelled (Boost 1.81). Signal: a condition that coroutines of one strand wait for.
#pragma once

#include "shared/base/async/clock.hpp"
#include "shared/base/error.hpp"

#include <boost/asio/as_tuple.hpp>

#include <deque>
#include <list>
#include <optional>

namespace fl {

/// Wakes all coroutines that wait on it. A wake-up says only that something may have changed, so
/// check the condition in a loop.
class Signal {
 public:
  explicit Signal(net::any_io_executor executor) : executor_(std::move(executor)) {}

  /// The waiters resume later, never inside of this call.
  void notify() {
    for (Timer* waiter : waiters_) waiter->cancel();
  }
  /// Returns at the next notify(), at the deadline, or when the coroutine is cancelled.
  Awaitable<void> wait(TimePoint deadline = never) {
    Timer timer(executor_, deadline);
    const auto place = waiters_.insert(waiters_.end(), &timer);
    co_await timer.async_wait(net::as_tuple(net::use_awaitable));
    waiters_.erase(place);
  }

 private:
  net::any_io_executor executor_;
  std::list<Timer*> waiters_;
};

template <class T>
class Mailbox {
 public:
  Mailbox(const net::any_io_executor& executor, std::size_t items_max)
      : items_max_(items_max), changed_(executor) {}

  /// Returns false when the mailbox is full or closed; the caller decides what to do then.
  [[nodiscard]] bool push(T item) {
    if (closed_ || items_.size() >= items_max_) return false;
    items_.push_back(std::move(item));
    changed_.notify();
    return true;
  }

  /// Takes out the oldest item. Returns nothing when the deadline passes, or when the mailbox is
  /// closed and empty.
  Awaitable<std::optional<T>> pop(TimePoint deadline = never) {
    while (items_.empty() && !closed_ && Clock::now() < deadline) co_await changed_.wait(deadline);
    if (items_.empty()) co_return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    changed_.notify();
    co_return item;
  }

  /// Waits until there is room, then pushes. Returns false when the mailbox is or gets closed.
  Awaitable<bool> push_waiting(T item) {
    while (!closed_ && items_.size() >= items_max_) co_await changed_.wait();
    co_return push(std::move(item));
  }

  /// Ends pushing. Items that are in the mailbox can still be popped.
  void close() {
    closed_ = true;
    changed_.notify();
  }
  [[nodiscard]] bool closed() const { return closed_; }
  [[nodiscard]] bool empty() const { return items_.empty(); }
  [[nodiscard]] std::size_t size() const { return items_.size(); }

 private:
  std::size_t items_max_;
  bool closed_ = false;
  std::deque<T> items_;
  Signal changed_;
};

}  // namespace fl
