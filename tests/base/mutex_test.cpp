// SPDX-License-Identifier: Apache-2.0
// Waits for a change of what a mutex guards.
#include "shared/base/async/mutex.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <stop_token>
#include <thread>

namespace fl::test {
namespace {

using namespace std::chrono_literals;
using SteadyClock = std::chrono::steady_clock;

/// A number that a thread waits for. Both threads use it.
template <class C>
struct Waited {
  void set() {
    const MutexLock lock(mutex);
    is_there = true;
    changed.notify_all();
  }
  Mutex mutex;
  C changed;
  bool is_there FL_GUARDED_BY(mutex) = false;
};

TEST_CASE("a wait ends at a notification") {
  Waited<Condition> waited;
  std::jthread other([&waited] { waited.set(); });
  const MutexLock lock(waited.mutex);
  while (!waited.is_there) waited.changed.wait(waited.mutex);
  CHECK(waited.is_there);
}

TEST_CASE("a wait with an end ends then, and holds the mutex again") {
  Waited<Condition> waited;
  const auto until = SteadyClock::now() + 20ms;
  {
    const MutexLock lock(waited.mutex);
    while (!waited.is_there && SteadyClock::now() < until)
      waited.changed.wait_until(waited.mutex, until);
  }
  waited.set();
  CHECK(SteadyClock::now() >= until);
}

TEST_CASE("a wait that can be stopped ends at a notification, and at its end") {
  Waited<StoppableCondition> waited;
  const std::stop_source stop;
  const auto until = SteadyClock::now() + 20ms;
  {
    const MutexLock lock(waited.mutex);
    while (SteadyClock::now() < until)
      waited.changed.wait_until(waited.mutex, stop.get_token(), until);
  }
  std::jthread other([&waited] { waited.set(); });
  const MutexLock lock(waited.mutex);
  while (!waited.is_there) waited.changed.wait(waited.mutex, stop.get_token());
  CHECK(waited.is_there);
}

TEST_CASE("a stop request ends a wait, and so does one that was made before") {
  Waited<StoppableCondition> waited;
  std::stop_source stop;
  std::jthread other([&stop] {
    std::this_thread::sleep_for(5ms);
    stop.request_stop();
  });
  const MutexLock lock(waited.mutex);
  while (!stop.stop_requested()) waited.changed.wait(waited.mutex, stop.get_token());
  const auto until = SteadyClock::now() + 1h;
  waited.changed.wait(waited.mutex, stop.get_token());
  waited.changed.wait_until(waited.mutex, stop.get_token(), until);
  CHECK(SteadyClock::now() < until);
}

}  // namespace
}  // namespace fl::test
