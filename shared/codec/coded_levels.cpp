#include "shared/codec/coded_levels.hpp"

#include "kernels/kernels.hpp"
#include "kernels/pack.hpp"
#include "shared/codec/level_codes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

namespace fl {

namespace {

/// What is smaller stays in the residual, and larger scales are not tried: round() has steps from
/// 2^-126 to 2^121.
constexpr float nearest_min = 0x1p-100f;
constexpr float nearest_max = 0x1p121f;

/// With more levels than that, one about the largest value costs little.
constexpr std::int32_t searched_levels_max = 15;
/// Of |x|, up to its largest.
constexpr std::size_t bins = 256;
/// Each is 2^-1/4 of the one before, the last 1/256 of the largest value: in a block none is more
/// than 256 times the mean square's root.
constexpr int scales_tried = 33;
constexpr double scale_ratio = 0x1.ae89f995ad3adp-1;

/// How many values lie in each bin or above it, and their sum in bins.
struct Tails {
  std::array<std::uint32_t, bins + 1> count{};
  std::array<std::uint64_t, bins + 1> sum{};
};

Tails tails_of(std::span<const std::int16_t> places) {
  Tails tails;
  // By turns in two tables, so that one count need not wait for the one before.
  std::array<std::uint32_t, bins> odd{};
  for (std::size_t i = 0; i < places.size(); ++i) {
    const auto bin = std::min<std::size_t>(static_cast<std::size_t>(std::abs(places[i])), bins - 1);
    ++(i % 2 == 0 ? tails.count[bin] : odd[bin]);
  }
  for (std::size_t b = bins; b-- > 0;) {
    tails.count[b] += odd[b];
    tails.sum[b] = tails.sum[b + 1] + std::uint64_t{tails.count[b]} * b;
    tails.count[b] += tails.count[b + 1];
  }
  return tails;
}

/// The squares that levels of this step leave of all values, less the values' own squares. Level l
/// begins at (l - 1/2) steps, and its square is the sum of 2k - 1 over k up to l.
double squares_left(const Tails& tails, double step, std::int32_t levels) {
  double sums = 0;
  double squares = 0;
  for (std::int32_t level = 1; level <= levels; ++level) {
    const auto bin = static_cast<std::size_t>((level - 0.5) * step) + 1;
    sums += static_cast<double>(tails.sum[bin]);
    squares += static_cast<double>(tails.count[bin]) * (2 * level - 1);
  }
  return step * (step * squares - 2 * sums);
}

/// The scale with the least error; `room` is for a value each.
float least_error_scale(std::span<const float> x, float max_abs, std::int32_t levels,
                        std::int16_t* room) {
  kernels().round(x.data(), x.size(), max_abs / (bins - 1), room);
  const Tails tails = tails_of({room, x.size()});
  double share = 1;
  double best_share = 1;
  double least = 0;
  for (int tried = 0; tried < scales_tried; ++tried, share *= scale_ratio) {
    const double left = squares_left(tails, share * (bins - 1) / levels, levels);
    if (left >= least) continue;
    least = left;
    best_share = share;
  }
  return static_cast<float>(max_abs * best_share);
}

}  // namespace

Result<void> check_scale(float scale, const Layout& layout, std::uint64_t flat,
                         std::string_view method) {
  if (scale <= scale_max) return {};
  return Error(Errc::invalid_input,
               fmt::format("the values at {} have the scale {}, and {} ends at {}",
                           layout.describe(flat), scale, method, scale_max));
}

Result<float> read_scale(Bytes body, std::size_t at) {
  const auto scale = load<float>(body, at);
  // Written so that NaN fails too; -0 is not what an encoder writes.
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
  if (max_abs < nearest_min) {
    std::fill_n(out, x.size(), std::int16_t{0});
    return 0;
  }
  float scale = std::min(max_abs, nearest_max);
  if (levels <= searched_levels_max) scale = least_error_scale(x, scale, levels, out);
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
      return Error(Errc::corrupt, fmt::format("entropy-coded with {} levels", levels));
    }
    if (!read_rans_levels(coded, levels, scratch.coded, out, classes)) {
      return Error(Errc::corrupt, "the entropy-coded levels are damaged");
    }
    return out;
  }
  FL_CHECK(check_body_bytes(coded, packed_bytes(elements, levels)));
  if (!unpack_levels(reinterpret_cast<const std::uint8_t*>(coded.data()), elements, levels,
                     out.data())) {
    return Error(Errc::corrupt, fmt::format("a code past those of {} levels", levels));
  }
  return out;
}

}  // namespace fl
