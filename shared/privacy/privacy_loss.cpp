// SPDX-License-Identifier: Apache-2.0
#include "shared/privacy/privacy_loss.hpp"

#include "shared/base/error.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

namespace fl::privacy {

namespace {

/// Beyond so many standard deviations lies a probability of 1e-19 on each side.
constexpr double tail = 9;
/// No piece of the quadrature is wider, in standard deviations.
constexpr double piece_max = 0.25;

/// Gauss and Legendre's rule of eight points: half of the nodes and their weights, on [-1, 1].
constexpr std::array<std::pair<double, double>, 4> rule{{{0.1834346424956498, 0.3626837833783620},
                                                         {0.5255324099163290, 0.3137066458778873},
                                                         {0.7966664774136267, 0.2223810344533745},
                                                         {0.9602898564975363, 0.1012285362903763}}};

/// The logarithm of the density of N(0, sigma^2).
double log_normal(double x, double sigma) {
  const double z = x / sigma;
  return -z * z / 2 - std::log(sigma * std::sqrt(2 * std::numbers::pi));
}

/// The mechanism, with x as what is observed.
class Observed {
 public:
  Observed(const Mechanism& mechanism, Direction direction)
      : q_(mechanism.sampling_rate), sigma_(mechanism.noise_multiplier), direction_(direction) {
    FL_ASSERT(q_ > 0 && q_ <= 1 && sigma_ > 0);
  }

  [[nodiscard]] double lowest() const { return -tail * sigma_; }
  [[nodiscard]] double highest() const {
    return tail * sigma_ + (direction_ == Direction::removes ? 1 : 0);
  }
  [[nodiscard]] double sigma() const { return sigma_; }

  /// The logarithm of the density of what is observed. The loss is that of the quotient.
  [[nodiscard]] double log_density(double x) const {
    const double without = log_normal(x, sigma_);
    return direction_ == Direction::adds ? without : without + loss(x);
  }

  /// The loss of an x. With `adds` it falls as x grows.
  [[nodiscard]] double loss(double x) const {
    const double exponent = (2 * x - 1) / (2 * sigma_ * sigma_);
    // log(1 - q + q exp(exponent)), without overflow.
    double log_ratio = exponent;
    if (q_ < 1) {
      log_ratio = exponent > 0 ? exponent + std::log(q_ + (1 - q_) * std::exp(-exponent))
                               : std::log1p(q_ * std::expm1(exponent));
    }
    return direction_ == Direction::removes ? log_ratio : -log_ratio;
  }

  /// The x of a loss; beyond what can be observed, an infinity.
  [[nodiscard]] double x_of(double loss) const {
    const double log_ratio = direction_ == Direction::removes ? loss : -loss;
    // exp(log_ratio) = 1 - q + q exp(exponent)
    double exponent = log_ratio;
    if (q_ < 1 && log_ratio > 30) {
      exponent = log_ratio - std::log(q_) + std::log1p((q_ - 1) * std::exp(-log_ratio));
    } else if (q_ < 1) {
      const double scaled = (std::expm1(log_ratio) + q_) / q_;
      if (!(scaled > 0)) return -std::numeric_limits<double>::infinity();
      exponent = std::log(scaled);
    }
    return exponent * sigma_ * sigma_ + 0.5;
  }

  /// Calls take(x, weight) for the nodes of the quadrature over [from, to].
  template <class Take>
  static void nodes(double from, double to, Take&& take) {
    const double middle = (from + to) / 2;
    const double half = (to - from) / 2;
    for (const auto& [node, weight] : rule)
      for (const double x : {middle - half * node, middle + half * node}) take(x, half * weight);
  }

 private:
  double q_;
  double sigma_;
  Direction direction_;
};

}  // namespace

double log_moment(const Mechanism& mechanism, Direction direction, double order) {
  const Observed observed(mechanism, direction);
  // exp(order * loss) moves the mean by up to |order|: the terms that count lie there.
  const double reach = std::abs(order) + 1;
  const double from = observed.lowest() - reach;
  const double to = observed.highest() + reach;
  const auto pieces =
      static_cast<std::size_t>(std::ceil((to - from) / (piece_max * observed.sigma())));
  std::vector<double> logs;
  for (std::size_t i = 0; i < pieces; ++i) {
    const double width = (to - from) / static_cast<double>(pieces);
    const double begin = from + width * static_cast<double>(i);
    Observed::nodes(begin, begin + width, [&](double x, double weight) {
      logs.push_back(std::log(weight) + observed.log_density(x) + order * observed.loss(x));
    });
  }
  const double most = std::ranges::max(logs);
  double sum = 0;
  for (const double log : logs) sum += std::exp(log - most);
  return most + std::log(sum);
}

LossDistribution loss_distribution(const Mechanism& mechanism, Direction direction, double unit) {
  const Observed observed(mechanism, direction);
  const bool rises = direction == Direction::removes;
  const double least = observed.loss(rises ? observed.lowest() : observed.highest());
  const double most = observed.loss(rises ? observed.highest() : observed.lowest());
  LossDistribution out;
  out.first = static_cast<long>(std::floor(least / unit));
  const auto cells =
      static_cast<std::size_t>(static_cast<long>(std::ceil(most / unit)) - out.first);
  out.masses.resize(std::max<std::size_t>(cells, 1) + 1);
  const double whole = -std::expm1(-unit);
  const auto x_within = [&](double loss) {
    return std::clamp(observed.x_of(loss), observed.lowest(), observed.highest());
  };
  for (std::size_t cell = 0; cell + 1 < out.masses.size(); ++cell) {
    const double loss = static_cast<double>(out.first + static_cast<long>(cell)) * unit;
    double from = x_within(loss);
    double to = x_within(loss + unit);
    if (cell == 0) from = rises ? observed.lowest() : observed.highest();
    if (cell + 2 == out.masses.size()) to = rises ? observed.highest() : observed.lowest();
    if (from > to) std::swap(from, to);
    const auto pieces = std::max<std::size_t>(
        1, static_cast<std::size_t>(std::ceil((to - from) / (piece_max * observed.sigma()))));
    const double width = (to - from) / static_cast<double>(pieces);
    for (std::size_t i = 0; i < pieces; ++i) {
      const double begin = from + width * static_cast<double>(i);
      Observed::nodes(begin, begin + width, [&](double x, double weight) {
        const double mass = weight * std::exp(observed.log_density(x));
        // upper * exp(-unit) + (1 - upper) = exp(-above)
        const double above = std::clamp(observed.loss(x) - loss, 0.0, unit);
        const double upper = -std::expm1(-above) / whole;
        out.masses[cell] += mass * (1 - upper);
        out.masses[cell + 1] += mass * upper;
      });
    }
  }
  // The pieces have left out the probability beyond the tails.
  out.rest = std::erfc(tail / std::numbers::sqrt2);
  return out;
}

}  // namespace fl::privacy
