// SPDX-License-Identifier: Apache-2.0
#include "server/sums/accumulator.hpp"

#include "kernels/generic/element_math.hpp"
#include "kernels/kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace fl::server {

Accumulator::Accumulator(const Layout& layout, std::uint64_t expected_weight,
                         std::optional<std::uint64_t> shared_seed, codec::SummedSketches sketches)
    : layout_(layout),
      map_(layout, codec::block_elements_default),
      sums_(layout.elements()),
      ranges_(map_.blocks()),
      are_old_(map_.blocks()),
      factors_(layout, shared_seed),
      sketches_(std::move(sketches)) {
  weight_.expected = expected_weight;
}

void Accumulator::reset(std::uint64_t expected_weight, std::optional<std::uint64_t> shared_seed,
                        codec::SummedSketches sketches) {
  weight_.expected = expected_weight;
  weight_.total = 0;
  factors_.reset(shared_seed);
  sketches_.reset(std::move(sketches));
  std::ranges::fill(are_old_, 1);
  for (SumRange& range : ranges_) range.reset();
  broken_ = false;
  is_final_ = true;
}

// Adding ---------------------------------------------------------------------------------------

Result<Accumulator::Added> Accumulator::add(codec::PayloadReader& update, std::uint64_t weight,
                                            const AdjustUpdate& adjust) {
  FL_ASSERT(update.layout().digest() == layout_.digest());
  if (broken_) return Error(Errc::internal, "the sums were lost when an update was taken back");
  FL_CHECK(reserve(weight));

  Adding adding(Adding::Way::in, weight, weight_);
  std::vector<float> values = room_for(update);
  UpdateNorms norms;
  double sum_squares = 0;
  for (std::uint64_t i = 0; i < update.blocks(); ++i) {
    const auto added = add_block(update, i, adding, adjust, values);
    if (!added) {
      FL_CHECK(take_back_blocks(update, i, weight, adjust, values));
      return added.error();
    }
    norms.max_abs = std::max(norms.max_abs, added->max_abs);
    sum_squares += added->sum_squares;
  }
  norms.l2 = std::sqrt(sum_squares);
  return Added{norms, adding.take_entered()};
}

void Accumulator::count(const Added& added) {
  const MutexLock lock(count_lock_);
  for (const auto& [range, exponent] : added.entered) range->count(exponent);
  is_final_ = false;
}

Result<void> Accumulator::reserve(std::uint64_t weight) {
  if (weight < 1 || weight > update_weight_max) {
    return Error(Errc::invalid_input, fmt::format("an update has weight {}, allowed are 1 to {}",
                                                  weight, update_weight_max));
  }
  std::uint64_t before = weight_.total;
  do {
    if (before > total_weight_max - weight) {
      return Error(
          Errc::conflict,
          fmt::format("weight {} on top of {} is too much: these sums hold weights up to {}",
                      weight, before, total_weight_max));
    }
  } while (!weight_.total.compare_exchange_weak(before, before + weight));
  return {};
}

std::vector<float> Accumulator::room_for(const codec::PayloadReader& update) const {
  return std::vector<float>(std::min<std::uint64_t>(update.block_elements(), layout_.elements()));
}

Result<Scan> Accumulator::add_block(codec::PayloadReader& update, std::uint64_t index,
                                    Adding& adding, const AdjustUpdate& adjust,
                                    std::span<float> values) {
  const codec::Block block = update.block(index);
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
    if (const auto* const selected = std::get_if<codec::SelectedValues>(&decoded))
      return add_selected(block, *selected, adding);
    if (const auto* const rows = std::get_if<codec::FactorRows>(&decoded))
      return factors_.add(block, *rows, adding);
    if (const auto* const sketch = std::get_if<codec::SketchCells>(&decoded))
      return sketches_.add(block, *sketch, adding);
    scan = std::get<Scan>(decoded);
  }
  if (adjust) {
    FL_CHECK(adjust(block.flat, values));
    scan = kernels().scan(values.data(), values.size());
    if (scan.first_bad < values.size()) {
      return Error(
          Errc::invalid_input,
          fmt::format("{} is {}, after what a delta or a late update adds",
                      layout_.describe(block.flat + scan.first_bad), values[scan.first_bad]));
    }
  }
  add_values(block, values, scan.max_abs, adding);
  if (has_statistics) return Scan{.max_abs = 0, .sum_squares = 0, .first_bad = scan.first_bad};
  return scan;
}

