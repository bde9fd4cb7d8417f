// SPDX-License-Identifier: Apache-2.0
#include "shared/privacy/accountant.hpp"

#include "shared/base/error.hpp"
#include "shared/privacy/fourier.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <complex>
#include <cstddef>
#include <limits>
#include <numbers>
#include <vector>

namespace fl::privacy {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// All participants in each release --------------------------------------------------------------

/// The logarithm of the standard normal distribution's probability below x.
double log_normal_below(double x) {
  if (x > -30) return std::log(std::erfc(-x / std::numbers::sqrt2) / 2);
  // The asymptotic series is exact to ten digits there.
  const double square = x * x;
  return -square / 2 - std::log(-x * std::sqrt(2 * std::numbers::pi)) +
         std::log1p(-1 / square + 3 / (square * square));
}

/// The delta of one Gaussian release whose noise is 1 / mu (Balle and Wang 2018, theorem 8).
double gaussian_delta(double mu, double epsilon) {
  const double below = log_normal_below(mu / 2 - epsilon / mu);
  const double above = epsilon + log_normal_below(-mu / 2 - epsilon / mu);
  return above >= below ? 0 : std::exp(below) * -std::expm1(above - below);
}

/// All these releases are like one with less noise.
double gaussian_epsilon(std::span<const Releases> releases, double delta) {
  double square = 0;
  for (const auto& [mechanism, count] : releases) {
    const double ratio = 1 / mechanism.noise_multiplier;
    square += static_cast<double>(count) * ratio * ratio;
  }
  const double mu = std::sqrt(square);
  if (mu == 0 || gaussian_delta(mu, 0) <= delta) return 0;
  double low = 0;
  double high = 1;
  while (gaussian_delta(mu, high) > delta) high *= 2;
  for (int i = 0; i < 200 && low < std::nextafter(high, 0); ++i) {
    const double middle = low + (high - low) / 2;
    (gaussian_delta(mu, middle) > delta ? low : high) = middle;
  }
  return high;
}

// Drawn participants ----------------------------------------------------------------------------

/// The losses of all releases together that are kept; beyond on each side lies `window_tail`.
struct Window {
  double from;
  double to;
};
constexpr double window_tail = 1e-18;

/// By Chernoff's bound, with the best of several orders.
Window window_of(std::span<const Releases> releases, Direction direction) {
  Window window{-infinity, infinity};
  for (double order = 1.0 / 16; order <= 1024; order *= std::numbers::sqrt2) {
    double log_up = -std::log(window_tail);
    double log_down = log_up;
    for (const auto& [mechanism, count] : releases) {
      log_up += static_cast<double>(count) * log_moment(mechanism, direction, order);
      log_down += static_cast<double>(count) * log_moment(mechanism, direction, -order);
    }
    window.to = std::min(window.to, log_up / order);
    window.from = std::max(window.from, -log_down / order);
  }
  return window;
}

constexpr double cells_wanted = 1 << 16;
constexpr double cells_max = 1 << 22;

/// Each release is rounded up by an eighth of the unit's square at most: together that must not
/// show.
double unit_for(const Window& window, double count) {
  const double width = window.to - window.from;
  const double unit = std::min(width / cells_wanted, std::sqrt(4e-5 / count));
  return std::max(unit, width / cells_max);
}

/// The index of a loss, in units, where losses are taken modulo `size` units.
std::size_t index_of(long loss, std::size_t size) {
  const auto around = static_cast<long>(size);
  return static_cast<std::size_t>((loss % around + around) % around);
}

/// The spectrum of a distribution whose losses are taken modulo `size` units.
std::vector<std::complex<double>> spectrum_of(const LossDistribution& of, std::size_t size) {
  std::vector<std::complex<double>> values(size);
  for (std::size_t i = 0; i < of.masses.size(); ++i)
    values[index_of(of.first + static_cast<long>(i), size)] += of.masses[i];
  transform(values);
  return values;
}

/// The smallest epsilon of a distribution for a delta: delta is the sum of mass * (1 -
/// exp(epsilon - loss)) over all losses above epsilon, and `rest`.
double epsilon_of(const LossDistribution& of, double unit, double delta) {
  double mass = 0;    // The probability of the losses above this one,
  double scaled = 0;  // and the sum of their mass * exp(this loss - loss).
  for (std::size_t i = of.masses.size(); i-- > 0;) {
    const double loss = static_cast<double>(of.first + static_cast<long>(i)) * unit;
    const double here = mass - scaled + of.rest;
    if (here > delta) {
      // Between this loss and the next one; delta falls as exp(epsilon) grows.
      return std::max(0.0, loss + std::log((mass + of.rest - delta) / scaled));
    }
    if (loss <= 0) return 0;
    const double own = std::max(0.0, of.masses[i]);  // Rounding may leave less than nothing.
    mass += own;
    scaled = (scaled + own) * std::exp(-unit);
  }
  return 0;
}

double drawn_epsilon(std::span<const Releases> releases, Direction direction, double delta) {
  const Window window = window_of(releases, direction);
  double count = 0;
  for (const Releases& part : releases) count += static_cast<double>(part.count);
  const double unit = unit_for(window, count);
  const std::size_t size =
      std::bit_ceil(static_cast<std::size_t>((window.to - window.from) / unit) + 3);
  LossDistribution all;
  all.first = static_cast<long>(std::floor(window.from / unit));
  all.rest = 2 * window_tail;
  std::vector<LossDistribution> parts;
  for (const auto& [mechanism, times] : releases) {
    parts.push_back(loss_distribution(mechanism, direction, unit));
    all.rest += static_cast<double>(times) * parts.back().rest;
  }
  if (all.rest > delta) return infinity;
  std::vector<std::complex<double>> product(size, 1);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    const auto spectrum = spectrum_of(parts[part], size);
    const auto times = static_cast<double>(releases[part].count);
    for (std::size_t i = 0; i < size; ++i) {
      if (spectrum[i] == 0.0) {
        product[i] = 0;
      } else {
        product[i] *= std::exp(times * std::log(spectrum[i]));
      }
    }
  }
  transform_back(product);
  for (std::size_t i = 0; i < size; ++i)
    all.masses.push_back(product[index_of(all.first + static_cast<long>(i), size)].real());
  return epsilon_of(all, unit, delta);
}

}  // namespace

