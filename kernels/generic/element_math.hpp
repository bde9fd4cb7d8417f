// SPDX-License-Identifier: Apache-2.0
// The arithmetic of one element, written once for all rows. V is the machine: `Scalar` below, or a
// SIMD row's own type with the same members, whose Float and Int are vectors. Each operator is one
// IEEE operation, and contraction is off (-ffp-contract=off, --fmad=false), so all rows agree in
// every bit. A mask is an integer, ~0 for true, made by an arithmetic shift.
//
// The functions have internal linkage on purpose; see philox.hpp.
#pragma once

#include "kernels/generic/philox.hpp"
#include "kernels/kernels.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace fl::element {

struct Scalar {
  using Float = float;
  using Int = std::int32_t;

  FL_HOST_DEVICE static Float constant(float value) { return value; }
  FL_HOST_DEVICE static Int bits(Float x) {
    Int out;
    memcpy(&out, &x, sizeof out);
    return out;
  }
  FL_HOST_DEVICE static Float from_bits(Int x) {
    Float out;
    memcpy(&out, &x, sizeof out);
    return out;
  }
  /// Rounds to nearest even.
  FL_HOST_DEVICE static Float to_float(Int x) { return static_cast<float>(x); }
  /// Rounds to nearest even. Requires: |x| < 2^31.
  FL_HOST_DEVICE static Int round(Float x) { return static_cast<Int>(lrintf(x)); }
  FL_HOST_DEVICE static Float root(Float x) { return sqrtf(x); }
  FL_HOST_DEVICE static Float least(Float a, Float b) { return a < b ? a : b; }
  FL_HOST_DEVICE static Float greatest(Float a, Float b) { return a > b ? a : b; }
  /// shift_right() shifts zeros in, shift_right_signed() copies of the sign.
  FL_HOST_DEVICE static Int shift_right(Int x, int by) {
    return static_cast<Int>(static_cast<std::uint32_t>(x) >> by);
  }
  FL_HOST_DEVICE static Int shift_right_signed(Int x, int by) { return x >> by; }
  FL_HOST_DEVICE static Int shift_left(Int x, int by) {
    return static_cast<Int>(static_cast<std::uint32_t>(x) << by);
  }
  /// Modulo 2^32.
  FL_HOST_DEVICE static Int add(Int a, Int b) {
    return static_cast<Int>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
  }
};

/// The factors and the limit of quantize(). It counts in places; a level has 2^16 of them.
struct QuantizeFactors {
  float lift;    // x is multiplied by this first, so that `places` is finite for a tiny scale.
  float places;  // Places for each lifted unit of x.
  float most;    // The places of the last level.
};

FL_HOST_DEVICE static inline QuantizeFactors quantize_factors(float scale, std::int32_t levels) {
  const float lift = scale < 0x1p-64f ? 0x1p64f : 1.0f;
  const float most = static_cast<float>(levels) * 0x1p16f;
  const float places = most / (scale * lift);
  // Rounded up if needed, so that x = scale always gets the last level.
  const bool is_short = scale * lift * places < most;
  return {lift, is_short ? Scalar::from_bits(Scalar::bits(places) + 1) : places, most};
}

/// The level of x, from -S to S. `noise` is 16 random bits.
template <class V>
FL_HOST_DEVICE static inline typename V::Int quantize(typename V::Float x, typename V::Int noise,
                                                      const QuantizeFactors& factors) {
  const auto most = V::constant(factors.most);
  const auto place = x * V::constant(factors.lift) * V::constant(factors.places);
  const auto within = V::greatest(V::least(place, most), -most);
  return V::shift_right_signed(V::round(within) + noise, 16);  // The sum is below 2^31.
}

/// The nearest integer, clamped to [-32767, 32767].
template <class V>
FL_HOST_DEVICE static inline typename V::Int round_level(typename V::Float x) {
  const auto top = V::constant(32767.0f);
  const auto magic = V::constant(0x1.8p23f);  // The sum's lowest bits are the integer.
  return V::bits(V::greatest(V::least(x, top), -top) + magic) - V::bits(magic);
}

/// |u| of dither(), in (0, 1/2), from the upper half of `word`. Its highest bit is the sign of u.
template <class V>
FL_HOST_DEVICE static inline typename V::Float dither_size(typename V::Int word) {
  return V::to_float((word & 0x7fff0000) | 0x8000) * V::constant(0x1p-32f);
}

/// Kernels::dither() of x, with per_step = 1 / step.
template <class V>
FL_HOST_DEVICE static inline typename V::Int dither(typename V::Float x, typename V::Int word,
                                                    typename V::Float per_step) {
  const auto turned = V::from_bits(V::bits(x) ^ (word & ~0x7fffffff));
  return round_level<V>(turned * per_step + dither_size<V>(word));
}