/// Cuts the block at the borders of the ranges, and calls use(range, at, count) for each piece: the
/// index of its range, and its elements from `at` on, counted in the block.
template <class Use>
void Accumulator::for_each_range(const codec::Block& block, const Use& use) {
  for (std::uint64_t at = 0; at < block.elements;) {
    const std::uint64_t first = block.first + at;
    const std::uint64_t count = std::min<std::uint64_t>(
        block.elements - at, codec::block_elements_default - first % codec::block_elements_default);
    use(map_.index_of(block.tensor, first), at, count);
    at += count;
  }
}

void Accumulator::add_values(const codec::Block& block, std::span<const float> values,
                             float max_abs, Adding& adding) {
  for_each_range(block, [&](std::uint64_t range, std::uint64_t at, std::uint64_t count) {
    const auto part = values.subspan(at, count);
    const float max_of_part =
        count == values.size() ? max_abs : kernels().scan(part.data(), count).max_abs;
    const MutexLock lock(lock_of(range));
    clear_old(range);
    adding.add(ranges_[range], max_of_part, part, sums_.data() + block.flat + at);
  });
}

/// With the range's lock held.
void Accumulator::clear_old(std::uint64_t range) {
  if (std::exchange(are_old_[range], 0) == 0) return;
  const codec::Block block = map_.at(range);
  std::fill_n(sums_.begin() + static_cast<std::ptrdiff_t>(block.flat), block.elements, 0);
}

/// Has the same result, to the last bit, as add_values() for the same values among zeros.
Scan Accumulator::add_selected(const codec::Block& block, const codec::SelectedValues& selected,
                               Adding& adding) {
  const auto indices = selected.indices;
  const auto values = selected.values;
  Scan scan{.max_abs = 0, .sum_squares = 0, .first_bad = block.elements};
  double lanes[element::scan_lanes] = {};
  for (std::size_t i = 0; i < values.size(); ++i) {
    scan.max_abs = std::max(scan.max_abs, std::fabs(values[i]));
    lanes[indices[i] % element::scan_lanes] += static_cast<double>(values[i]) * values[i];
  }
  scan.sum_squares = element::add_lanes(lanes);
  std::vector<std::int64_t> products(values.size());
  std::size_t begin = 0;
  for_each_range(block, [&](std::uint64_t range, std::uint64_t at, std::uint64_t count) {
    std::size_t end = begin;
    float max_abs = 0;
    for (; end < indices.size() && indices[end] < at + count; ++end)
      max_abs = std::max(max_abs, std::fabs(values[end]));
    const MutexLock lock(lock_of(range));
    clear_old(range);
    if (adding.enter(ranges_[range], max_abs)) {
      kernels().add_rounded(products.data() + begin, values.data() + begin, end - begin,
                            adding.factor(ranges_[range]));
      for (std::size_t i = begin; i < end; ++i) {
        std::int64_t& sum = sums_[block.flat + indices[i]];  // Modulo 2^64, like add_rounded().
        sum = static_cast<std::int64_t>(static_cast<std::uint64_t>(sum) +
                                        static_cast<std::uint64_t>(products[i]));
      }
    }
    begin = end;
  });
  return scan;
}

