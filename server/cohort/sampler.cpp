// SPDX-License-Identifier: Apache-2.0
#include "server/cohort/sampler.hpp"

#include "kernels/generic/philox.hpp"
#include "server/history/counted_claims.hpp"
#include "shared/base/median.hpp"
#include "shared/base/spec/nearest_name.hpp"
#include "shared/base/spec/spec_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>

namespace fl::server {

/// The random numbers of one drawing in one round: number i is always the same.
struct Draws {
  std::uint64_t seed;
  Round round;
  std::uint64_t draw;

  [[nodiscard]] std::uint32_t word(std::uint64_t i) const {
    return philox::block_at(seed, round, draw + i).word[0];
  }
  /// Above 0 and below 1.
  [[nodiscard]] double part(std::uint64_t i) const { return (word(i) + 0.5) * 0x1p-32; }
};

namespace {

std::vector<std::size_t> indices_of(std::span<const Candidate> candidates) {
  std::vector<std::size_t> all(candidates.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

/// The first steps of a Fisher-Yates shuffle.
std::vector<std::size_t> shuffle_first(std::vector<std::size_t> all, std::size_t count,
                                       const Draws& draws) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t left = all.size() - i;
    std::swap(all[i], all[i + static_cast<std::size_t>((draws.word(i) * left) >> 32)]);
  }
  all.resize(count);
  return all;
}

/// The `count` candidates with the largest keys. Equal keys keep the candidates' order.
template <class Key>
std::vector<std::size_t> best(std::vector<std::size_t> from, std::size_t count, Key key) {
  std::vector<double> keys;
  keys.reserve(from.size());
  for (const std::size_t index : from) keys.push_back(key(index));
  const std::vector<std::size_t> before = from;
  std::vector<std::size_t> order(from.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return keys[a] > keys[b]; });
  from.resize(std::min(count, from.size()));
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = before[order[i]];
  return from;
}

std::vector<std::size_t> by_chance(const Sampler&, std::span<const Candidate> candidates,
                                   std::size_t count, const Draws& draws) {
  return shuffle_first(indices_of(candidates), count, draws);
}

std::vector<std::size_t> by_examples(const Sampler&, std::span<const Candidate> candidates,
                                     std::size_t count, const Draws& draws) {
  return best(indices_of(candidates), count, [&](std::size_t i) {
    return std::log(draws.part(i)) / candidates[i].counted_examples();
  });
}

std::vector<double> known_losses(std::span<const Candidate> candidates) {
  std::vector<double> losses;
  for (const auto& candidate : candidates) {
    if (candidate.history.loss) losses.push_back(*candidate.history.loss);
  }
  return losses;
}

/// The median of the known losses; 0 if none is known.
double middle_loss(std::span<const Candidate> candidates) {
  std::vector<double> losses = known_losses(candidates);
  return losses.empty() ? 0 : upper_median(std::move(losses));
}

/// oort's T: clients that took at most this long are not too slow.
double pace_at(std::span<const Candidate> candidates, double quantile) {
  std::vector<double> seconds;
  for (const auto& candidate : candidates) {
    if (candidate.history.loss) seconds.push_back(candidate.history.seconds);
  }
  if (seconds.empty()) return std::numeric_limits<double>::infinity();
  std::ranges::sort(seconds);
  const double place = quantile * static_cast<double>(seconds.size() - 1);
  return seconds[static_cast<std::size_t>(std::ceil(place - 1e-9))];
}

std::vector<std::size_t> by_utility(const Sampler& sampler, std::span<const Candidate> candidates,
                                    std::size_t count, const Draws& draws) {
  std::vector<std::size_t> fresh;
  std::vector<std::size_t> known;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    (candidates[i].history.last_round > 0 ? known : fresh).push_back(i);
  }
  // The number of new clients to explore (chance decides about a fraction of one), and more if
  // there are not enough known ones.
  const double part = sampler.explore * static_cast<double>(count) - 1e-9;
  const double whole = std::floor(std::max(0.0, part));
  const auto wanted =
      static_cast<std::size_t>(whole) + (draws.part(candidates.size()) < part - whole ? 1 : 0);
  const std::size_t missing = count - std::min(count, known.size());
  const std::size_t explored = std::min(fresh.size(), std::max(wanted, missing));
  auto picked = shuffle_first(std::move(fresh), explored, draws);
  const double pace = pace_at(candidates, sampler.quantile);
  const double rounds = std::max<double>(2, draws.round);
  const double loss_max = figure_limit(known_losses(candidates));
  const auto exploited = best(std::move(known), count - explored, [&](std::size_t i) {
    const ClientHistory& history = candidates[i].history;
    const double examples = candidates[i].counted_examples();
    const double since = std::max<double>(1, history.last_round);
    // A client that was asked and has brought nothing yet gets only the bonus.
    const double loss = counted_figure(history.loss.value_or(0), loss_max);
    double utility = examples * std::max(0.0, loss);
    utility += examples * std::sqrt(0.1 * std::log(rounds) / since);
    if (history.seconds > pace) utility *= std::pow(pace / history.seconds, sampler.alpha);
    return utility;
  });
  picked.insert(picked.end(), exploited.begin(), exploited.end());
  return picked;
}

