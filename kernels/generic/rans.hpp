// Interleaved range asymmetric numeral systems (Duda 2013, arXiv:1311.2540; interleaving and
// word-wise renormalization: Giesen 2014, arXiv:1402.3392): symbols near their entropy, decodable
// by 32 lanes at once. Symbol i belongs to lane i % lanes, so SIMD registers or a warp decode 32
// symbols a step. Short streams have four lanes, because each costs its state.
//
// Bytes of a stream, little-endian: the lanes' first states, u32 each, then u16 words in the order
// in which decoding takes them. Where one symbol has all of the 2^12 there are no bytes at all.
//
// Symbols may be of classes that the decoder knows without being told, class 0 those below some
// number, class 1 those from there on, and so on. Then each class's frequencies add up to 2^12.
//
// What is done in a step stands in rans_step.hpp. Pure; any thread; nothing is allocated.
#pragma once

#include "kernels/generic/rans_step.hpp"
#include "kernels/kernels.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace fl {

inline constexpr int rans_symbols_max = 256;
inline constexpr int rans_bits = rans::bits;  // Frequencies add up to 2^12.
inline constexpr std::size_t rans_classes_max = 8;

/// Of a stream of n symbols.
[[nodiscard]] FL_HOST_DEVICE constexpr std::size_t rans_lanes(std::size_t n) {
  return n < 16384 ? rans::lanes_few : rans::lanes_max;
}

/// No stream of n symbols is longer, whatever the frequencies.
[[nodiscard]] FL_HOST_DEVICE constexpr std::size_t rans_bytes_max(std::size_t n) {
  return rans_lanes(n) * sizeof(std::uint32_t) + n * sizeof(std::uint16_t);
}

using RansFrequencies = std::array<std::uint16_t, rans_symbols_max>;

/// Scales counts to frequencies that add up to 2^12, in integers; a symbol that occurs has at least
/// 1, one that doesn't has 0. Some count is positive; all of them together are below 2^32.
[[nodiscard]] RansFrequencies rans_frequencies(std::span<const std::uint32_t> counts);

/// Writes the stream of n symbols, each of positive frequency, so that it ends at out_end and has
/// at most rans_bytes_max(n) bytes; returns how many. What lies before it in rans_bytes_max(n)
/// bytes may be overwritten. Where there are classes, no symbol has all of the 2^12.
[[nodiscard]] std::size_t rans_encode(const std::uint8_t* symbols, std::size_t n,
                                      const RansFrequencies& frequencies, std::uint8_t* out_end,
                                      const Kernels& row = kernels());

/// Fills `symbols`. The stream need not be trusted: false unless it is one that rans_encode makes,
/// to the last byte; `symbols` then holds bytes without meaning. The frequencies are what
/// rans_encode may have been given. classes[i] is that of symbol i, below how often they add up to
/// 2^12, rans_classes_max at most; nullptr where there is one class.
[[nodiscard]] bool rans_decode(const std::uint8_t* stream, std::size_t bytes,
                               const RansFrequencies& frequencies, std::uint8_t* symbols,
                               std::size_t n, const std::uint8_t* classes = nullptr,
                               const Kernels& row = kernels());

}  // namespace fl
