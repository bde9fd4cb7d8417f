// SPDX-License-Identifier: Apache-2.0
#include "server/sums/lane_sums.hpp"

#include "kernels/kernels.hpp"
#include "shared/codec/blocks/selector.hpp"
#include "shared/codec/core/block_key.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace fl::server {

namespace {

using codec::KeyFamily;
using codec::LaneRun;

/// sums[i] = (sum of weight * level) * 2^fine_bits - sum of weight * dither, in units of a step
/// times 2^-fine_bits.
void take_dither_off(const LaneRun& run, std::span<const LaneGiver> givers,
                     std::span<std::int64_t> sums) {
  const int fine_bits = codec::lane_dither_bits(run.bits) + 1;
  for (std::int64_t& sum : sums) sum *= std::int64_t{1} << fine_bits;
  std::vector<std::uint32_t> words(sums.size());
  for (const LaneGiver& giver : givers) {
    const std::uint64_t key = codec::block_key(giver.seed, KeyFamily::quantizer, run.block);
    kernels().random_words(key, 0, words.data(), words.size());
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i] -=
          static_cast<std::int64_t>(giver.weight) * codec::lane_dither_of(words[i], run.bits);
    }
  }
}

}  // namespace

LaneSums::LaneSums(secure::LaneWords layout, std::vector<std::uint64_t> words,
                   std::vector<LaneGiver> givers, std::uint64_t shared_seed)
    : layout_(std::move(layout)),
      words_(std::move(words)),
      givers_(std::move(givers)),
      shared_seed_(shared_seed) {
  FL_ASSERT(words_.size() == layout_.words());
  for (const LaneGiver& giver : givers_) weights_ += giver.weight;
  FL_ASSERT(weights_ >= 1 && weights_ <= layout_.weight_sum());
}

void LaneSums::mean_of_run(std::size_t run, std::span<float> out) const {
  const LaneRun& of = layout_.runs()[run];
  FL_ASSERT(out.size() == of.block.elements);
  const std::uint64_t begin = layout_.begin_of(run);
  std::vector<std::int64_t> sums(of.values);
  layout_.unpack(run, std::span(words_).subspan(begin, layout_.begin_of(run + 1) - begin), weights_,
                 sums);
  int unit_log2 = codec::lane_wide_log2;
  if (of.step.is_set()) {
    unit_log2 = of.step.exponent();
    if (of.has_dither) {
      take_dither_off(of, givers_, sums);
      unit_log2 -= codec::lane_dither_bits(of.bits) + 1;
    }
    for (std::int64_t& sum : sums) sum *= of.step.mantissa();
  }
  const double factor = std::ldexp(1 / static_cast<double>(weights_), unit_log2);
  if (of.values == of.block.elements) {
    kernels().scale_fixed(sums.data(), sums.size(), factor, out.data());
    return;
  }
  std::vector<float> values(sums.size());
  kernels().scale_fixed(sums.data(), sums.size(), factor, values.data());
  std::vector<std::uint32_t> room;
  const std::uint64_t key = codec::block_key(shared_seed_, KeyFamily::selector, of.block);
  const auto indices = codec::random_indices(key, of.block.elements, of.values, room);
  std::ranges::fill(out, 0.0F);
  for (std::size_t i = 0; i < values.size(); ++i) out[indices[i]] = values[i];
}

std::vector<codec::LaneTally> LaneSums::tallies() const {
  std::vector<codec::LaneTally> tallies(layout_.tensors());
  for (const LaneRun& run : layout_.runs()) {
    // A bare block has no tally.
    if (!run.is_bare) tallies[run.block.tensor].values += run.values * givers_.size();
  }
  const std::uint64_t* word = words_.data() + layout_.tallies_at();
  for (codec::LaneTally& tally : tallies) {
    tally.squares = *word++;
    tally.clipped = *word++;
    tally.large = *word++;
  }
  return tallies;
}

double LaneSums::mean_loss() const { return secure::mean_loss_of(words_.back(), weights_); }

}  // namespace fl::server