/// Kernels::undither() of a level.
template <class V>
FL_HOST_DEVICE static inline typename V::Float undither(typename V::Int level, typename V::Int word,
                                                        typename V::Float step) {
  const auto turned = (V::to_float(level) - dither_size<V>(word)) * step;
  return V::from_bits(V::bits(turned) ^ (word & ~0x7fffffff));
}

/// The class of dither_size(), from 0 to 2^bits - 1. `bits` is 0 to 15.
template <class V>
FL_HOST_DEVICE static inline typename V::Int dither_class(typename V::Int word, int bits) {
  return V::shift_right(word & 0x7fffffff, 31 - bits);
}

/// ln(u) for 2^-32 <= u <= 1. It is never above 0, and its relative error is below 2^-22.
template <class V>
FL_HOST_DEVICE static inline typename V::Float log_unit(typename V::Float u) {
  // u = m * 2^e with m in [sqrt(1/2), sqrt(2)). ln(m) = f + f^2 * q(f) with f = m - 1, which is
  // exact. q was fitted on that interval by least squares at Chebyshev nodes.
  const auto e = V::shift_right_signed(V::bits(u) - 0x3f3504f3, 23);
  const auto f = V::from_bits(V::bits(u) - V::shift_left(e, 23)) - V::constant(1.0f);
  auto q = V::constant(-0x1.4237fep-4f);
  q = q * f + V::constant(0x1.0696e4p-3f);
  q = q * f + V::constant(-0x1.0c524cp-3f);
  q = q * f + V::constant(0x1.22973ap-3f);
  q = q * f + V::constant(-0x1.548882p-3f);
  q = q * f + V::constant(0x1.99a3ecp-3f);
  q = q * f + V::constant(-0x1.000206p-2f);
  q = q * f + V::constant(0x1.55554ep-2f);
  q = q * f + V::constant(-0x1.fffffep-2f);
  return V::to_float(e) * V::constant(0x1.62e43p-1f) + (f + f * f * q);
}

/// Makes two independent standard normal values from two random words (Box and Muller 1958).
template <class V>
FL_HOST_DEVICE static inline void box_muller(typename V::Int word_0, typename V::Int word_1,
                                             typename V::Float& cosine_part,
                                             typename V::Float& sine_part) {
  using Int = typename V::Int;
  // u is in (0, 1], in steps of 2^-31 shifted by half a step, so that its logarithm is finite.
  const auto u =
      V::to_float(V::shift_right(word_0, 1)) * V::constant(0x1p-31f) + V::constant(0x1p-32f);
  const auto radius = V::root(V::constant(-2.0f) * log_unit<V>(u));

  // word_1 / 2^32 is an angle in turns. It is split into the nearest quarter turn and a rest `a`,
  // of at most pi/4 in size.
  const Int quarter = V::shift_right_signed(V::add(word_1, Int{} + (1 << 29)), 30);
  const auto a = V::to_float(V::add(word_1, V::shift_left(-quarter, 30))) *
                 V::constant(0x1.921fb6p-30f);  // 2 pi / 2^32.
  const auto s = a * a;
  auto sine = V::constant(-0x1.9aca02p-13f);
  sine = sine * s + V::constant(0x1.110c2ap-7f);
  sine = sine * s + V::constant(-0x1.555552p-3f);
  sine = a + a * s * sine;
  auto cosine = V::constant(0x1.9bd8d2p-16f);
  cosine = cosine * s + V::constant(-0x1.6c12d4p-10f);
  cosine = cosine * s + V::constant(0x1.555554p-5f);
  cosine = V::constant(1.0f) + (s * s * cosine - V::constant(0.5f) * s);

  const Int odd = -(quarter & 1);  // Swaps sine and cosine.
  const Int sine_bits = (V::bits(sine) & ~odd) | (V::bits(cosine) & odd);
  const Int cosine_bits = (V::bits(cosine) & ~odd) | (V::bits(sine) & odd);
  const Int sine_sign = V::shift_left(V::shift_right(quarter, 1) & 1, 31);
  const Int cosine_sign = V::shift_left(V::shift_right(quarter + 1, 1) & 1, 31);
  cosine_part = radius * V::from_bits(cosine_bits ^ cosine_sign);
  sine_part = radius * V::from_bits(sine_bits ^ sine_sign);
}

/// Kernels::flip_signs() of x. Only the highest bit of `sign` may be set.
template <class V>
FL_HOST_DEVICE static inline typename V::Float flip_sign(typename V::Float x,
                                                         typename V::Float factor,
                                                         typename V::Int sign) {
  return V::from_bits(V::bits(x * factor) ^ sign);
}

