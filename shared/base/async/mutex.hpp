// SPDX-License-Identifier: Apache-2.0
// A mutex that says what it guards. A member that may be used under `mutex_` only is declared as
// `int count_ FL_GUARDED_BY(mutex_);`, and a function that its callers call under it only with
// FL_REQUIRES(mutex_) behind its parameters. clang checks both when it compiles
// (-Wthread-safety); other compilers read std::mutex. Any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stop_token>
#include <utility>

#ifdef __clang__
#define FL_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define FL_THREAD_SAFETY(attribute)
#endif
#define FL_GUARDED_BY(mutex) FL_THREAD_SAFETY(guarded_by(mutex))
#define FL_REQUIRES(mutex) FL_THREAD_SAFETY(requires_capability(mutex))

namespace fl {

class FL_THREAD_SAFETY(capability("mutex")) Mutex {
 public:
  void lock() FL_THREAD_SAFETY(acquire_capability()) { mutex_.lock(); }
  void unlock() FL_THREAD_SAFETY(release_capability()) { mutex_.unlock(); }

 private:
  friend class Condition;
  friend class StoppableCondition;
  std::mutex mutex_;
};

/// Holds the mutex while it lives.
class FL_THREAD_SAFETY(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) FL_THREAD_SAFETY(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() FL_THREAD_SAFETY(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

/// Wakes threads that wait for a change of what a mutex guards.
class Condition {
 public:
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }
  /// Returns at a notification, or for no reason: check the condition in a loop. The mutex is free
  /// while this waits.
  void wait(Mutex& mutex) FL_REQUIRES(mutex) {
    std::unique_lock held(mutex.mutex_, std::adopt_lock);
    condition_.wait(held);
    held.release();
  }
  /// Waits as wait() does, but not beyond this time.
  template <class Clock, class Length>
  void wait_until(Mutex& mutex, const std::chrono::time_point<Clock, Length>& until)
      FL_REQUIRES(mutex) {
    std::unique_lock held(mutex.mutex_, std::adopt_lock);
    condition_.wait_until(held, until);
    held.release();
  }

 private:
  std::condition_variable condition_;
};

/// A Condition whose waits end at a stop request, too. It costs a lock more.
class StoppableCondition {
 public:
  void notify_all() { condition_.notify_all(); }
  /// Returns at a notification, at a stop request (at once if it was made before), or for no
  /// reason: check both in a loop. The mutex is free while this waits.
  void wait(Mutex& mutex, std::stop_token stop) FL_REQUIRES(mutex) {
    condition_.wait(mutex.mutex_, std::move(stop), Second());
  }
  /// Waits as wait() does, but not beyond this time.
  template <class Clock, class Length>
  void wait_until(Mutex& mutex, std::stop_token stop,
                  const std::chrono::time_point<Clock, Length>& until) FL_REQUIRES(mutex) {
    condition_.wait_until(mutex.mutex_, std::move(stop), until, Second());
  }

 private:
  /// Lets one wait pass: false when it is asked first, then true.
  struct Second {
    bool operator()() { return std::exchange(is_second, true); }
    bool is_second = false;
  };

  std::condition_variable_any condition_;
};

}  // namespace fl
