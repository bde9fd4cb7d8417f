// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/sums/accumulator.hpp"

#include "kernels/generic/element_math.hpp"
#include "kernels/kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

namespace fl {

namespace {

// As long as most blocks, so adding a block locks at most two stripes, one after the other. Only
// large blocks lock more.
constexpr std::uint64_t stripe_elements = block_elements_default;

}  // namespace

Accumulator::Accumulator(const Layout& layout, const FixedPoint& fixed,
                         std::optional<std::uint64_t> shared_seed, SummedSketches sketches)
    : layout_(layout),
      fixed_(fixed),
      sums_(layout.elements()),
      statistics_(layout.statistics().end - layout.statistics().begin),
      factors_(layout, fixed, shared_seed),
      sketches_(layout, fixed, std::move(sketches)) {}

void Accumulator::reset(const FixedPoint& fixed, std::optional<std::uint64_t> shared_seed,
                        SummedSketches sketches) {
  fixed_ = fixed;
  factors_.reset(fixed, shared_seed);
  sketches_.reset(fixed, std::move(sketches));
  std::ranges::fill(sums_, 0);
  std::ranges::fill(statistics_, 0);
  total_weight_ = 0;
  broken_ = false;
}

Result<UpdateNorms> Accumulator::add(PayloadReader& update, std::uint64_t weight,
                                     const AdjustUpdate& adjust) {
  FL_ASSERT(update.layout().digest() == layout_.digest());
  if (broken_) return Error(Errc::internal, "the sums were lost when an update was taken back");
  FL_CHECK(reserve(weight));

  const auto signed_weight = static_cast<std::int64_t>(weight);
  std::vector<float> values(std::min<std::uint64_t>(update.block_elements(), layout_.elements()));
  UpdateNorms norms;
  double sum_squares = 0;
  for (std::uint64_t i = 0; i < update.blocks(); ++i) {
    const auto added = add_block(update, i, signed_weight, adjust, values);
    if (!added) {
      FL_CHECK(take_back(update, i, signed_weight, adjust, values));
      total_weight_ -= weight;
      return added.error();
    }
    norms.max_abs = std::max(norms.max_abs, added->max_abs);
    sum_squares += added->sum_squares;
  }
  norms.l2 = std::sqrt(sum_squares);
  return norms;
}

Result<void> Accumulator::reserve(std::uint64_t weight) {
  if (weight < 1 || weight > update_weight_max) {
    return Error(Errc::invalid_input, fmt::format("an update has weight {}, allowed are 1 to {}",
                                                  weight, update_weight_max));
  }
  std::uint64_t before = total_weight_;
  do {
    if (before + weight > fixed_.weight_max) {
      return Error(
          Errc::conflict,
          fmt::format("weight {} on top of {} is too much: these sums hold weights up to {}",
                      weight, before, fixed_.weight_max));
    }
  } while (!total_weight_.compare_exchange_weak(before, before + weight));
  return {};
}

Result<Scan> Accumulator::add_block(PayloadReader& update, std::uint64_t index, std::int64_t weight,
                                    const AdjustUpdate& adjust, std::span<float> values) {
  const Block block = update.block(index);
  values = values.first(block.elements);
  const bool has_statistics = is_of_statistics(block.flat);
  Scan scan;
  if (adjust || has_statistics) {
    FL_TRY(scan, update.decode(index, values));
  } else {
    FL_TRY(const auto decoded,
           update.decode_or_take(index, values,
                                 {.right_key = factors_.key_of(block.tensor),
                                  .sketch = sketches_.shape_of(block, update.block_elements())}));
    if (const auto* const selected = std::get_if<SelectedValues>(&decoded))
      return add_selected(block.flat, *selected, weight);
    if (const auto* const rows = std::get_if<FactorRows>(&decoded))
      return factors_.add(block, *rows, weight);
    if (const auto* const sketch = std::get_if<SketchCells>(&decoded))
      return sketches_.add(block, *sketch, weight);
    scan = std::get<Scan>(decoded);
  }
  if (adjust) {
    FL_CHECK(adjust(block.flat, values));
    scan = kernels().scan(values.data(), values.size());
  }
  const int range_log2 = has_statistics ? statistic_range_log2 : fixed_.range_log2;
  const bool is_finite = scan.first_bad >= values.size();
  if (!is_finite || scan.max_abs >= std::ldexp(1.0, range_log2)) {
    const std::size_t i = first_beyond(values, range_log2);
    return out_of_range(block.flat + i, values[i], range_log2);
  }
  if (has_statistics) {
    for_each_stripe(block.flat, values, [&](std::uint64_t at, std::span<const float> part) {
      Wide* const sums = statistics_.data() + (at - layout_.statistics().begin);
      for (std::size_t i = 0; i < part.size(); ++i) {
        const double scaled = std::ldexp(static_cast<double>(part[i]), statistic_fraction_bits);
        sums[i] += static_cast<Wide>(std::nearbyint(scaled)) * weight;
      }
    });
    return Scan{.max_abs = 0, .sum_squares = 0, .first_bad = scan.first_bad};
  }
  for_each_stripe(block.flat, values, [&](std::uint64_t at, std::span<const float> part) {
    kernels().add_fixed(sums_.data() + at, part.data(), part.size(), fixed_.fraction_bits, weight);
  });
  return scan;
}

/// Has the same result, to the last bit, as add_block() for the same values among zeros.
Result<Scan> Accumulator::add_selected(std::uint64_t flat, const SelectedValues& selected,
                                       std::int64_t weight) {
  const auto [indices, values] = selected;
  Scan scan;
  double lanes[element::scan_lanes] = {};
  for (std::size_t i = 0; i < values.size(); ++i) {
    scan.max_abs = std::max(scan.max_abs, std::fabs(values[i]));
    lanes[indices[i] % element::scan_lanes] += static_cast<double>(values[i]) * values[i];
  }
  scan.sum_squares = element::add_lanes(lanes);
  if (scan.max_abs >= std::ldexp(1.0, fixed_.range_log2)) {
    const std::size_t i = first_beyond(values, fixed_.range_log2);
    return out_of_range(flat + indices[i], values[i], fixed_.range_log2);
  }
  std::vector<std::int64_t> products(values.size());
  kernels().add_fixed(products.data(), values.data(), values.size(), fixed_.fraction_bits, weight);
  for (std::size_t i = 0; i < indices.size();) {
    const std::uint64_t stripe = (flat + indices[i]) / stripe_elements;
    const std::lock_guard lock(stripes_[stripe % stripes_.size()]);
    for (; i < indices.size() && (flat + indices[i]) / stripe_elements == stripe; ++i) {
      std::int64_t& sum = sums_[flat + indices[i]];  // Wraps modulo 2^64, like add_fixed().
      sum = static_cast<std::int64_t>(static_cast<std::uint64_t>(sum) +
                                      static_cast<std::uint64_t>(products[i]));
    }
  }
  return scan;
}

template <class Use>
void Accumulator::for_each_stripe(std::uint64_t at, std::span<const float> values, const Use& use) {
  while (!values.empty()) {
    const std::uint64_t stripe = at / stripe_elements;
    const auto part =
        values.first(std::min<std::uint64_t>(values.size(), (stripe + 1) * stripe_elements - at));
    const std::lock_guard lock(stripes_[stripe % stripes_.size()]);
    use(at, part);
    at += part.size();
    values = values.subspan(part.size());
  }
}

// Adding with the negative weight is exact, because the sums wrap around and nothing is rounded
// twice.
Result<void> Accumulator::take_back(PayloadReader& update, std::uint64_t blocks,
                                    std::int64_t weight, const AdjustUpdate& adjust,
                                    std::span<float> values) {
  for (std::uint64_t i = 0; i < blocks; ++i) {
    if (const auto taken = add_block(update, i, -weight, adjust, values); !taken) {
      broken_ = true;
      return taken.error().at("while taking an update back");
    }
  }
  return {};
}

Error Accumulator::out_of_range(std::uint64_t flat, float value, int range_log2) const {
  const bool may_be_widened = std::isfinite(value) && !is_of_statistics(flat);
  return {may_be_widened ? Errc::too_large : Errc::invalid_input,
          fmt::format("{} is {}, values must stay below {}", layout_.describe(flat), value,
                      std::ldexp(1.0, range_log2))};
}

void Accumulator::mean(std::uint64_t first, double divisor, std::span<float> out) const {
  FL_ASSERT(first <= sums_.size() && out.size() <= sums_.size() - first && divisor > 0);
  const double factor = std::ldexp(1.0 / divisor, -fixed_.fraction_bits);
  kernels().scale_fixed(sums_.data() + first, out.size(), factor, out.data());
  factors_.add_mean(first, divisor, out);
  sketches_.add_mean(first, divisor, out);
  const auto [begin, end] = layout_.statistics();
  const double statistic_factor = std::ldexp(1.0 / divisor, -statistic_fraction_bits);
  for (std::uint64_t at = std::max(first, begin); at < std::min(first + out.size(), end); ++at) {
    out[at - first] =
        static_cast<float>(static_cast<double>(statistics_[at - begin]) * statistic_factor);
  }
}

}  // namespace fl