/// How many elements get their signs from one line of Philox words (philox.hpp).
inline constexpr std::size_t line_signs = 32 * philox::line_elements;

/// Kernels::flip_signs() of the elements from `begin` to n.
static inline void flip_signs(float* x, std::size_t begin, std::size_t n, float factor,
                              std::uint64_t seed, std::uint64_t stream) {
  std::uint32_t words[philox::line_elements];
  for (std::size_t i = begin; i < n; ++i) {
    if (i == begin || i % line_signs == 0) {
      philox::fill_line(seed, stream, i / line_signs, words);
    }
    const std::uint32_t sign = words[i % line_signs / 32] << (31 - i % 32) & 0x80000000;
    x[i] = flip_sign<Scalar>(x[i], factor, static_cast<std::int32_t>(sign));
  }
}

/// The index of the centroid that |x| takes. below[i] is the bits of thresholds[i], minus 1.
template <class V>
FL_HOST_DEVICE static inline typename V::Int nearest(typename V::Float x,
                                                     const typename V::Int* below, int thresholds) {
  using Int = typename V::Int;
  const Int magnitude = V::bits(x) & 0x7fffffff;  // Bits order like magnitudes.
  Int m = Int{};
  for (int i = 0; i < thresholds; ++i) m -= V::shift_right_signed(below[i] - magnitude, 31);
  return m;
}

/// Kernels::to_half() of x.
FL_HOST_DEVICE static inline std::uint16_t to_half(float x) {
  const auto bits = static_cast<std::uint32_t>(Scalar::bits(x));
  const std::uint32_t sign = bits >> 16 & 0x8000;
  const std::uint32_t magnitude = bits & 0x7fffffff;
  std::uint32_t half;
  if (magnitude > 0x7f800000) {
    half = 0x7e00 | (magnitude >> 13 & 0x3ff);  // A quiet NaN keeps the top of its payload.
  } else if (magnitude >= 0x477ff000) {
    half = 0x7c00;  // From 65520 on: halfway between the largest number and 2^16.
  } else if (magnitude >= 0x38800000) {
    // Normal: change the exponent's bias from 127 to 15, then round 13 bits away.
    const std::uint32_t rebased = magnitude - (112u << 23);
    half = (rebased + 0xfff + (rebased >> 13 & 1)) >> 13;
  } else {
    // Subnormal: after adding 1/2, the lowest bits are the value in units of 2^-24, rounded.
    const float shifted = Scalar::from_bits(static_cast<std::int32_t>(magnitude)) + 0.5f;
    half = static_cast<std::uint32_t>(Scalar::bits(shifted)) - 0x3f000000;
  }
  return static_cast<std::uint16_t>(sign | half);
}

FL_HOST_DEVICE static inline float from_half(std::uint16_t x) {
  const std::uint32_t sign = (x & 0x8000u) << 16;
  const std::uint32_t magnitude = x & 0x7fffu;
  std::uint32_t bits;
  if (magnitude > 0x7c00) {
    bits = 0x7fc00000 | magnitude << 13;
  } else if (magnitude == 0x7c00) {
    bits = 0x7f800000;
  } else if (magnitude >= 0x400) {
    bits = (magnitude << 13) + (112u << 23);
  } else {
    bits = static_cast<std::uint32_t>(Scalar::bits(static_cast<float>(magnitude) * 0x1p-24f));
  }
  return Scalar::from_bits(static_cast<std::int32_t>(sign | bits));
}

/// Kernels::to_bf16() of x, in the low 16 bits. Requires: x is not NaN.
template <class V>
FL_HOST_DEVICE static inline typename V::Int to_bf16(typename V::Float x) {
  const auto bits = V::bits(x);
  const auto is_odd = V::shift_right(bits, 16) & 1;
  return V::shift_right(V::add(bits, is_odd + 0x7fff), 16);
}

/// Kernels::from_bf16() of the low 16 bits of x.
template <class V>
FL_HOST_DEVICE static inline typename V::Float from_bf16(typename V::Int x) {
  return V::from_bits(V::shift_left(x, 16));
}

/// The lanes of Scan::sum_squares.
inline constexpr std::size_t scan_lanes = 16;

