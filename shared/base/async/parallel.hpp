// Work without an order, divided among threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace fl {

/// `wanted`, or for 0 one for each core.
[[nodiscard]] int threads_for(int wanted);

/// Threads that work together with their owner's for as long as this lives, each in a lane. One
/// thread at a time may own it.
class Lanes {
 public:
  /// As many lanes as `threads` (0: one for each core), but no more than `most`, of which the
  /// owner's is one. Of threads that can't be started the others do the work.
  Lanes(int threads, std::uint64_t most);
  ~Lanes();
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  /// How many there are; they are numbered from 0, which is the owner's.
  [[nodiscard]] std::size_t count() const { return others_.size() + 1; }

  using Use = std::function<void(std::size_t lane, std::size_t begin, std::size_t end)>;
  /// Calls use(lane, begin, end) for runs of [0, count), of `run` indices but for the last one:
  /// each run once, and in ascending order in a lane. Returns when all is done. What `use` throws
  /// in any lane is thrown here; some runs are then left out.
  void for_each_run(std::size_t count, std::size_t run, const Use& use);

 private:
  struct Work {
    std::size_t count = 0;
    std::size_t run = 1;
    const Use* use = nullptr;
  };
  void serve(std::size_t lane);
  void do_runs(std::size_t lane);

  std::mutex mutex_;  // Guards what follows, but for next_, and work_ while lanes are busy with it.
  std::condition_variable changed_;
  Work work_;
  std::uint64_t works_ = 0;  // That were given so far.
  std::size_t busy_ = 0;     // Lanes that have not ended this one.
  bool is_over_ = false;
  std::exception_ptr failure_;
  std::atomic<std::size_t> next_ = 0;  // Index that is not taken yet.
  std::vector<std::thread> others_;
};

}  // namespace fl
