// SPDX-License-Identifier: Apache-2.0
// Interleaved range asymmetric numeral systems (Duda 2013, arXiv:1311.2540; interleaving and
// renormalization by words: Giesen 2014, arXiv:1402.3392). Streams are nearly as short as the
// symbols' entropy. Symbol i belongs to lane i % lanes, so SIMD registers or a warp decode 32
// symbols in a step. Short streams have four lanes, because a stream holds a state for each lane.
//
// The bytes of a stream, little-endian: first the decoder's starting state of each lane, as u32,
// then u16 words in the order in which the decoder takes them. If one symbol has the frequency
// 2^12, the stream has no bytes.
//
// Symbols may have classes: class 0 has the symbols below some number, class 1 those from there on,
// and so on. The decoder knows each symbol's class without being told. The frequencies of each
// class add up to 2^12.
//
// rans_step.hpp has the arithmetic of a step. Pure; any thread; allocates nothing.
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

/// The lanes of a stream of n symbols.
[[nodiscard]] FL_HOST_DEVICE constexpr std::size_t rans_lanes(std::size_t n) {
  return n < 16384 ? rans::lanes_few : rans::lanes_max;
}

/// The most bytes of a stream of n symbols, for any frequencies.
[[nodiscard]] FL_HOST_DEVICE constexpr std::size_t rans_bytes_max(std::size_t n) {
  return rans_lanes(n) * sizeof(std::uint32_t) + n * sizeof(std::uint16_t);
}

using RansFrequencies = std::array<std::uint16_t, rans_symbols_max>;

/// Scales counts to frequencies that add up to 2^12. It uses integers only, so every machine gets
/// the same. A symbol that occurs gets at least 1, and one that does not gets 0. There are at most
/// rans_symbols_max counts, and their sum is below 2^32; if it is 0, all frequencies are 0.
[[nodiscard]] RansFrequencies rans_frequencies(std::span<const std::uint32_t> counts);

/// Writes the stream of n symbols so that it ends at out_end, and returns its length in bytes,
/// which is at most rans_bytes_max(n). All of the rans_bytes_max(n) bytes before out_end may be
/// overwritten. Requires: each symbol has a positive frequency, and with more than one class no
/// frequency is 2^12.
[[nodiscard]] std::size_t rans_encode(const std::uint8_t* symbols, std::size_t n,
                                      const RansFrequencies& frequencies, std::uint8_t* out_end,
                                      const Kernels& row = kernels());

/// Fills `symbols` with n symbols. The stream may come from anyone: the result is false unless
/// rans_encode() could have made it, to the last byte; then `symbols` has no meaning. Requires: the
/// frequencies are valid for rans_encode(), with at most rans_classes_max classes. classes[i] is
/// the class of symbol i, and the frequencies have such a class. `classes` is nullptr if there is
/// one class.
[[nodiscard]] bool rans_decode(const std::uint8_t* stream, std::size_t bytes,
                               const RansFrequencies& frequencies, std::uint8_t* symbols,
                               std::size_t n, const std::uint8_t* classes = nullptr,
                               const Kernels& row = kernels());

}  // namespace fl
