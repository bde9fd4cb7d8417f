// SPDX-License-Identifier: Apache-2.0
// A mutex that says what it guards. A member that may be used under `mutex_` only is declared as
// `int count_ FL_GUARDED_BY(mutex_);`, and a function that its callers call under it only with
// FL_REQUIRES(mutex_) behind its parameters. clang checks both when it compiles
// (-Wthread-safety); other compilers read std::mutex. Any thread.
#pragma once

#include <condition_variable>
#include <mutex>

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
  void notify_all() { condition_.notify_all(); }
  /// Returns at a notification, or for no reason: check the condition in a loop. The mutex is free
  /// while this waits.
  void wait(Mutex& mutex) FL_REQUIRES(mutex) {
    std::unique_lock held(mutex.mutex_, std::adopt_lock);
    condition_.wait(held);
    held.release();
  }

 private:
  std::condition_variable condition_;
};

}  // namespace fl
