// When a round closes and what a late update counts, as --mode says.
#include "server/run/round_mode.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

namespace fl::test {
namespace {

RoundMode mode(const char* spec) { return parse_mode(spec).value(); }

TEST_CASE("a synchronous run takes no late updates unless it is told to") {
  CHECK_FALSE(mode("sync").is_async);
  CHECK_FALSE(mode("sync").carries());
  CHECK(mode("sync:late=2").carries());
  CHECK(mode("sync:late=2").late_max == 2);
}

TEST_CASE("an asynchronous run has a buffer, and a limit for what is late") {
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

TEST_CASE("every sync-th round waits for all") {
  const RoundMode third = mode("async:sync=3");
  for (Round round = 1; round <= 9; ++round) CHECK(third.is_barrier(round) == (round % 3 == 0));
  for (Round round = 1; round <= 9; ++round) CHECK_FALSE(mode("async").is_barrier(round));
}

TEST_CASE("the weight of an update falls with its staleness, by the discount") {
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

TEST_CASE("the stalest update counts something") {
  CHECK(mode("async:weight=exponential,base=0.01").discounted(1, 20) == 1);
}

TEST_CASE("modes that can't be are refused, with what there is") {
  for (const char* bad :
       {"", "batch", "sync:buffer=3", "sync:ahead=1", "async:buffer=0", "async:late=0",
        "async:weight=cubic", "async:base=0.5", "async:weight=exponential,base=1", "async:ahead=0",
        "async:sync=0", "async:compensate=-1", "async:buffer=3,buffer=4"}) {
    CAPTURE(bad);
    const auto parsed = parse_mode(bad);
    REQUIRE(parsed.has_error());
    CHECK(parsed.error().code() == Errc::invalid_input);
  }
  CHECK(parse_mode("batch").error().message().find("choose sync or async") != std::string::npos);
}

}  // namespace
}  // namespace fl::test
