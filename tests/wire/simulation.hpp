// SPDX-License-Identifier: Apache-2.0
// Runs coroutines to their end over simulated time.
#pragma once

#include "shared/base/async/clock.hpp"

#include <doctest/doctest.h>

#include <optional>
#include <utility>

namespace fl::test {

struct Simulation {
  SimulatedTime time;
  net::io_context io{1};
  int running = 0;

  void spawn(Awaitable<void> task) {
    ++running;
    net::co_spawn(io, std::move(task), [this](const std::exception_ptr& failure) {
      --running;
      if (failure) std::rethrow_exception(failure);
    });
  }

  /// Runs until nothing is left to do. Then everything that was spawned must have ended.
  void run() {
    while (time.step(io)) continue;
    CHECK(running == 0);
  }

  /// Lets so much time go by.
  void wait(Duration duration) {
    spawn(sleep_for(duration));
    run();
  }

  /// Runs until the task and all others have ended. Returns the task's result.
  template <class T>
  T result_of(Awaitable<T> task) {
    std::optional<T> result;
    spawn(store(std::move(task), result));
    run();
    REQUIRE(result);
    return *std::move(result);
  }

 private:
  template <class T>
  static Awaitable<void> store(Awaitable<T> task, std::optional<T>& result) {
    result = co_await std::move(task);
  }
};

}  // namespace fl::test
