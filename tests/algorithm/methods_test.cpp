// SPDX-License-Identifier: Apache-2.0
// Tests methods on quadratic losses. Different clients pull FedAvg away from the optimum; methods
// that correct this drift must reach it.
#include "tests/algorithm/federation.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <string>

namespace fl::test {
namespace {

/// Three clients that differ in curvature, centre and weight.
std::vector<Quadratic> clients() {
  return {{{1.0F, 0.2F, 2.0F}, {1, 4, -1}, 100, 20},
          {{0.3F, 1.5F, 0.5F}, {-2, 1, 3}, 300, 20},
          {{2.0F, 0.6F, 1.0F}, {3, -3, 0}, 50, 20}};
}

double distance_after(int rounds, std::string_view strategy, const std::vector<Quadratic>& who,
                      const TrainSettings& settings) {
  Federation federation(strategy, who, settings);
  for (int round = 0; round < rounds; ++round) federation.run_round();
  const bool is_uniform = parse_strategy(strategy).value()->weight_of(2) == 1;
  return federation.distance(optimum(who, is_uniform));
}

TEST_CASE("FedAvg drifts; SCAFFOLD and FedDyn reach the optimum") {
  const TrainSettings settings{.lr = 0.05};
  CHECK(distance_after(400, "fedavg", clients(), settings) > 0.1);
  for (const std::string method : {"scaffold", "scaffold:option=1", "scaffold:weight=uniform",
                                   "feddyn:alpha=0.5", "feddyn:alpha=0.5,weight=uniform"}) {
    CAPTURE(method);
    CHECK(distance_after(400, method, clients(), settings) < 1e-3);
  }
}

TEST_CASE("SCAFFOLD reaches the optimum with momentum too") {
  const TrainSettings settings{.lr = 0.01, .momentum = 0.9};
  CHECK(distance_after(400, "fedavg", clients(), settings) > 0.1);
  CHECK(distance_after(400, "scaffold", clients(), settings) < 1e-3);
  TrainSettings nesterov = settings;
  nesterov.optimizer.kind = LocalOptimizer::Kind::nesterov;
  CHECK(effective_steps(nesterov, 20) > effective_steps(settings, 20));
}

TEST_CASE("SCAFFOLD and FedDyn reach the optimum if one client is missing in each round") {
  for (const std::string method : {"scaffold", "feddyn:alpha=0.5"}) {
    CAPTURE(method);
    Federation federation(method, clients(), {.lr = 0.02});
    for (std::size_t round = 0; round < 3000; ++round) {
      federation.run_round({round % 3, (round + 1) % 3});
    }
    CHECK(federation.distance(optimum(clients())) < 0.02);
  }
}

TEST_CASE("SCAFFOLD and FedDyn reach the optimum of all clients if some join late") {
  for (const std::string method : {"scaffold", "scaffold:weight=uniform", "feddyn:alpha=0.5"}) {
    CAPTURE(method);
    Federation federation(method, clients(), {.lr = 0.05});
    federation.run_round({0});
    for (int round = 0; round < 5; ++round) federation.run_round({0, 1});
    for (int round = 0; round < 600; ++round) federation.run_round();
    const bool is_uniform = parse_strategy(method).value()->weight_of(2) == 1;
    CHECK(federation.distance(optimum(clients(), is_uniform)) < 1e-3);
  }
}

TEST_CASE("the server's control variate is the weighted mean of the clients' gradients") {
  Federation federation("scaffold:option=1", clients(), {.lr = 0.01});
  federation.run_round();
  double expected = 0;  // At the round's first model, which is 0.
  for (const auto& client : clients())
    expected -= static_cast<double>(client.examples) * client.curvature[0] * client.centre[0] / 450;
  CHECK(federation.shared()[0] == doctest::Approx(expected).epsilon(1e-5));
}

TEST_CASE("clients that do more steps pull FedAvg to themselves, but not FedNova") {
  // All curvatures are equal, so only the number of steps can pull.
  std::vector<Quadratic> unequal{{{1, 1}, {1, 0}, 10, 2}, {{1, 1}, {-1, 4}, 10, 30}};
  for (const double momentum : {0.0, 0.9}) {
    CAPTURE(momentum);
    const TrainSettings settings{.lr = 0.002, .momentum = momentum};
    CHECK(distance_after(3000, "fedavg", unequal, settings) > 0.5);
    CHECK(distance_after(3000, "fednova", unequal, settings) <
          0.2 * distance_after(3000, "fedavg", unequal, settings));
    CHECK(distance_after(3000, "fednova:mu=0.5", unequal, settings) <
          0.2 * distance_after(3000, "fedprox:mu=0.5", unequal, settings));
  }
}

TEST_CASE("FedProx with a huge mu freezes the clients, and with 0 it is FedAvg") {
  const TrainSettings settings{.lr = 1e-5};
  Federation frozen("fedprox:mu=99000", clients(), settings);
  Federation average("fedavg", clients(), settings);
  Federation none("fedprox:mu=0", clients(), settings);
  frozen.run_round();
  average.run_round();
  none.run_round();
  CHECK(std::fabs(frozen.model()[0]) < 0.06 * std::fabs(average.model()[0]));
  CHECK(none.model() == average.model());
}

TEST_CASE("the majority's sign decides, even if the minority's update is much longer") {
  std::vector<Quadratic> voters{
      {{1, 1}, {1, -1}, 10, 5}, {{1, 1}, {2, -9}, 10, 5}, {{1, 1}, {-1000, 0}, 10, 5}};
  Federation federation("signvote:lr=0.125", voters, {.lr = 0.1});
  federation.run_round();
  CHECK(federation.model() == Vector{0.125F, -0.125F});
  voters[2].examples = 25;  // More than the others together.
  Federation weighted("signvote:lr=0.125", voters, {.lr = 0.1});
  weighted.run_round();
  CHECK(weighted.model() == Vector{-0.125F, -0.125F});
  Federation uniform("signvote:lr=0.125,weight=uniform", voters, {.lr = 0.1});
  uniform.run_round();
  CHECK(uniform.model() == Vector{0.125F, -0.125F});
}

TEST_CASE("the effective steps equal their closed forms") {
  const TrainSettings plain{.lr = 0.1};
  CHECK(effective_steps(plain, 17) == doctest::Approx(17));
  for (const double rho : {0.5, 0.9}) {
    const TrainSettings with{.lr = 0.1, .momentum = rho};
    for (const std::uint64_t steps : {1U, 2U, 40U, 5000U}) {
      const auto n = static_cast<double>(steps);
      const double expected =
          n / (1 - rho) - rho * (1 - std::pow(rho, n)) / ((1 - rho) * (1 - rho));
      CHECK(effective_steps(with, steps) == doctest::Approx(expected).epsilon(1e-9));
    }
  }
  // Wang 2020, section 4.1: with the proximal term they are (1 - (1 - lr mu)^n) / (lr mu).
  const TrainSettings proximal{.lr = 0.1, .proximal_mu = 0.5};
  CHECK(effective_steps(proximal, 30) ==
        doctest::Approx((1 - std::pow(0.95, 30)) / 0.05).epsilon(1e-9));
  // A hostile client may send such a number. It must not cause an endless loop.
  CHECK(effective_steps(plain, 1ULL << 60) == doctest::Approx(std::ldexp(1.0, 60)));
  CHECK(effective_steps(proximal, 1ULL << 60) == doctest::Approx(20));
}

/// How far SGD goes along a constant gradient of 1 in `steps` steps with a learning rate of 1, by
/// the update rules of PyTorch, with none of our formulas.
double way_of_sgd(double momentum, bool is_nesterov, std::uint64_t steps) {
  double way = 0;
  double velocity = 0;
  for (std::uint64_t step = 0; step < steps; ++step) {
    velocity = momentum * velocity + 1;
    way += is_nesterov ? 1 + momentum * velocity : velocity;
  }
  return way;
}

/// Calls use(settings, steps, way) for SGD with and without momentum.
void for_each_work(const std::function<void(const TrainSettings&, std::uint64_t, double)>& use) {
  for (const double momentum : {0.0, 0.5, 0.9}) {
    for (const bool is_nesterov : {false, true}) {
      for (const std::uint64_t steps : {1u, 2u, 7u, 40u}) {
        TrainSettings settings{.lr = 0.05, .momentum = momentum};
        if (is_nesterov) settings.optimizer.kind = LocalOptimizer::Kind::nesterov;
        CAPTURE(momentum);
        CAPTURE(is_nesterov);
        CAPTURE(steps);
        use(settings, steps, way_of_sgd(momentum, is_nesterov, steps));
      }
    }
  }
}

// With a constant gradient g the corrected gradient is g + c - c_i, so the client moves by -lr
// times the way times that. Then its next variate must be g itself, whatever the momentum is: a
// wrong length of the steps only changes how fast SCAFFOLD converges, not where.
TEST_CASE("SCAFFOLD's variate is the gradient, exactly, also with momentum") {
  const auto scaffold = parse_strategy("scaffold").value();
  for_each_work([&](const TrainSettings& settings, std::uint64_t steps, double way) {
    const Vector gradient{1, -2, 0.25F};
    const Vector shared{0.5F, 0, -1};
    Vector kept{-1, 3, 0.125F};
    Vector before = kept;
    Vector update(3);
    for (std::size_t i = 0; i < update.size(); ++i)
      update[i] = static_cast<float>(-settings.lr * way * (gradient[i] + shared[i] - before[i]));
    Vector change(3);
    scaffold->local()->finish({settings, steps, shared, {}}, update, change, kept);
    for (std::size_t i = 0; i < kept.size(); ++i) {
      CHECK(kept[i] == doctest::Approx(gradient[i]).epsilon(1e-5));
      CHECK(change[i] == doctest::Approx(gradient[i] - before[i]).epsilon(1e-5));
    }
  });
}

// Clients with the same gradient g: each sends -lr g, whatever its steps are, and the server's step
// is that times the mean of the ways.
TEST_CASE("FedNova sends the update of one step, and the server's step has the mean length") {
  const auto fednova = parse_strategy("fednova").value();
  for_each_work([&](const TrainSettings& settings, std::uint64_t steps, double way) {
    Vector update{static_cast<float>(-settings.lr * way), static_cast<float>(2 * way)};
    fednova->local()->finish({settings, steps, {}, {}}, update, {}, {});
    CHECK(update[0] == doctest::Approx(-settings.lr).epsilon(1e-5));
    CHECK(update[1] == doctest::Approx(2).epsilon(1e-5));
    fednova->step({.effective_steps = way}, {}, update);
    CHECK(update[0] == doctest::Approx(-settings.lr * way).epsilon(1e-5));
  });
}

}  // namespace
}  // namespace fl::test
