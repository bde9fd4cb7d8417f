// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/entropy/quantized_levels.hpp"

#include "kernels/generic/nearest_scale.hpp"
#include "kernels/generic/pack.hpp"
#include "kernels/kernels.hpp"
#include "shared/codec/core/block_format.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

namespace fl::codec {

namespace {

nearest_scale::Tails tails_of(std::span<const std::int16_t> places) {
  constexpr std::size_t bins = nearest_scale::bins;
  nearest_scale::Tails tails{};
  // Two tables in turn, so that one increment need not wait for the one before.
  std::array<std::uint32_t, bins> odd{};
  for (std::size_t i = 0; i < places.size(); ++i) {
    const auto bin = std::min<std::size_t>(static_cast<std::size_t>(std::abs(places[i])), bins - 1);
    ++(i % 2 == 0 ? tails.count[bin] : odd[bin]);
  }
  for (std::size_t b = 0; b < bins; ++b) tails.count[b] += odd[b];
  nearest_scale::add_tails(tails);
  return tails;
}

/// The scale with the least squared error. `room` holds one number for each value of x.
float least_error_scale(std::span<const float> x, float max_abs, std::int32_t levels,
                        std::int16_t* room) {
  kernels().round(x.data(), x.size(), max_abs / (nearest_scale::bins - 1), room);
  const nearest_scale::Tails tails = tails_of({room, x.size()});
  std::array<double, nearest_scale::tried> left;
  double share = 1;
  for (double& of_share : left) {
    of_share = nearest_scale::squares_left(tails, share, levels);
    share *= nearest_scale::ratio;
  }
  return static_cast<float>(max_abs * nearest_scale::best_share(left.data()));
}

}  // namespace

Result<void> check_scale(float scale, const Layout& layout, std::uint64_t flat,
                         std::string_view method) {
  if (scale <= scale_max) return {};
  return Error(Errc::invalid_input,
               fmt::format("the values at {} have the scale {}, but {} allows at most {}",
                           layout.describe(flat), scale, method, scale_max));
}

Result<float> read_scale(Bytes body, std::size_t at) {
  const auto scale = load<float>(body, at);
  // NaN must fail too, so this is not `scale > scale_max`. No encoder writes -0.
  if (!(scale <= scale_max) || std::signbit(scale)) {
    return Error(Errc::corrupt, fmt::format("the scale at byte {} is {}", at, scale));
  }
  return scale;
}

void quantize_run(std::span<const float> x, float scale, std::int32_t levels, const Block& block,
                  std::size_t begin, std::uint64_t seed, std::int16_t* out) {
  if (scale == 0) {
    std::fill_n(out, x.size(), std::int16_t{0});
    return;
  }
  const QuantizeArgs args = {.scale = scale,
                             .levels = levels,
                             .seed = seed,
                             .stream = block.tensor,
                             .first = block.first + begin};
  kernels().quantize(x.data(), x.size(), args, out);
}

float nearest_run(std::span<const float> x, float max_abs, std::int32_t levels, std::int16_t* out) {
  if (max_abs < nearest_scale::least_scale) {
    std::fill_n(out, x.size(), std::int16_t{0});
    return 0;
  }
  float scale = std::min(max_abs, nearest_scale::largest_scale);
  if (levels <= nearest_scale::levels_max) scale = least_error_scale(x, scale, levels, out);
  const auto top = static_cast<std::int16_t>(levels);
  if (kernels().round(x.data(), x.size(), scale / static_cast<float>(levels), out) > top) {
    for (std::int16_t& level : std::span(out, x.size())) {
      level = std::clamp<std::int16_t>(level, static_cast<std::int16_t>(-top), top);
    }
  }
  return scale;
}

std::span<std::int16_t> levels_in(std::vector<std::int16_t>& room, std::size_t elements) {
  room.resize(std::max(room.size(), elements));
  return std::span(room).first(elements);
}

bool append_levels(std::span<const std::int16_t> x, std::int32_t levels, LevelScratch& scratch,
                   std::vector<std::byte>& out, const LevelClasses& classes) {
  const std::size_t before = out.size();
  out.resize(before + packed_bytes(x.size(), levels));
  if (levels <= rans_levels_max) {
    const std::size_t coded =
        write_rans_levels(x, levels, scratch, MutableBytes(out).subspan(before), classes);
    if (coded > 0) {
      out.resize(before + coded);
      return true;
    }
  }
  pack_levels(x.data(), x.size(), levels, reinterpret_cast<std::uint8_t*>(out.data() + before));
  return false;
}

Result<std::span<const std::int16_t>> read_levels(Bytes coded, bool is_rans, std::int32_t levels,
                                                  std::size_t elements, DecodeScratch& scratch,
                                                  const LevelClasses& classes) {
  const auto out = levels_in(scratch.levels, elements);
  if (is_rans) {
    if (levels > rans_levels_max) {
      return Error(Errc::corrupt,
                   fmt::format("{} levels are too many for the entropy code", levels));
    }
    if (!read_rans_levels(coded, levels, scratch.coded, out, classes)) {
      return Error(Errc::corrupt, "the entropy-coded levels are damaged");
    }
    return out;
  }
  FL_CHECK(check_body_bytes(coded, packed_bytes(elements, levels)));
  if (!unpack_levels(reinterpret_cast<const std::uint8_t*>(coded.data()), elements, levels,
                     out.data())) {
    return Error(Errc::corrupt, fmt::format("a bit field is above those of {} levels", levels));
  }
  return out;
}

}  // namespace fl::codec