double epsilon_of(std::span<const Releases> releases, double delta) {
  FL_ASSERT(delta >= delta_min && delta < 1);
  const auto has_all = [](const Releases& of) { return of.mechanism.sampling_rate == 1; };
  if (std::ranges::all_of(releases, has_all)) return gaussian_epsilon(releases, delta);
  return std::max(drawn_epsilon(releases, Direction::removes, delta),
                  drawn_epsilon(releases, Direction::adds, delta));
}

std::optional<double> noise_for(double epsilon, double delta, double sampling_rate,
                                std::uint64_t count) {
  FL_ASSERT(epsilon > 0 && count > 0);
  // Above 0: more noise is needed. Nearly a straight line over the logarithm of the noise.
  const auto excess = [&](double log_noise) {
    const Releases releases{{sampling_rate, std::exp(log_noise)}, count};
    return std::log(epsilon_of(std::span(&releases, 1), delta) / epsilon);
  };
  double high = 0;
  double at_high = excess(high);
  double low = high;
  double at_low = at_high;
  while (at_high > 0) {
    low = high;
    at_low = at_high;
    high += 1;
    if (high > std::log(noise_max)) return std::nullopt;
    at_high = excess(high);
  }
  while (at_low <= 0) {
    high = low;
    at_high = at_low;
    low -= 1;
    at_low = excess(low);
  }
  // False position, with a step over the root where one end would stay.
  constexpr double precision = 1e-3;
  while (high - low > precision) {
    double at = low + (high - low) / 2;
    if (std::isfinite(at_low) && std::isfinite(at_high))
      at = low + (high - low) * at_low / (at_low - at_high);
    at = std::clamp(at + precision / 4, low + precision / 4, high - precision / 4);
    const double value = excess(at);
    if (value > 0) {
      low = at;
      at_low = value;
      at_high /= 2;
    } else {
      high = at;
      at_high = value;
      at_low /= 2;
    }
  }
  return std::exp(high);
}

}  // namespace fl::privacy
