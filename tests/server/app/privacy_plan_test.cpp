// SPDX-License-Identifier: Apache-2.0
#include "server/app/privacy_plan.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::server;

TEST_CASE("ten sites can't hide a site in a model, and the plan says so") {
  const PrivacyPlan plan{.clients = 10,
                         .per_round = 10,
                         .parameters = 7850,
                         .rounds = 50,
                         .delta = 1e-5,
                         .budgets = {2, 8}};
  const auto outlooks = outlooks_of(plan);
  REQUIRE(outlooks.size() == 2);
  CHECK(outlooks[0].epsilon == 2);
  // PLD with dp-accounting: 4.2 for epsilon 8.
  CHECK(outlooks[1].noise_multiplier == doctest::Approx(4.2).epsilon(0.02));
  const double noise = outlooks[1].noise_multiplier * std::sqrt(7850.0) / 10;
  CHECK(outlooks[1].noise_of_round == doctest::Approx(noise));
  CHECK(outlooks[1].noise_of_run == doctest::Approx(noise / std::sqrt(50.0)));
  CHECK(outlooks[0].noise_of_run > outlooks[1].noise_of_run);
  const std::string text = plan_text(plan, outlooks);
  CHECK(text.find("Hopeless with 10 clients") != std::string::npos);
  CHECK(text.find("possible\n") == std::string::npos);
  // With as many as it says the noise is bearable.
  PrivacyPlan more = plan;
  more.clients = more.per_round = static_cast<std::uint64_t>(clients_needed(plan, outlooks[0]));
  CHECK(outlooks_of(more)[0].noise_of_run <= noise_costly);
  --more.clients;
  --more.per_round;
  CHECK(outlooks_of(more)[0].noise_of_run > noise_costly);
}

TEST_CASE("a thousand phones can, if a tenth of them is drawn in secret") {
  const PrivacyPlan plan{.clients = 1000,
                         .per_round = 100,
                         .parameters = 7850,
                         .rounds = 100,
                         .delta = 1e-6,
                         .budgets = {8}};
  const auto outlooks = outlooks_of(plan);
  REQUIRE(outlooks.size() == 1);
  CHECK(outlooks[0].noise_multiplier == doctest::Approx(1.0).epsilon(0.01));
  const std::string text = plan_text(plan, outlooks);
  CHECK(text.find("chance 0.1 in each of 100 rounds") != std::string::npos);
  CHECK(text.find("possible\n") != std::string::npos);
  CHECK(text.find("opeless") == std::string::npos);
  // Clients that take part in each round need more noise.
  PrivacyPlan all = plan;
  all.clients = 100;
  CHECK(outlooks_of(all)[0].noise_multiplier > 2 * outlooks[0].noise_multiplier);
}

}  // namespace fl::test
