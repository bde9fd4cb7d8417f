// SPDX-License-Identifier: Apache-2.0
// Runs blocking work (SQLite, fsync, training) off the strands. The coroutine that asked for it
// resumes on its own executor. Without threads, as in the simulator, the work runs in the caller.
#pragma once

#include "shared/base/async/clock.hpp"
#include "shared/base/async/stop_signals.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/thread_pool.hpp>

#include <algorithm>
#include <functional>
#include <memory>
#include <type_traits>

namespace fl {

class Offload {
 public:
  /// Runs everything in the caller.
  Offload() = default;
  /// A simulated thread: runs one piece of work after the other in the caller, each after a pause.
  /// `pause` returns the length of the next one, above 0.
  explicit Offload(std::function<Duration()> pause) : pause_(std::move(pause)) {}
  /// Owns a pool of this many threads.
  explicit Offload(std::size_t threads)
      : pool_(make_pool(threads)), executor_(pool_->get_executor()) {}
  /// Uses the threads of `executor`, which may run other work too. On a strand, one piece of work
  /// runs after the other.
  explicit Offload(net::any_io_executor executor) : executor_(std::move(executor)) {}
  ~Offload() { finish(); }

  /// Waits until the owned threads have done all their work; run() may not be called afterwards.
  /// Call it before the objects that the work uses and the io_context that takes its results are
  /// destroyed, and not from a thread of the pool. Does nothing without owned threads.
  void finish() {
    if (pool_) pool_->join();
  }

  /// Runs `work` and returns its result. Name the function object in a statement of its own first:
  /// `auto work = [=] {…}; co_await offload.run(std::move(work));`, because g++ 12 destroys a
  /// lambda with captures twice when it is a temporary in a statement with co_await.
  template <class Function>
  Awaitable<std::invoke_result_t<Function&>> run(Function work) {
    if (pause_) {
      free_at_ = std::max(free_at_, Clock::now()) + pause_();
      co_await sleep_until(free_at_);
    }
    if (!executor_) co_return work();
    co_return co_await net::co_spawn(executor_, call(std::move(work)), net::use_awaitable);
  }

 private:
  static std::unique_ptr<net::thread_pool> make_pool(std::size_t threads) {
    const WithoutStopSignals guard;
    return std::make_unique<net::thread_pool>(threads);
  }
  template <class Function>
  static Awaitable<std::invoke_result_t<Function&>> call(Function work) {
    // co_spawn may start this inside the caller's strand; post() leaves it.
    co_await net::post(net::use_awaitable);
    co_return work();
  }

  std::unique_ptr<net::thread_pool> pool_;
  net::any_io_executor executor_;  // Empty: the work runs in the caller.
  std::function<Duration()> pause_;
  TimePoint free_at_{};  // When the simulated thread finishes the work that it was given.
};

}  // namespace fl