// Adding with the negative weight is exact, because the sums wrap around and nothing is rounded
// twice.
Result<void> Accumulator::take_back_blocks(codec::PayloadReader& update, std::uint64_t blocks,
                                           std::uint64_t weight, const AdjustUpdate& adjust,
                                           std::span<float> values) {
  Adding taking(Adding::Way::out, weight, weight_);
  for (std::uint64_t i = 0; i < blocks; ++i) {
    if (const auto taken = add_block(update, i, taking, adjust, values); !taken) {
      broken_ = true;
      return taken.error().at("while taking an update back");
    }
  }
  FL_ASSERT(weight_.total >= weight);
  weight_.total -= weight;
  return {};
}

Result<void> Accumulator::take_back(codec::PayloadReader& update, std::uint64_t weight,
                                    const AdjustUpdate& adjust) {
  FL_ASSERT(update.layout().digest() == layout_.digest());
  std::vector<float> values = room_for(update);
  return take_back_blocks(update, update.blocks(), weight, adjust, values);
}

// Final units ----------------------------------------------------------------------------------

Result<void> Accumulator::settle(const std::function<Result<void>(const AddUpdate&)>& visit) {
  if (broken_) return Error(Errc::internal, "the sums were lost when an update was taken back");
  if (begin_again()) {
    FL_CHECK(
        visit([this](codec::PayloadReader& update, std::uint64_t weight,
                     const AdjustUpdate& adjust) { return add_again(update, weight, adjust); }));
  }
  is_final_ = true;
  return {};
}

/// Drops the sums that are not final; they have their final unit now. Returns whether there are
/// any.
bool Accumulator::begin_again() {
  bool has_begun = false;
  for (std::uint64_t i = 0; i < ranges_.size(); ++i) {
    if (!ranges_[i].begin_again(weight_.total)) continue;
    are_old_[i] = 1;
    has_begun = true;
  }
  if (factors_.begin_again(weight_.total)) has_begun = true;
  if (sketches_.begin_again(weight_.total)) has_begun = true;
  return has_begun;
}

Result<void> Accumulator::add_again(codec::PayloadReader& update, std::uint64_t weight,
                                    const AdjustUpdate& adjust) {
  FL_ASSERT(update.layout().digest() == layout_.digest());
  Adding adding(Adding::Way::again, weight, weight_);
  std::vector<float> values = room_for(update);
  for (std::uint64_t i = 0; i < update.blocks(); ++i) {
    if (!is_again(update.block(i))) continue;
    FL_TRY([[maybe_unused]] const Scan scan, add_block(update, i, adding, adjust, values));
  }
  return {};
}

bool Accumulator::is_again(const codec::Block& block) const {
  if (factors_.is_again(block.tensor) || sketches_.is_again(block.flat)) return true;
  const std::uint64_t last = map_.index_of(block.tensor, block.first + block.elements - 1);
  for (std::uint64_t i = map_.index_of(block.tensor, block.first); i <= last; ++i) {
    if (ranges_[i].is_again()) return true;
  }
  return false;
}

void Accumulator::mean(std::uint64_t first, double divisor, std::span<float> out) const {
  FL_ASSERT(first <= sums_.size() && out.size() <= sums_.size() - first && divisor > 0);
  FL_ASSERT(is_final_);
  for (std::uint64_t at = first; at < first + out.size();) {
    const std::uint64_t range = map_.index_at(at);
    const codec::Block block = map_.at(range);
    const std::uint64_t end =
        std::min<std::uint64_t>(block.flat + block.elements, first + out.size());
    const std::span<float> part = out.subspan(at - first, end - at);
    if (are_old_[range] != 0)
      std::ranges::fill(part, 0.0F);
    else
      kernels().scale_fixed(sums_.data() + at, part.size(), mean_factor_of(divisor, ranges_[range]),
                            part.data());
    at = end;
  }
  factors_.add_mean(first, divisor, out);
  sketches_.add_mean(first, divisor, out);
}

}  // namespace fl::server
