// Runs blocking work (SQLite, fsync, a training step) off the strands, and resumes where it was
// asked. Without a pool, as in the simulator, the work runs in the caller.
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
  /// The same after a pause, one work after the other: a simulated thread. Pauses are above 0.
  explicit Offload(std::function<Duration()> pause) : pause_(std::move(pause)) {}
  explicit Offload(std::size_t threads)
      : pool_(make_pool(threads)), executor_(pool_->get_executor()) {}
  /// On the threads of `executor`, beside what else they run; on a strand, one after the other.
  explicit Offload(net::any_io_executor executor) : executor_(std::move(executor)) {}
  ~Offload() { finish(); }

  /// Waits for all work that was given to threads of its own; none may come after. To be called
  /// before what the work uses, and the io_context that takes its results, are gone. Not on a
  /// pool's own thread.
  void finish() {
    if (pool_) pool_->join();
  }

  /// Name the function object before: `auto work = [=] {…}; co_await offload.run(std::move(work));`
  /// (g++ 12 destroys a capturing temporary in a co_await expression twice, CRAFT F1).
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
    // Where they are the caller's own threads, this is still inside of its strand.
    co_await net::post(net::use_awaitable);
    co_return work();
  }

  std::unique_ptr<net::thread_pool> pool_;
  net::any_io_executor executor_;  // None: the caller's.
  std::function<Duration()> pause_;
  TimePoint free_at_{};  // When the simulated thread has done what it was given.
};

}  // namespace fl
