// SPDX-License-Identifier: Apache-2.0
// Mailbox, Signal and TaskGroup: no item is lost, and every waiting coroutine is woken.
#include "shared/base/async/task_group.hpp"
#include "tests/wire/simulation.hpp"

#include <doctest/doctest.h>

#include <stdexcept>
#include <vector>

namespace fl::test {
namespace {

using namespace std::chrono_literals;

Awaitable<void> push_all(Mailbox<int>& box, int count, std::vector<bool>& pushed) {
  for (int i = 0; i < count; ++i) pushed.push_back(co_await box.push_waiting(i));
}

Awaitable<void> pop_all(Mailbox<int>& box, std::vector<int>& got) {
  while (const auto item = co_await box.pop()) got.push_back(*item);
}

Awaitable<void> pop_slowly(Mailbox<int>& box, std::vector<int>& got) {
  while (const auto item = co_await box.pop()) {
    got.push_back(*item);
    co_await sleep_for(1ms);
  }
}

Awaitable<void> close_after(Mailbox<int>& box, Duration pause) {
  co_await sleep_for(pause);
  box.close();
}

TEST_CASE("a bounded mailbox keeps the order, and push_waiting() waits for room") {
  Simulation simulation;
  Mailbox<int> box(simulation.io.get_executor(), 2);
  std::vector<int> got;
  std::vector<bool> pushed;
  simulation.spawn(push_all(box, 50, pushed));
  simulation.spawn(pop_slowly(box, got));
  simulation.spawn(close_after(box, 1s));
  simulation.run();
  REQUIRE(got.size() == 50);
  for (int i = 0; i < 50; ++i) CHECK(got[static_cast<std::size_t>(i)] == i);
  CHECK(pushed == std::vector<bool>(50, true));
}

TEST_CASE("push() fails if the box is full or closed; items in a closed box can still be popped") {
  Simulation simulation;
  Mailbox<int> box(simulation.io.get_executor(), 2);
  CHECK(box.push(1));
  CHECK(box.push(2));
  CHECK_FALSE(box.push(3));
  CHECK(box.size() == 2);
  box.close();
  CHECK_FALSE(box.push(4));
  std::vector<int> got;
  simulation.spawn(pop_all(box, got));
  simulation.run();
  CHECK(got == std::vector{1, 2});
  CHECK(box.closed());
  CHECK(box.empty());
}

TEST_CASE("close() wakes coroutines that wait for room or for an item") {
  Simulation simulation;
  Mailbox<int> full(simulation.io.get_executor(), 1);
  Mailbox<int> empty(simulation.io.get_executor(), 1);
  std::vector<bool> pushed;
  std::vector<int> got;
  simulation.spawn(push_all(full, 2, pushed));
  simulation.spawn(pop_all(empty, got));
  simulation.spawn(close_after(full, 1s));
  simulation.spawn(close_after(empty, 1s));
  simulation.run();
  CHECK(pushed == std::vector{true, false});
  CHECK(got.empty());
}

Awaitable<void> pop_until(Mailbox<int>& box, Duration limit, std::vector<std::optional<int>>& got) {
  got.push_back(co_await box.pop(Clock::now() + limit));
}

Awaitable<void> push_after(Mailbox<int>& box, Duration pause, int item) {
  co_await sleep_for(pause);
  CHECK(box.push(item));
}

TEST_CASE(
    "an item that comes at the moment of the deadline is not lost: this or the next pop gets it") {
  for (const auto pause : {Duration(9ms), Duration(10ms), Duration(11ms)}) {
    Simulation simulation;
    Mailbox<int> box(simulation.io.get_executor(), 1);
    std::vector<std::optional<int>> got;
    simulation.spawn(pop_until(box, 10ms, got));
    simulation.spawn(push_after(box, pause, 7));
    simulation.run();
    simulation.spawn(pop_until(box, 10ms, got));
    simulation.run();
    const int seen = static_cast<int>(got[0].has_value()) + static_cast<int>(got[1].has_value());
    CHECK(seen == 1);
  }
}

Awaitable<void> wait_for_ever(Signal& signal, int& ended) {
  co_await signal.wait();
  ++ended;
}

Awaitable<void> fail_after(Duration pause) {
  co_await sleep_for(pause);
  throw std::runtime_error("the first failure");
}

Awaitable<void> join(TaskGroup& group, std::string& failure) {
  try {
    co_await group.join();
  } catch (const std::exception& error) {
    failure = error.what();
  }
}

TEST_CASE("cancel() ends a group's tasks, and join() waits for all of them") {
  Simulation simulation;
  TaskGroup group(simulation.io.get_executor());
  Signal signal(simulation.io.get_executor());
  int ended = 0;
  for (int i = 0; i < 3; ++i) group.spawn(wait_for_ever(signal, ended));
  simulation.io.poll();
  group.cancel();
  std::string failure;
  simulation.spawn(join(group, failure));
  simulation.run();
  CHECK(ended == 3);
  CHECK(group.empty());
  CHECK(failure.empty());
}

TEST_CASE("join() throws the first exception of the group") {
  Simulation simulation;
  TaskGroup group(simulation.io.get_executor());
  group.spawn(fail_after(2ms));
  group.spawn(fail_after(1ms));
  std::string failure;
  simulation.spawn(join(group, failure));
  simulation.run();
  CHECK(failure == "the first failure");
  CHECK(group.empty());
}

TEST_CASE(
    "simulated time jumps to the next timer, keeps the order of equal ones, and notices the end") {
  Simulation simulation;
  std::vector<int> order;
  class Note {
   public:
    static Awaitable<void> later(Duration pause, int number, std::vector<int>& order) {
      co_await sleep_for(pause);
      order.push_back(number);
    }
  };
  simulation.spawn(Note::later(2h, 3, order));
  simulation.spawn(Note::later(1h, 1, order));
  simulation.spawn(Note::later(1h, 2, order));
  simulation.run();
  CHECK(order == std::vector{1, 2, 3});
  CHECK(simulation.time.elapsed() == 2h);
  Signal signal(simulation.io.get_executor());
  int ended = 0;
  simulation.spawn(wait_for_ever(signal, ended));
  CHECK_FALSE(simulation.time.step(simulation.io));  // No timer is left; only a signal could wake.
  signal.notify();
  simulation.run();
  CHECK(ended == 1);
}

}  // namespace
}  // namespace fl::test
