// SPDX-License-Identifier: Apache-2.0
// Schedules of the learning rate and of the local steps: their specs, and what they give by round.
#include "server/run/schedule.hpp"

#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <numbers>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::server;
namespace {

TEST_CASE("learning rates by round") {
  CHECK(parse_schedule("constant").value().at(7, 10) == 1);
  const auto step = parse_schedule("step:every=3,factor=0.5").value();
  CHECK(step.at(1, 10) == 1);
  CHECK(step.at(3, 10) == 1);
  CHECK(step.at(4, 10) == 0.5);
  CHECK(step.at(7, 10) == 0.25);
  const auto cosine = parse_schedule("cosine:floor=0.1,warmup=2").value();
  CHECK(cosine.at(1, 12) == 0.5);
  CHECK(cosine.at(2, 12) == 1);
  CHECK(cosine.at(3, 12) == 1);
  CHECK(cosine.at(12, 12) > 0.1);  // The floor would come one round later.
  CHECK(cosine.at(12, 12) ==
        doctest::Approx(0.1 + 0.9 * (1 - std::cos(0.1 * std::numbers::pi)) / 2));
  CHECK(cosine.at(20, 12) == cosine.at(12, 12));  // After the planned end.
  CHECK(parse_schedule("cosine").value().at(1, 1) == 1);
  for (const std::uint32_t round : {2u, 10u, 11u, 500u})
    CHECK(parse_schedule("cosine").value().at(round, 10) > 0);
  for (const std::string wrong :
       {"", "linear", "step:every=0", "step:every=1.5", "cosine:floor=2", "constant:floor=1"}) {
    CAPTURE(wrong);
    CHECK_FALSE(parse_schedule(wrong));
  }
}

TEST_CASE("local steps by round") {
  const auto at = [](const std::string& spec, std::uint32_t round,
                     std::vector<double> losses = {}) {
    return parse_steps_schedule(spec).value().at(round, 20, losses);
  };
  CHECK(at("constant", 7) == 20);
  CHECK(at("warmup:rounds=3", 1) == 1);
  CHECK(at("warmup:rounds=3", 2) == 10);
  CHECK(at("warmup:rounds=3", 3) == 20);
  CHECK(at("warmup:rounds=1", 1) == 20);
  CHECK(at("warmup", 4'000'000'000) == 20);
  CHECK(at("post-local:from=3", 2) == 1);
  CHECK(at("post-local:from=3", 3) == 20);
  CHECK(at("adaptive", 1) == 20);
  CHECK(at("adaptive", 2, {2.0}) == 20);
  CHECK(at("adaptive", 3, {2.0, 0.5}) == 10);
  CHECK(at("adaptive", 3, {2.0, 0.51}) == 11);       // Rounded up.
  CHECK(at("adaptive", 3, {2.0, 0.5, 1e-9}) == 10);  // By the round before this one.
  CHECK(at("adaptive", 4, {2.0, 0.5, 0.0}) == 1);    // At least 1.
  CHECK(at("adaptive", 4, {2.0, 0.5, 8.0}) == 20);   // At most all.
  CHECK(at("adaptive", 3, {0.0, 0.0}) == 20);        // No loss to compare with.
  CHECK(at("adaptive", 3, {2.0, std::nan("")}) == 20);
  for (const std::string wrong :
       {"", "linear", "warmup:rounds=0", "post-local:rounds=3", "adaptive:from=2"}) {
    CAPTURE(wrong);
    CHECK_FALSE(parse_steps_schedule(wrong));
  }
}

}  // namespace
}  // namespace fl::test
