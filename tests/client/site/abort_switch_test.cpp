// SPDX-License-Identifier: Apache-2.0
// The switch that ends the calls of a rank's groups.
#include "client/site/abort_switch.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <thread>

namespace fl::test {

using namespace fl::site;
namespace {

using namespace std::chrono_literals;

/// Waits until `value` is `wanted`, but not for ever.
bool becomes(const std::atomic<int>& value, int wanted) {
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (value != wanted && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(1ms);
  return value == wanted;
}

}  // namespace

TEST_CASE("an abort ends the calls of the request that goes on, and of no other") {
  std::atomic<int> ended = 0;
  AbortSwitch abort;
  const auto end = [&] { ++ended; };
  const AbortSwitch::Hold hold(abort, end);
  { const AbortSwitch::Hold gone(abort, end); }
  abort.begin(7);
  CHECK(!abort.is_on());
  CHECK(!abort.reason());

  abort.abort(6, "of the request before");
  CHECK(!abort.is_on());
  abort.abort(7, "rank 1 is lost");
  CHECK(abort.reason() == "rank 1 is lost");
  abort.abort(7, "rank 2 is lost too");  // The first reason stays.
  CHECK(abort.reason() == "rank 1 is lost");
  REQUIRE(becomes(ended, 1));
  {
    const AbortSwitch::Hold late(abort, end);
    CHECK(ended == 2);
  }

  abort.begin(8);
  CHECK(!abort.is_on());
  // It may come before the request has been taken from the queue.
  abort.abort(9, "rank 3 is lost");
  CHECK(!abort.is_on());
  abort.begin(9);
  CHECK(abort.reason() == "rank 3 is lost");
  REQUIRE(becomes(ended, 3));
  abort.begin(10);
  CHECK(!abort.reason());
  std::this_thread::sleep_for(20ms);
  CHECK(ended == 3);
}

TEST_CASE("an end that takes long holds up only the groups, and none of the next request") {
  std::atomic<int> begun = 0;
  std::atomic<int> released = 0;
  std::atomic<int> ended_later = 0;
  AbortSwitch abort;
  abort.begin(1);
  std::optional<AbortSwitch::Hold> slow;
  slow.emplace(abort, [&] {
    ++begun;
    CHECK(becomes(released, 1));
    CHECK(abort.reason() != "rank 1 is lost");  // It may ask; by now the next request has begun.
  });
  abort.abort(1, "rank 1 is lost");  // Returns at once, and so do these.
  REQUIRE(becomes(begun, 1));
  CHECK(abort.reason() == "rank 1 is lost");
  abort.begin(2);
  CHECK(!abort.is_on());
  std::thread next([&] { const AbortSwitch::Hold group(abort, [&] { ++ended_later; }); });
  std::this_thread::sleep_for(20ms);
  released = 1;
  next.join();
  slow.reset();
  CHECK(ended_later == 0);
}

}  // namespace fl::test
