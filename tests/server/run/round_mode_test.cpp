// SPDX-License-Identifier: Apache-2.0
// --mode: when a round closes, and the weight of a late update.
#include "server/run/round_mode.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

namespace fl::test {

using namespace fl::server;
namespace {

RoundMode mode(const char* spec) { return parse_mode(spec).value(); }

TEST_CASE("a synchronous run accepts no late updates unless late=N is set") {
  CHECK_FALSE(mode("sync").is_async);
  CHECK_FALSE(mode("sync").carries());
  CHECK(mode("sync:late=2").carries());
  CHECK(mode("sync:late=2").late_max == 2);
}

TEST_CASE("an asynchronous run has a buffer and a limit for late updates") {
  const RoundMode plain = mode("async");
  CHECK(plain.is_async);
  CHECK(plain.buffer == 10);
  CHECK(plain.late_max == 20);
  CHECK(plain.carries());
  CHECK(plain.discount == RoundMode::Discount::sqrt);
  CHECK(plain.ahead == 0);
  CHECK(plain.compensation == 0);
  const RoundMode all =
      mode("async:buffer=3,late=7,weight=exponential,base=0.5,ahead=4,sync=6,compensate=0.25");
  CHECK(all.buffer == 3);
  CHECK(all.late_max == 7);
  CHECK(all.discount == RoundMode::Discount::exponential);
  CHECK(all.base == 0.5);
  CHECK(all.ahead == 4);
  CHECK(all.sync_every == 6);
  CHECK(all.compensation == 0.25);
}

TEST_CASE("with sync=T every T-th round waits for all open tasks") {
  const RoundMode third = mode("async:sync=3");
  for (Round round = 1; round <= 9; ++round) CHECK(third.is_barrier(round) == (round % 3 == 0));
  for (Round round = 1; round <= 9; ++round) CHECK_FALSE(mode("async").is_barrier(round));
}

TEST_CASE("an update's weight falls with its staleness as the discount says") {
  for (const char* spec : {"sync", "async:weight=constant"}) {
    CAPTURE(spec);
    CHECK(mode(spec).unit() == 1);
    CHECK(mode(spec).discounted(50, 9) == 50);
  }
  for (const char* spec : {"sync:late=5,weight=inverse", "async:weight=inverse"}) {
    CAPTURE(spec);
    CHECK(mode(spec).unit() == 256);
    CHECK(mode(spec).discounted(50, 0) == 50 * 256);
    CHECK(mode(spec).discounted(50, 1) == 50 * 128);
    CHECK(mode(spec).discounted(50, 3) == 50 * 64);
  }
  CHECK(mode("async:weight=sqrt").discounted(50, 3) == 50 * 128);
  CHECK(mode("async:weight=exponential,base=0.5").discounted(50, 2) == 50 * 64);
  CHECK(mode("async:weight=exponential").discounted(100, 1) == 100 * 256 * 9 / 10);
}

TEST_CASE("the discounts follow their formulas") {
  const auto part = [](const char* spec, Round age) {
    const auto weight = static_cast<double>(mode(spec).discounted(6000, age));
    return weight / static_cast<double>(6000 * mode(spec).unit());
  };
  for (const Round age : {0u, 1u, 3u, 8u, 20u}) {
    CAPTURE(age);
    const double t = age;
    CHECK(part("async:weight=constant", age) == 1);
    CHECK(part("async:weight=inverse", age) == doctest::Approx(1 / (1 + t)).epsilon(1e-6));
    CHECK(part("async", age) == doctest::Approx(1 / std::sqrt(1 + t)).epsilon(1e-6));
    CHECK(part("sync:late=9,weight=exponential,base=0.8", age) ==
          doctest::Approx(std::pow(0.8, t)).epsilon(1e-5));
  }
}

TEST_CASE("even a very stale update has a weight of at least 1") {
  CHECK(mode("async:weight=exponential").discounted(1, 400) == 1);
  CHECK(mode("async:weight=exponential,base=0.01").discounted(1, 20) == 1);
}

TEST_CASE("the error for a wrong mode says which modes and keys exist") {
  struct Case {
    const char* spec;
    const char* words;
  };
  const std::vector<Case> cases{
      {"", ""},
      {"batch", "choose sync or async"},
      {"sync:buffer=3", "no option 'buffer'"},
      {"sync:ahead=1", "no option 'ahead'"},
      {"async:buffer=0", "1 or more"},
      {"async:late=0", "1 or more"},
      {"async:ahead=0", "1 or more"},
      {"async:sync=0", "1 or more"},
      {"async:weight=cubic", "sqrt constant inverse exponential"},
      {"async:base=0.5", "for weight=exponential, not for sqrt"},
      {"async:weight=exponential,base=1", "base=1"},
      {"async:base=1", "base=1"},
      {"async:compensate=-1", "compensate=-1"},
      {"async:buffer=3,buffer=4", "buffer"},
  };
  for (const Case& one : cases) {
    CAPTURE(one.spec);
    const auto parsed = parse_mode(one.spec);
    REQUIRE(parsed.has_error());
    CAPTURE(parsed.error().message());
    CHECK(parsed.error().code() == Errc::invalid_input);
    CHECK(parsed.error().message().find(one.words) != std::string::npos);
  }
}

}  // namespace
}  // namespace fl::test
