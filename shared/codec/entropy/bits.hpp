// SPDX-License-Identifier: Apache-2.0
// Writes and reads numbers of 0 to 32 bits, lowest bits first, without gaps.
#pragma once

#include "shared/base/io/bytes.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

namespace fl::codec {

/// Appends bits to `out`. finish() fills the last byte with zeros.
class BitWriter {
 public:
  explicit BitWriter(std::vector<std::byte>& out) : out_(out) {}
  /// Writes the lowest `bits` bits of `value`, 0 to 32. The other bits must be 0.
  void put(std::uint32_t value, int bits) {
    held_ |= std::uint64_t{value} << count_;
    for (count_ += bits; count_ >= 8; count_ -= 8, held_ >>= 8) out_.push_back(low_byte());
  }
  /// Writes `ones` ones and then a zero.
  void put_ones(std::uint32_t ones) {
    for (; ones >= 32; ones -= 32) put(~0u, 32);
    put((1u << ones) - 1, static_cast<int>(ones) + 1);
  }
  void finish() {
    if (count_ > 0) out_.push_back(low_byte());
  }

 private:
  [[nodiscard]] std::byte low_byte() const { return static_cast<std::byte>(held_ & 0xff); }
  std::vector<std::byte>& out_;
  std::uint64_t held_ = 0;
  int count_ = 0;
};

/// Reads what BitWriter wrote. Past the end it returns zeros, and is_good() is then false.
class BitReader {
 public:
  explicit BitReader(Bytes bytes) : bytes_(bytes) {}
  /// Reads a number of `bits` bits, 0 to 32.
  std::uint32_t take(int bits) {
    const std::uint64_t value = window() & ((std::uint64_t{1} << bits) - 1);
    skip(static_cast<std::size_t>(bits));
    return is_good_ ? static_cast<std::uint32_t>(value) : 0;
  }
  /// Reads what put_ones() wrote and returns the number of ones. Always ends, because zeros follow
  /// the last bit.
  std::size_t take_ones() {
    std::size_t ones = 0;
    int run = 0;
    do {
      run = std::min(std::countr_one(window()), window_bits_min);
      skip(static_cast<std::size_t>(run));
      ones += static_cast<std::size_t>(run);
    } while (run == window_bits_min);
    skip(1);
    return ones;
  }
  /// Skips to the next whole byte. The skipped bits must be 0.
  void align() {
    if (take(static_cast<int>((8 - at_ % 8) % 8)) != 0) is_good_ = false;
  }
  [[nodiscard]] bool is_good() const { return is_good_; }
  [[nodiscard]] std::size_t bytes_taken() const { return at_ / 8; }

 private:
  static constexpr int window_bits_min = 57;

  /// The next bits, at least window_bits_min; zeros past the end.
  [[nodiscard]] std::uint64_t window() const {
    std::uint64_t word = 0;
    const std::size_t byte = at_ / 8;
    if (const std::size_t left = bytes_.size() - byte; left >= sizeof word) {
      std::memcpy(&word, bytes_.data() + byte, sizeof word);
    } else {
      std::memcpy(&word, bytes_.data() + byte, left);
    }
    return word >> (at_ % 8);
  }
  void skip(std::size_t bits) {
    if (bits > bytes_.size() * 8 - at_) {
      is_good_ = false;
    } else {
      at_ += bits;
    }
  }

  Bytes bytes_;
  std::size_t at_ = 0;  // In bits; never past the end.
  bool is_good_ = true;
};

}  // namespace fl::codec
