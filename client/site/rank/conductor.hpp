// SPDX-License-Identifier: Apache-2.0
// The one thread that makes a group's calls. c10d matches collectives by the order in which a
// process starts them. If several threads did so, or callbacks of futures, the order would differ
// from rank to rank, and sums would silently be wrong. So work is queued here, in the same order on
// all ranks, and is done one after the other.
#pragma once

#include "client/site/rank/ranks.hpp"
#include "shared/base/async/mutex.hpp"

#include <deque>
#include <exception>
#include <functional>
#include <optional>
#include <thread>

namespace fl::site {

/// Any thread may queue work; all ranks must queue the same work in the same order. The group must
/// outlive it, and nobody else may use the group meanwhile. What c10d's Reducer sums itself is
/// queued too (reducer_group.hpp).
class Conductor {
 public:
  using Work = std::function<void(Ranks&)>;
  /// Called on the conductor's thread, with the exception that ended the work or with null. Must
  /// not throw.
  using Done = std::function<void(std::exception_ptr)>;

  explicit Conductor(Ranks& ranks);
  Conductor(const Conductor&) = delete;
  Conductor& operator=(const Conductor&) = delete;
  /// Waits for the work that has begun; what is still queued ends with a RankFailure.
  ~Conductor();

  /// Queues work, and waits first while limits::tensors_max are queued. A step has at most a bucket
  /// for each tensor, so the backward pass does not wait.
  void start(Work work, Done done);
  /// Queues work and waits for its end. Rethrows its exception.
  void run(const Work& work);

 private:
  struct Item {
    Work work;
    Done done;
    bool is_too_late = false;  // The conductor ends, and does not do the work.
  };
  void loop();
  [[nodiscard]] std::optional<Item> next();

  Ranks& ranks_;
  Mutex mutex_;
  Condition changed_;
  std::deque<Item> queue_ FL_GUARDED_BY(mutex_);
  bool is_ending_ FL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace fl::site
