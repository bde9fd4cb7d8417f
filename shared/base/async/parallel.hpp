// SPDX-License-Identifier: Apache-2.0
// Lanes: divides work whose order does not matter among threads.
#pragma once

#include "shared/base/async/mutex.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace fl {

/// Returns `wanted`, or the number of cores that this process may use when `wanted` is 0.
[[nodiscard]] int threads_for(int wanted);

/// A team of threads that lives as long as this object. The caller's thread works with them; each
/// thread has a number, its lane. One thread at a time may use a Lanes object.
class Lanes {
 public:
  /// Makes `threads` lanes (0: one per core), but at most `most`. The caller's thread is one of
  /// them. If some threads can't be started, there are fewer lanes.
  Lanes(int threads, std::uint64_t most);
  ~Lanes();
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  /// The number of lanes. They are numbered from 0; lane 0 is the caller's thread.
  [[nodiscard]] std::size_t count() const { return others_.size() + 1; }

  using Use = std::function<void(std::size_t lane, std::size_t begin, std::size_t end)>;
  /// Cuts [0, count) into runs of `run` indices (the last may be shorter) and calls
  /// use(lane, begin, end) once for each. Within a lane the runs come in ascending order. Returns
  /// when all are done. Rethrows the first exception of `use`; then some runs were skipped.
  void for_each_run(std::size_t count, std::size_t run, const Use& use);

 private:
  struct Work {
    std::size_t count = 0;
    std::size_t run = 1;
    const Use* use = nullptr;
  };
  void serve(std::size_t lane);
  void do_runs(std::size_t lane);

  Mutex mutex_;
  Condition changed_;
  Work work_;  // Written under mutex_, and read by lanes while they are busy.
  std::uint64_t works_ FL_GUARDED_BY(mutex_) = 0;  // How many pieces of work the lanes got so far.
  std::size_t busy_ FL_GUARDED_BY(mutex_) = 0;  // Lanes that have not finished this piece of work.
  bool is_over_ FL_GUARDED_BY(mutex_) = false;
  std::exception_ptr failure_ FL_GUARDED_BY(mutex_);
  std::atomic<std::size_t> next_ = 0;  // The first index that no lane has taken.
  std::vector<std::thread> others_;
};

}  // namespace fl
