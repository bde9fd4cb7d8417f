// SPDX-License-Identifier: Apache-2.0
// What the losses of several clients make together.
#include "server/round/loss_weight.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

namespace fl::test {

using namespace fl::server;
namespace {

double mean_of(std::vector<LossWeight> losses, double cap = 10) { return mean_loss(losses, cap); }

TEST_CASE("a loss weighs as many predictions as it is a mean over") {
  CHECK(mean_of({{1, 100, 300.0}, {2, 100, 100.0}}) == 1.25);
  CHECK(mean_of({{1, 300}, {2, 100}}) == 1.25);
  // One client that says nothing of its predictions: it has as many as examples.
  CHECK(mean_of({{1, 300}, {2, 50, 100.0}}) == 1.25);
}

TEST_CASE("a loss without predictions does not count") {
  CHECK(mean_of({{1, 100, 0.0}, {2, 100, 50.0}, {4, 100, 0.0}}) == 2);
  CHECK(std::isnan(mean_of({{1, 100, 0.0}, {2, 100, 0.0}})));
}

TEST_CASE("nobody's predictions count more than the cap times the median") {
  CHECK(mean_of({{0, 100, 1e15}, {1, 100, 50.0}, {1, 100, 40.0}}) == 90.0 / 590);
  // With two, the smaller one is the median; clients without predictions are left out.
  CHECK(mean_of({{0, 100, 1e15}, {1, 100, 50.0}}) == 50.0 / 550);
  CHECK(mean_of({{0, 1, 1e15}, {1, 1, 50.0}, {7, 1, 0.0}, {7, 1, 0.0}}) == 50.0 / 550);
  CHECK(mean_of({{0, 100, 900.0}, {1, 100, 100.0}}) == 0.1);
  CHECK(mean_of({{0, 100, 9900.0}, {1, 100, 100.0}}, 0) == 0.01);
  // The examples have their own limit, which the round has fixed before.
  CHECK(mean_of({{0, 9900}, {1, 100}}) == 0.01);
}

}  // namespace
}  // namespace fl::test
