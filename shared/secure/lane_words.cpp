// SPDX-License-Identifier: Apache-2.0
#include "shared/secure/lane_words.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

namespace fl::secure {

namespace {

constexpr int loss_unit_bits = 32;

/// The offset that makes all values of a run positive.
std::uint64_t offset_of(const codec::LaneRun& run) {
  return static_cast<std::uint64_t>(run.most());
}

}  // namespace

LaneWords::LaneWords(std::vector<codec::LaneRun> runs, std::size_t tensors,
                     std::uint64_t weight_sum)
    : runs_(std::move(runs)), tensors_(tensors), weight_sum_(weight_sum) {
  FL_ASSERT(weight_sum >= 1 && weight_sum <= weight_sum_max);
  std::uint64_t begin = 0;
  for (std::size_t run = 0; run < runs_.size(); ++run) {
    begin_.push_back(begin);
    begin += (runs_[run].values + lanes_in_word(run) - 1) / lanes_in_word(run);
  }
  begin_.push_back(begin);
}

int LaneWords::lane_bits(std::size_t run) const {
  return static_cast<int>(std::bit_width(weight_sum_ * 2 * offset_of(runs_[run])));
}

void LaneWords::pack(std::size_t run, std::span<const std::int32_t> integers, std::uint64_t weight,
                     std::span<std::uint64_t> words) const {
  FL_ASSERT(integers.size() == runs_[run].values &&
            words.size() == begin_of(run + 1) - begin_of(run));
  FL_ASSERT(weight >= 1 && weight <= weight_sum_);
  const int bits = lane_bits(run);
  const std::size_t lanes = lanes_in_word(run);
  const std::uint64_t offset = offset_of(runs_[run]);
  std::size_t at = 0;
  for (std::uint64_t& word : words) {
    word = 0;
    const std::size_t end = std::min(integers.size(), at + lanes);
    for (int shift = 0; at < end; ++at, shift += bits) {
      const std::uint64_t code = static_cast<std::uint64_t>(std::int64_t{integers[at]}) + offset;
      word |= weight * code << shift;
    }
  }
}

void LaneWords::unpack(std::size_t run, std::span<const std::uint64_t> words, std::uint64_t weights,
                       std::span<std::int64_t> sums) const {
  FL_ASSERT(weights >= 1 && weights <= weight_sum_);
  FL_ASSERT(sums.size() == runs_[run].values && words.size() == begin_of(run + 1) - begin_of(run));
  const int bits = lane_bits(run);
  const std::size_t lanes = lanes_in_word(run);
  const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
  const auto offset = static_cast<std::int64_t>(weights * offset_of(runs_[run]));
  std::size_t at = 0;
  for (const std::uint64_t word : words) {
    const std::size_t end = std::min(sums.size(), at + lanes);
    for (int shift = 0; at < end; ++at, shift += bits)
      sums[at] = static_cast<std::int64_t>(word >> shift & mask) - offset;
  }
}

Result<std::vector<std::uint64_t>> lane_words_of(codec::PayloadReader& update,
                                                 const LaneWords& words,
                                                 const codec::LaneSteps& steps, double loss,
                                                 std::uint64_t weight) {
  FL_ASSERT(update.blocks() == words.runs().size());
  std::vector<std::uint64_t> out(words.words());
  std::vector<std::int32_t> integers;
  std::vector<codec::LaneTally> tallies(steps.size());
  for (std::size_t run = 0; run < words.runs().size(); ++run) {
    const codec::LaneRun& of = words.runs()[run];
    integers.resize(of.values);
    FL_CHECK(update.read_lane_integers(run, of, integers));
    FL_CHECK(update.add_lane_tally(run, steps[of.block.tensor], tallies[of.block.tensor]));
    words.pack(
        run, integers, weight,
        std::span(out).subspan(words.begin_of(run), words.begin_of(run + 1) - words.begin_of(run)));
  }
  auto place = out.begin() + static_cast<std::ptrdiff_t>(words.tallies_at());
  for (const codec::LaneTally& whole : tallies) {
    const codec::LaneTally tally = whole.of_client();
    *place++ = tally.squares;
    *place++ = tally.clipped;
    *place++ = tally.large;
  }
  const double counted =
      std::isnan(loss) ? masked_loss_max : std::clamp(loss, -masked_loss_max, masked_loss_max);
  *place = static_cast<std::uint64_t>(std::llround(std::ldexp(counted, loss_unit_bits))) * weight;
  return out;
}

double mean_loss_of(std::uint64_t word, std::uint64_t weights) {
  const double sum =
      std::ldexp(static_cast<double>(static_cast<std::int64_t>(word)), -loss_unit_bits);
  return std::clamp(sum / static_cast<double>(weights), -masked_loss_max, masked_loss_max);
}

}  // namespace fl::secure
