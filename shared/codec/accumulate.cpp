#include "shared/codec/accumulate.hpp"

#include "kernels/element.hpp"
#include "kernels/kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

namespace fl {

namespace {

// As long as most blocks, so that one add locks two stripes, one after the other; a large block
// some more.
constexpr std::uint64_t stripe_elements = block_elements_default;

constexpr int range_log2_min = 12;
constexpr int fraction_bits_min = 10;
constexpr int narrow_range_log2_min = -60;
constexpr int norm_headroom_log2 = 4;

// What add_fixed converts exactly: |x| * 2^fraction_bits < 2^51.
constexpr int product_log2_max = 51;

/// The first value that is not below 2^range_log2; there is one.
std::size_t first_beyond(std::span<const float> values, int range_log2) {
  const double limit = std::ldexp(1.0, range_log2);
  const auto is_beyond = [limit](float v) { return !(std::fabs(v) < limit); };
  return static_cast<std::size_t>(std::ranges::find_if(values, is_beyond) - values.begin());
}

}  // namespace

// No overflow: |x| < 2^range_log2, so a fixed-point value is at most
//   2^(range_log2 + fraction_bits),
// and a sum of them with weights of 2^weight_log2 in all is at most
//   2^(range_log2 + fraction_bits + weight_log2) <= 2^62.
// A partial sum is bounded by the same.
FixedPoint choose_fixed_point(double model_max, std::uint64_t total_weight, double norm_max) {
  FL_ASSERT(std::isfinite(model_max) && model_max >= 0 && norm_max >= 0);
  const std::uint64_t weight_max =
      std::bit_ceil(std::clamp<std::uint64_t>(total_weight, 1, total_weight_max));
  const int weight_log2 = std::countr_zero(weight_max);
  const int wanted = model_max > 0 ? static_cast<int>(std::ceil(std::log2(model_max))) + 3 : 0;
  const int total_log2 = std::min(product_log2_max, 62 - weight_log2);  // Range and fraction.
  int range_log2 = std::clamp(wanted, range_log2_min, total_log2 - fraction_bits_min);
  if (norm_max > 0) {
    const int narrow = std::ilogb(norm_max) + 1 + norm_headroom_log2;
    range_log2 = std::min(range_log2, std::max(narrow, narrow_range_log2_min));
  }
  return {
      .range_log2 = range_log2, .fraction_bits = total_log2 - range_log2, .weight_max = weight_max};
}

Accumulator::Accumulator(const Layout& layout, const FixedPoint& fixed)
    : layout_(layout),
      fixed_(fixed),
      sums_(layout.elements()),
      statistics_(layout.statistics().end - layout.statistics().begin) {}

void Accumulator::reset(const FixedPoint& fixed) {
  fixed_ = fixed;
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
    return Error(Errc::invalid_input, fmt::format("an update of weight {}, allowed are 1 to {}",
                                                  weight, update_weight_max));
  }
  std::uint64_t before = total_weight_;
  do {
    if (before + weight > fixed_.weight_max) {
      return Error(
          Errc::conflict,
          fmt::format("weight {} on top of {} would pass {}, which these sums are made for", weight,
                      before, fixed_.weight_max));
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
    FL_TRY(const auto decoded, update.decode_or_select(index, values));
    if (const auto* const selected = std::get_if<SelectedValues>(&decoded))
      return add_selected(block.flat, *selected, weight);
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

/// What add_block() does of the same values among zeros, to the last bit.
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
      std::int64_t& sum = sums_[flat + indices[i]];  // Modulo 2^64, as add_fixed's.
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
  const auto [begin, end] = layout_.statistics();
  const double statistic_factor = std::ldexp(1.0 / divisor, -statistic_fraction_bits);
  for (std::uint64_t at = std::max(first, begin); at < std::min(first + out.size(), end); ++at) {
    out[at - first] =
        static_cast<float>(static_cast<double>(statistics_[at - begin]) * statistic_factor);
  }
}

}  // namespace fl
