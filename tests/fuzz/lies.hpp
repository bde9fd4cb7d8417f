// SPDX-License-Identifier: Apache-2.0
// Inputs that are right but for one lie. Random changes mostly break the first thing that a reader
// checks. These know the formats: they change one number, or move bytes or bits so that all other
// numbers still fit, so each check stands alone.
#pragma once

#include "shared/codec/blocks/decode.hpp"
#include "shared/codec/core/block_map.hpp"
#include "shared/codec/entropy/index_coder.hpp"
#include "shared/codec/payload/reader.hpp"
#include "tests/support/payload_blocks.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace fl::fuzz {

using namespace fl::codec;

using Input = std::vector<std::uint8_t>;

class Lies {
 public:
  explicit Lies(Input good) : good_(std::move(good)) {}

  /// All lies so far.
  [[nodiscard]] std::vector<Input> take() { return std::move(lies_); }

  /// Replaces the number of `bytes` bytes at `at` by its neighbours and by extreme values.
  void about_number(std::size_t at, std::size_t bytes) {
    const std::uint64_t value = number(at, bytes);
    const std::uint64_t most = ~std::uint64_t{0} >> (64 - 8 * bytes);
    for (const std::uint64_t lie :
         {std::uint64_t{0}, std::uint64_t{1}, value - 1, value + 1, 2 * value, most}) {
      if ((lie & most) == value) continue;
      Input input = good_;
      put(input, at, bytes, lie);
      lies_.push_back(std::move(input));
    }
  }

  /// Lies about the block of `elements` elements that is the `bytes` bytes at `at`, and about the
  /// blocks in it.
  void about_block(std::size_t at, std::size_t bytes, std::size_t elements) {
    if (bytes == 0) return;
    for (std::size_t i = 1; i < std::min<std::size_t>(bytes, 12); ++i) about_number(at + i, 1);
    for (const std::size_t i : {1u, 3u, 5u}) {
      if (i + 2 <= bytes) about_number(at + i, 2);
    }
    switch (static_cast<BlockFormat>(good_[at])) {
      case BlockFormat::parts: return about_parts(at, bytes, elements);
      case BlockFormat::sparse: return about_sparse(at, bytes, elements);
      case BlockFormat::randk:
        if (bytes > 11) about_block(at + 11, bytes - 11, number(at + 1, 2));
        return;
      default: return;
    }
  }

  /// Each size in a table of u32 sizes at `at` takes a byte of the next one's. Then all bytes are
  /// still there, but two pieces end at a wrong place.
  void about_neighbours(std::size_t at, std::size_t count) {
    for (std::size_t i = 0; i + 1 < count; ++i) {
      Input input = good_;
      const std::size_t here = at + i * 4;
      put(input, here, 4, number(here, 4) + 1);
      put(input, here + 4, 4, number(here + 4, 4) - 1);
      lies_.push_back(std::move(input));
    }
  }

  /// The input ends a byte early, although its sizes say otherwise.
  void about_end() {
    lies_.push_back(good_);
    lies_.back().pop_back();
  }

 private:
  [[nodiscard]] std::uint64_t number(std::size_t at, std::size_t bytes) const {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < bytes; ++i) value |= std::uint64_t{good_.at(at + i)} << (8 * i);
    return value;
  }
  static void put(Input& input, std::size_t at, std::size_t bytes, std::uint64_t value) {
    for (std::size_t i = 0; i < bytes; ++i)
      input.at(at + i) = static_cast<std::uint8_t>(value >> (8 * i));
  }

  void about_parts(std::size_t at, std::size_t bytes, std::size_t elements) {
    const std::size_t count = part_count(elements);
    if (bytes < 1 + 4 * count) return;
    about_neighbours(at + 1, count);
    std::size_t begin = at + 1 + 4 * count;
    for (std::size_t part = 0; part < count; ++part) {
      about_number(at + 1 + 4 * part, 4);
      const auto size = static_cast<std::size_t>(number(at + 1 + 4 * part, 4));
      if (begin + size > at + bytes) return;
      about_block(begin, size,
                  std::min<std::size_t>(part_elements_max, elements - part * part_elements_max));
      begin += size;
    }
  }

  void about_sparse(std::size_t at, std::size_t bytes, std::size_t elements) {
    const auto k = static_cast<std::size_t>(number(at + 1, 2));
    const std::size_t indices_at = at + 3;
    if (k == 0 || k >= elements || bytes < 6) return;
    const Bytes indices =
        std::as_bytes(std::span(good_)).subspan(indices_at, at + bytes - indices_at);
    std::vector<std::uint32_t> read(k);
    DecodeScratch scratch;
    const auto taken = read_indices(indices, elements, scratch, read);
    if (!taken) return;
    const bool is_bitmap = number(indices_at, 2) == 0;
    // The last index at each place of the bitmap behind the block's end.
    for (std::size_t place = elements; is_bitmap && place % 8 != 0; ++place) {
      Input input = good_;
      const std::size_t bitmap_at = indices_at + 2;
      input[bitmap_at + read.back() / 8] ^= static_cast<std::uint8_t>(1u << read.back() % 8);
      input[bitmap_at + place / 8] ^= static_cast<std::uint8_t>(1u << place % 8);
      lies_.push_back(std::move(input));
    }
    about_block(indices_at + *taken, at + bytes - indices_at - *taken, k);
  }

  Input good_;
  std::vector<Input> lies_;
};

/// Lies about a seed of the target "block": a u16, then a block (tests/fuzz/block.cpp).
inline std::vector<Input> lies_about_block(const Input& good) {
  Lies lies(good);
  if (good.size() <= 2) return {};
  const std::size_t elements = good[0] + 256u * good[1] + 1;
  lies.about_number(0, 2);
  lies.about_end();
  const bool is_large = static_cast<BlockFormat>(good[2]) == BlockFormat::parts;
  lies.about_block(2, good.size() - 2, is_large ? 16 * elements : elements);
  std::vector<Input> all = lies.take();
  // Fewer elements, as long as a bitmap of them has as many bytes.
  for (std::size_t fewer = 2; fewer < 8 && fewer < elements; ++fewer) {
    Input input = good;
    input[0] = static_cast<std::uint8_t>(elements - 1 - fewer);
    input[1] = static_cast<std::uint8_t>((elements - 1 - fewer) >> 8);
    all.push_back(std::move(input));
  }
  return all;
}

/// Lies about a seed of the target "payload", which has this layout.
inline std::vector<Input> lies_about_payload(const Input& good, const Layout& layout) {
  Lies lies(good);
  const Bytes bytes = std::as_bytes(std::span(good));
  for (const std::size_t at : {0u, 4u, 8u, 12u}) lies.about_number(at, 4);
  const auto blocks = testing::placed_blocks(layout, bytes);
  const auto in_table = std::ranges::count(blocks, false, &testing::PlacedBlock::is_bare);
  lies.about_neighbours(payload_header_bytes, static_cast<std::size_t>(in_table));
  lies.about_end();
  for (const auto& placed : blocks) {
    if (placed.is_bare) {
      lies.about_number(placed.begin, 4);
      continue;
    }
    lies.about_number(placed.size_at, 4);
    lies.about_block(placed.begin, placed.bytes, placed.block.elements);
  }
  return lies.take();
}

}  // namespace fl::fuzz
