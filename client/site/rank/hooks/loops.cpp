// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/hooks/loops.hpp"

#include "kernels/generic/select.hpp"
#include "kernels/kernels.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

namespace fl::site {

namespace {

// The number of values that are worked on at a time: they stay in the nearest caches. It is a
// multiple of 8, so that signs begin with a byte.
constexpr std::size_t at_once = 4096;

constexpr std::uint32_t float_exponent = 0x7f80'0000;

/// Calls body(begin, count) for one piece after the other.
template <class Body>
void in_pieces(std::size_t n, const Body& body) {
  for (std::size_t begin = 0; begin < n; begin += at_once)
    body(begin, std::min(at_once, n - begin));
}

/// Rounds to the nearest even; requires |x| < 2^22. Adding this number leaves no bits for a
/// fraction.
float rounded(float x) {
  constexpr float no_fraction = 0x1.8p23F;
  return (x + no_fraction) - no_fraction;
}

void divide(float* values, std::size_t n, float by) {
  for (std::size_t i = 0; i < n; ++i) values[i] /= by;
}

}  // namespace

bool sums_are_finite(std::span<const float> a, std::span<const float> b) {
  std::uint32_t found = 0;
  in_pieces(a.size(), [&](std::size_t begin, std::size_t n) {
    const float* const x = a.data() + begin;
    const float* const y = b.data() + begin;
    std::uint32_t here = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const auto exponent = std::bit_cast<std::uint32_t>(x[i] + y[i]) & float_exponent;
      here |= exponent == float_exponent ? 1U : 0U;
    }
    found |= here;
  });
  return found == 0;
}

bool none_has_exponent(std::span<const std::uint16_t> values, std::uint16_t exponent) {
  std::uint16_t found = 0;
  for (const std::uint16_t value : values) {
    const auto mine = static_cast<std::uint16_t>(value & exponent);
    found = static_cast<std::uint16_t>(found | (mine == exponent ? 1 : 0));
  }
  return found == 0;
}

void find_largest_values(std::span<const float> values, std::span<std::int32_t> indices) {
  if (indices.empty()) return;
  Cutoff cutoff = find_largest(std::span(&values, 1), indices.size());
  std::array<std::uint32_t, at_once> found;
  std::size_t done = 0;
  in_pieces(values.size(), [&](std::size_t begin, std::size_t n) {
    const std::size_t count = select_largest(values.subspan(begin, n), cutoff, found.data());
    for (std::size_t i = 0; i < count; ++i)
      indices[done++] = static_cast<std::int32_t>(begin + found[i]);
  });
}

CodeRange code_range_of(std::span<const float> row) {
  if (row.empty()) return {.scale = std::numeric_limits<float>::epsilon(), .zero = 0};
  const Range range = kernels().range(row.data(), row.size());
  const float least = std::min(range.min, 0.0F);
  const float most = std::max(range.max, 0.0F);
  CodeRange codes;
  codes.scale = std::max((most - least) / 255.0F, std::numeric_limits<float>::epsilon());
  codes.zero = std::clamp(-rounded(least / codes.scale), 0.0F, 255.0F);
  return codes;
}

void to_codes(std::span<const float> row, const CodeRange& range, std::uint8_t* codes) {
  in_pieces(row.size(), [&](std::size_t begin, std::size_t n) {
    const float* const x = row.data() + begin;
    std::uint8_t* const out = codes + begin;
    for (std::size_t i = 0; i < n; ++i) {
      const float code = rounded(x[i] / range.scale) + range.zero;
      const float inside = code < 0.0F ? 0.0F : (code > 255.0F ? 255.0F : code);
      out[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(inside));
    }
  });
}

void mean_of_codes(std::span<const CodedRow> of_ranks, std::span<float> mean) {
  in_pieces(mean.size(), [&](std::size_t begin, std::size_t n) {
    float* const sum = mean.data() + begin;
    std::fill_n(sum, n, 0.0F);
    for (const CodedRow& row : of_ranks) {
      const std::uint8_t* const codes = row.codes + begin;
      const float scale = row.range.scale;
      const float zero = row.range.zero;
      for (std::size_t i = 0; i < n; ++i)
        sum[i] += scale * (static_cast<float>(static_cast<std::int32_t>(codes[i])) - zero);
    }
    divide(sum, n, static_cast<float>(of_ranks.size()));
  });
}

void mean_of_signs(std::span<const SignedRow> of_ranks, std::span<float> mean) {
  std::array<float, at_once> values;
  in_pieces(mean.size(), [&](std::size_t begin, std::size_t n) {
    float* const sum = mean.data() + begin;
    std::fill_n(sum, n, 0.0F);
    for (const SignedRow& row : of_ranks) {
      kernels().unpack_signs(row.bits + begin / 8, n, row.scale, values.data());
      add_values(std::span(values).first(n), {sum, n});
    }
    divide(sum, n, static_cast<float>(of_ranks.size()));
  });
}

void subtract_signs(const SignedRow& row, std::span<float> values) {
  std::array<float, at_once> signs;
  in_pieces(values.size(), [&](std::size_t begin, std::size_t n) {
    kernels().unpack_signs(row.bits + begin / 8, n, row.scale, signs.data());
    const auto here = values.subspan(begin, n);
    subtract_values(here, std::span(signs).first(n), here);
  });
}

void add_values(std::span<const float> values, std::span<float> sum) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
}

void subtract_values(std::span<const float> a, std::span<const float> b, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = a[i] - b[i];
}

void add_kept(std::span<const float> values, std::span<const float> residual, float keep,
              std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = values[i] + keep * residual[i];
}

}  // namespace fl::site