/// Adds the lanes as a binary tree, in place.
FL_HOST_DEVICE static inline double add_lanes(double* lanes) {
  for (std::size_t width = scan_lanes / 2; width > 0; width /= 2) {
    for (std::size_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

/// The lanes of Kernels::dot().
inline constexpr std::size_t dot_lanes = 32;

/// One element of the vectors of Kernels::optimizer_step().
template <class V>
struct StepValues {
  typename V::Float weight;
  typename V::Float gradient;
  typename V::Float start;
  typename V::Float correction;  // 0 if there is none.
  typename V::Float first;
  typename V::Float second;
};

/// Kernels::optimizer_step() of one element. Leaves x.gradient as it is.
template <class V>
FL_HOST_DEVICE static inline void step(StepValues<V>& x, const StepArgs& args,
                                       bool has_correction) {
  const auto lr = V::constant(args.lr);
  auto g = x.gradient;
  if (args.shrink != 1) x.weight = x.weight * V::constant(args.shrink);
  if (args.decay != 0) g = g + x.weight * V::constant(args.decay);
  if (args.proximal != 0) g = g + (x.weight - x.start) * V::constant(args.proximal);
  if (has_correction) g = g + x.correction;
  if (args.rule == StepArgs::Rule::sgd) {
    x.weight = x.weight - g * lr;
    return;
  }
  if (args.rule != StepArgs::Rule::adam) {
    x.first = x.first * V::constant(args.beta1) + g;
    if (args.rule == StepArgs::Rule::nesterov) {
      x.weight = x.weight - (g + x.first * V::constant(args.beta1)) * lr;
    } else {
      x.weight = x.weight - x.first * lr;
    }
    return;
  }
  x.first = x.first * V::constant(args.beta1) + g * V::constant(args.own1);
  x.second = x.second * V::constant(args.beta2) + g * g * V::constant(args.own2);
  const auto scale = V::root(x.second) / V::constant(args.root_bias2) + V::constant(args.epsilon);
  x.weight = x.weight - x.first / scale * lr;
}

/// Adds the last elements of dot() to the lanes, and then the lanes as a binary tree. The elements
/// are those from `begin`, a multiple of dot_lanes, to n; they are fewer than dot_lanes.
static inline float finish_dot(const float* x, const float* y, std::size_t begin, std::size_t n,
                               float* lanes) {
  for (std::size_t i = begin; i < n; ++i) lanes[i - begin] += x[i] * y[i];
  for (std::size_t width = dot_lanes / 2; width > 0; width /= 2) {
    for (std::size_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

/// The factor that scales values with this sum of squares to norm 1. A norm below 2^-126 counts as
/// 2^-126, so that the factor is finite.
FL_HOST_DEVICE static inline float unit_factor(double sum_squares) {
  const double norm = std::sqrt(sum_squares);
  return static_cast<float>(1 / (norm < 0x1p-126 ? 0x1p-126 : norm));
}

/// Fills the argument `below` of nearest().
FL_HOST_DEVICE static inline void find_below(const Centroids& centroids, std::int32_t* below) {
  for (int i = 0; i + 1 < centroids.count; ++i) {
    below[i] = Scalar::bits(centroids.thresholds[i]) - 1;
  }
}

/// What Kernels::nearest() finds for one x.
struct NearestCentroid {
  std::int32_t level;
  float magnitude;  // |x|.
  float centroid;   // The centroid that |x| takes.

  [[nodiscard]] FL_HOST_DEVICE double product() const {
    return static_cast<double>(magnitude) * centroid;
  }
};
FL_HOST_DEVICE static inline NearestCentroid nearest_centroid(float x, const Centroids& centroids,
                                                              const std::int32_t* below) {
  const std::int32_t m = nearest<Scalar>(x, below, centroids.count - 1);
  const std::int32_t negative = Scalar::bits(x) >> 31;
  return {m ^ negative, negative == 0 ? x : -x, centroids.values[m]};
}

/// Kernels::nearest() of the elements from `begin`, a multiple of scan_lanes, to n. Adds the
/// products to the lanes.
static inline void nearest(const float* x, std::size_t begin, std::size_t n,
                           const Centroids& centroids, std::int16_t* levels, double* lanes) {
  std::int32_t below[7]{};
  find_below(centroids, below);
  for (std::size_t i = begin; i < n; ++i) {
    const NearestCentroid found = nearest_centroid(x[i], centroids, below);
    levels[i] = static_cast<std::int16_t>(found.level);
    lanes[i % scan_lanes] += found.product();
  }
}

/// Kernels::pack_signs() of the elements from `begin`, a multiple of scan_lanes, to n. Adds the
/// magnitudes to the lanes.
static inline void pack_signs(const float* x, std::size_t begin, std::size_t n, std::uint8_t* out,
                              double* lanes) {
  for (std::size_t i = begin; i < n; ++i) {
    const unsigned bit = x[i] < 0 ? 1u << i % 8 : 0u;
    out[i / 8] = static_cast<std::uint8_t>(i % 8 == 0 ? bit : out[i / 8] | bit);
    lanes[i % scan_lanes] += static_cast<double>(x[i] < 0 ? -x[i] : x[i]);
  }
}

}  // namespace fl::element
