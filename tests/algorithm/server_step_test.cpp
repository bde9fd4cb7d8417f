// SPDX-License-Identifier: Apache-2.0
// Compares the server's optimizers with their formulas, which are written here again in double.
#include "shared/algorithm/strategy.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

namespace fl::test {
namespace {

constexpr int rounds = 6;
constexpr std::size_t elements = 5;

/// Element i of the mean update of a round. Sizes and signs vary.
float mean_at(int round, std::size_t i) {
  return 0.02F * static_cast<float>((round * 7 + static_cast<int>(i) * 5) % 11 - 4);
}

/// Compares the steps of a strategy in all rounds with those of `formula`. It may keep two numbers,
/// a and b, for each element. They start as `first` and `second`.
void compare(std::string_view spec, double first, double second, double lr,
             const std::function<double(double d, double& a, double& b)>& formula) {
  CAPTURE(spec);
  const auto strategy = parse_strategy(spec).value();
  std::vector<std::vector<float>> state;
  for (unsigned v = 0; v < strategy->state_vectors(); ++v)
    state.emplace_back(elements, strategy->initial_state(v));
  const std::vector<std::span<float>> spans(state.begin(), state.end());
  std::vector<double> a(elements, first);
  std::vector<double> b(elements, second);
  for (int round = 1; round <= rounds; ++round) {
    std::vector<float> step(elements);
    for (std::size_t i = 0; i < elements; ++i) step[i] = mean_at(round, i);
    strategy->step({.round = static_cast<std::uint32_t>(round), .lr = lr}, spans, step);
    for (std::size_t i = 0; i < elements; ++i) {
      const double expected = formula(mean_at(round, i), a[i], b[i]);
      CHECK(std::fabs(step[i] - expected) <= 1e-6 * std::max(1.0, std::fabs(expected)));
    }
  }
}

TEST_CASE("server momentum equals its formula") {
  compare("fedavgm:lr=0.7,momentum=0.8", 0, 0, 1, [](double d, double& v, double&) {
    v = 0.8 * v + d;
    return 0.7 * v;
  });
  compare("fedavgm:lr=0.7,momentum=0.8,nesterov=yes", 0, 0, 1, [](double d, double& v, double&) {
    v = 0.8 * v + d;
    return 0.7 * (d + 0.8 * v);
  });
  compare("diloco", 0, 0, 1, [](double d, double& v, double&) {
    v = 0.9 * v + d;
    return 0.7 * (d + 0.9 * v);
  });
  compare("slowmo:lr=1.5,momentum=0.6", 0, 0, 0.05, [](double d, double& u, double&) {
    u = 0.6 * u + d / 0.05;
    return 1.5 * 0.05 * u;
  });
  compare("fedavg:lr=0.5", 0, 0, 1, [](double d, double&, double&) { return 0.5 * d; });
}

TEST_CASE("with a learning rate of 0 nothing moves and nothing becomes infinite") {
  const auto slowmo = parse_strategy("slowmo").value();
  std::vector<float> buffer(elements, 3);
  const std::vector<std::span<float>> state{buffer};
  std::vector<float> step(elements);
  slowmo->step({.round = 7, .lr = 0}, state, step);
  CHECK(step == std::vector<float>(elements));
  CHECK(buffer == std::vector<float>(elements, 3));

  const auto scaffold = parse_strategy("scaffold").value();
  const TrainSettings settings{.lr = 0};
  const std::vector<float> shared(elements, 2);
  std::vector<float> kept(elements, 1);
  std::vector<float> change(elements, 9);
  scaffold->local()->finish({settings, 10, shared, {}}, step, change, kept);
  CHECK(change == std::vector<float>(elements));
  CHECK(kept == std::vector<float>(elements, 1));
}

TEST_CASE("server Adagrad, Adam and Yogi equal their formulas") {
  const double tau = 0.01;
  compare("fedadagrad:lr=0.2,tau=0.01", 0, tau * tau, 1, [&](double d, double& m, double& v) {
    m = d;
    v += d * d;
    return 0.2 * m / (std::sqrt(v) + tau);
  });
  compare("fedadam:lr=0.2,beta1=0.8,beta2=0.95,tau=0.01", 0, tau * tau, 1,
          [&](double d, double& m, double& v) {
            m = 0.8 * m + 0.2 * d;
            v = 0.95 * v + 0.05 * d * d;
            return 0.2 * m / (std::sqrt(v) + tau);
          });
  compare("fedyogi:lr=0.2,beta1=0.8,beta2=0.95,tau=0.01", 0, tau * tau, 1,
          [&](double d, double& m, double& v) {
            m = 0.8 * m + 0.2 * d;
            v -= 0.05 * d * d * (v > d * d ? 1 : -1);
            return 0.2 * m / (std::sqrt(v) + tau);
          });
}

}  // namespace
}  // namespace fl::test