std::vector<std::size_t> by_turns(const Sampler&, std::span<const Candidate> candidates,
                                  std::size_t count, const Draws&) {
  return best(indices_of(candidates), count, [&](std::size_t i) {
    return -static_cast<double>(candidates[i].history.last_round);
  });
}

std::vector<std::size_t> by_loss(const Sampler& sampler, std::span<const Candidate> candidates,
                                 std::size_t count, const Draws& draws) {
  const std::size_t drawn =
      std::clamp(sampler.d == 0 ? 2 * count : sampler.d, count, candidates.size());
  const double middle = middle_loss(candidates);
  return best(by_examples(sampler, candidates, drawn, draws), count, [&](std::size_t i) {
    // New clients come first. A client that was asked and has brought nothing counts as the
    // median.
    const ClientHistory& history = candidates[i].history;
    return history.loss.value_or(history.last_round == 0 ? std::numeric_limits<double>::infinity()
                                                         : middle);
  });
}

constexpr SamplerRow samplers[] = {
    {.name = "uniform", .usage = "uniform", .pick = by_chance},
    {.name = "examples", .usage = "examples", .pick = by_examples, .needs_claims = true},
    {.name = "round-robin", .usage = "round-robin", .pick = by_turns, .needs_history = true},
    {.name = "power-of-choice",
     .usage = "power-of-choice[:d=D]",
     .pick = by_loss,
     .read = [](SpecOptions& options, Sampler& s) { s.d = options.count("d", 0, 1); },
     .needs_history = true,
     .needs_claims = true},
    {.name = "oort",
     .usage = "oort[:alpha=2,…]",
     .pick = by_utility,
     .read =
         [](SpecOptions& options, Sampler& s) {
           s.alpha = options.number("alpha", s.alpha, 0, 10);
           s.quantile = options.number("quantile", s.quantile, 0, 1);
           s.explore = options.number("explore", s.explore, 0, 1);
         },
     .needs_history = true,
     .needs_claims = true},
};

}  // namespace

std::span<const SamplerRow> sampler_rows() { return samplers; }

Result<Sampler> parse_sampler(std::string_view spec) {
  FL_TRY(SpecOptions options, SpecOptions::parse(spec));
  const auto* const row = std::ranges::find(samplers, options.name(), &SamplerRow::name);
  if (row == std::end(samplers)) {
    return Error(Errc::invalid_input,
                 fmt::format("there is no sampling '{}'; choose {}{}", options.name(),
                             alternatives(samplers, &SamplerRow::name),
                             did_you_mean(options.name(), samplers, &SamplerRow::name)));
  }
  Sampler sampler{.row = row};
  if (row->read != nullptr) row->read(options, sampler);
  FL_CHECK(options.finish());
  return sampler;
}

bool Sampler::needs_history() const { return row->needs_history; }

std::vector<std::size_t> Sampler::pick(std::span<const Candidate> candidates, std::size_t count,
                                       std::uint64_t seed, Round round, std::uint64_t draw) const {
  FL_ASSERT(count <= candidates.size());
  return row->pick(*this, candidates, count, {seed, round, draw});
}

}  // namespace fl::server
