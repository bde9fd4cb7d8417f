// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/blocks/lane_block.hpp"

#include "shared/codec/blocks/decode.hpp"
#include "shared/codec/blocks/large_block.hpp"
#include "shared/codec/core/block_format.hpp"
#include "shared/codec/entropy/quantized_levels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace fl::codec {

namespace {

constexpr std::uint8_t dither_flag = 0x80;

Error bad_lanes(std::string_view what) { return {Errc::corrupt, std::string(what)}; }

/// Adding and subtracting it rounds as std::nearbyint() does, in a loop that compilers make fast.
constexpr double to_integer = 0x1.8p52;

/// The values as multiples of 2^-24. Those of bare blocks need not be such multiples.
Result<void> wide_integers(std::span<const float> values, std::span<std::int32_t> out) {
  static_assert(lane_wide_log2 == -24);
  bool all_fit = true;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double scaled = values[i] * 0x1p24;
    const bool fits = std::fabs(scaled) <= lane_wide_max;  // False for NaN, too.
    all_fit = all_fit && fits;
    out[i] = static_cast<std::int32_t>(((fits ? scaled : 0) + to_integer) - to_integer);
  }
  return all_fit ? success() : bad_lanes("a value is above 8");
}

}  // namespace

Result<void> read_lane_integers(Bytes block, const LaneRun& run, std::span<std::int32_t> out,
                                DecodeScratch& scratch) {
  FL_ASSERT(out.size() == run.values);
  if (block.empty()) return bad_lanes("the block has no bytes");
  if (run.is_selected && run.values < run.block.elements) {
    constexpr std::size_t inner_at = 1 + sizeof(std::uint16_t) + sizeof(std::uint64_t);
    if (format_of(block) != BlockFormat::randk || block.size() <= inner_at ||
        load<std::uint16_t>(block, 1) != run.values)
      return bad_lanes("other values are selected than all clients select");
    block = block.subspan(inner_at);
  }
  if (!run.step.is_set()) {
    if (run.is_bare) {
      if (block.size() != out.size() * sizeof(float)) return bad_lanes("a bare block is cut off");
      std::array<float, bare_elements_max> values{};
      copy_bytes(std::as_writable_bytes(std::span(values)).data(), block.data(), block.size());
      return wide_integers(values, out);
    }
    if (format_of(block) != BlockFormat::lanes_wide || block.size() <= 1 + sizeof(std::uint64_t))
      return bad_lanes("a value has a step although none is known");
    scratch.values.resize(std::max<std::size_t>(scratch.values.size(), out.size()));
    const auto values = std::span(scratch.values).first(out.size());
    FL_CHECK(decode_lossless_block(block.subspan(1 + sizeof(std::uint64_t)), values, scratch));
    return wide_integers(values, out);
  }
  const BlockFormat id = format_of(block);
  if (id != BlockFormat::lanes && id != BlockFormat::lanes_rans)
    return bad_lanes("a block is not coded by lanes");
  FL_TRY(const ReadLaneHead read, read_lane_head(block.subspan(1)));
  if (read.head.bits != run.bits || read.head.step != run.step ||
      read.head.has_dither != run.has_dither)
    return bad_lanes("a block is coded with another step, or other bits, than all clients have");
  FL_TRY(const auto levels, read_levels(read.levels, id == BlockFormat::lanes_rans,
                                        lane_levels(run.bits), out.size(), scratch));
  std::ranges::copy(levels, out.begin());
  return {};
}

void round_to_wide(std::span<const float> x, std::span<float> out) {
  constexpr double most = lane_wide_max;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double scaled = std::clamp(x[i] * 0x1p24, -most, most);
    out[i] = static_cast<float>(((scaled + to_integer) - to_integer) * 0x1p-24);
  }
}

void begin_lane_block(const LaneHead& head, std::vector<std::byte>& out) {
  out.resize(lane_head_bytes_max - (head.has_dither ? 0 : sizeof head.key));
  const MutableBytes bytes = out;
  store(bytes, 0, static_cast<std::uint8_t>(BlockFormat::lanes));
  store(bytes, 1, static_cast<std::uint8_t>(head.bits | (head.has_dither ? dither_flag : 0)));
  store(bytes, 2, head.step.code());
  store(bytes, 4, head.tally.squares);
  store(bytes, 12, static_cast<std::uint32_t>(head.tally.clipped));
  store(bytes, 16, static_cast<std::uint32_t>(head.tally.large));
  if (head.has_dither) store(bytes, 20, head.key);
}

Result<ReadLaneHead> read_lane_head(Bytes body) {
  constexpr std::size_t without_key = lane_head_bytes_max - 1 - sizeof(std::uint64_t);
  if (body.size() < without_key) return bad_lanes("the head of lanes is cut off");
  const auto mode = load<std::uint8_t>(body, 0);
  LaneHead head;
  head.has_dither = (mode & dither_flag) != 0;
  head.bits = mode & ~dither_flag;
  if (head.bits < lane_bits_min || head.bits > lane_bits_max)
    return bad_lanes(fmt::format("lanes of {} bits are not allowed", head.bits));
  FL_TRY(head.step, LaneStep::parse(load<std::uint16_t>(body, 1)));
  if (!head.step.is_set()) return bad_lanes("levels of lanes without a step");
  head.tally.squares = load<std::uint64_t>(body, 3);
  head.tally.clipped = load<std::uint32_t>(body, 11);
  head.tally.large = load<std::uint32_t>(body, 15);
  Bytes levels = body.subspan(without_key);
  if (head.has_dither) {
    if (levels.size() < sizeof head.key) return bad_lanes("the dither's key is cut off");
    head.key = load<std::uint64_t>(levels);
    levels = levels.subspan(sizeof head.key);
  }
  return ReadLaneHead{head, levels};
}

Result<void> add_lane_tally(Bytes block, std::size_t elements, LaneStep step, LaneTally& sum) {
  if (block.empty()) return bad_lanes("the block has no bytes");
  const Bytes body = block.subspan(1);
  switch (format_of(block)) {
    case BlockFormat::parts:
      return for_each_coded_part(body, elements, [&](Bytes part, std::size_t, std::size_t count) {
        // A part is not in parts again, so this goes no deeper.
        const bool is_part = part.empty() || format_of(part) != BlockFormat::parts;
        return is_part ? add_lane_tally(part, count, step, sum) : bad_lanes("parts in a part");
      });
    case BlockFormat::randk: {
      constexpr std::size_t inner_at = sizeof(std::uint16_t) + sizeof(std::uint64_t);
      if (body.size() <= inner_at) return bad_lanes("the selected values are cut off");
      const Bytes inner = body.subspan(inner_at);
      if (!format_row(inner).may_be_inside) return bad_lanes("a block that can't be inside one");
      return add_lane_tally(inner, load<std::uint16_t>(body), step, sum);
    }
    case BlockFormat::lanes:
    case BlockFormat::lanes_rans: {
      FL_TRY(const ReadLaneHead read, read_lane_head(body));
      LaneTally tally = read.head.tally;
      tally.values = elements;
      if (read.head.step == step) sum += tally;
      return {};
    }
    case BlockFormat::lanes_wide:
      if (body.size() < sizeof(std::uint64_t)) return bad_lanes("the squares are cut off");
      if (!step.is_set()) {
        sum += {.values = elements,
                .squares = std::min(load<std::uint64_t>(body), wide_squares_max),
                .clipped = 0,
                .large = 0};
      }
      return {};
    default: return {};
  }
}

}  // namespace fl::codec
