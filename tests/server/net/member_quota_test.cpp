// SPDX-License-Identifier: Apache-2.0
// How much a member may send of its own accord.
#include "server/net/member_quota.hpp"
#include "shared/base/limits.hpp"
#include "tests/support/print_result.hpp"
#include "tests/wire/simulation.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <string>

namespace fl::test {

using namespace fl::server;
namespace {

using namespace std::chrono_literals;
using Cost = MemberQuota::Cost;

void pass(Simulation& simulation, Duration time) {
  simulation.spawn(sleep_for(time));
  simulation.run();
}

TEST_CASE("a bucket holds its capacity, refills with time, and takes some more as a gift") {
  Simulation simulation;
  TokenBucket bucket(4, 2, 6);
  for (int i = 0; i < 4; ++i) CHECK(bucket.take(1));
  CHECK_FALSE(bucket.take(1));
  pass(simulation, 1s);
  CHECK(bucket.take(2));
  CHECK_FALSE(bucket.take(0.5));
  pass(simulation, 1h);
  CHECK_FALSE(bucket.take(4.5));
  bucket.give(100);
  CHECK(bucket.take(10));
  CHECK_FALSE(bucket.take(0.5));
}

/// How many of these messages pass at once.
int passing(MemberQuota& quota, const wire::Header& message, Cost cost = Cost::message) {
  int passed = 0;
  while (passed < 10'000 && quota.charge(message, cost)) ++passed;
  return passed;
}

TEST_CASE("messages, their bytes, downloads and renewals have limits of their own") {
  Simulation simulation;
  wire::Header failed;
  failed.mutable_failed()->set_task(7);
  wire::Header fetch;
  fetch.mutable_fetch()->set_version(7);
  wire::Header renew;
  renew.mutable_renew()->set_csr_pem("x");
  wire::Header large;
  large.mutable_failed()->set_reason(std::string(250'000, 'x'));
  CHECK(passing(*std::make_unique<MemberQuota>(), failed) == limits::quota_messages);
  CHECK(passing(*std::make_unique<MemberQuota>(), fetch, Cost::download) ==
        limits::quota_downloads);
  CHECK(passing(*std::make_unique<MemberQuota>(), renew, Cost::renewal) == limits::quota_renewals);
  MemberQuota quota;
  CHECK(passing(quota, large) == 8);
  CHECK(quota.charge(large, Cost::granted));
  CHECK(quota.charge(large, Cost::message).error().message().find("too many bytes") !=
        std::string::npos);
}

TEST_CASE("what the server asks for may be answered, however fast the rounds are") {
  Simulation simulation;
  MemberQuota quota;
  wire::Header offer;
  offer.mutable_offer()->set_task(1);
  wire::Header fetch;
  fetch.mutable_fetch()->set_version(7);
  wire::Header begin;
  begin.mutable_begin()->set_codec(std::string(200, 'x'));
  // As many requests at once as an evaluator gets that was away.
  for (std::uint32_t i = 0; i < limits::evaluations_asked_max; ++i) quota.allow_answers_to(offer);
  for (std::uint32_t i = 0; i < limits::evaluations_asked_max; ++i)
    REQUIRE(quota.charge(fetch, Cost::download));
  for (int round = 0; round < 10'000; ++round) {
    quota.allow_answers_to(offer);
    for (int i = 0; i < 2; ++i) REQUIRE(quota.charge(fetch, Cost::download));
    for (int i = 0; i < 3; ++i) REQUIRE(quota.charge(begin, Cost::message));
  }
}

}  // namespace
}  // namespace fl::test
