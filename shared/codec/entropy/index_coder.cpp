// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/entropy/index_coder.hpp"

#include "shared/base/error.hpp"
#include "shared/codec/core/block_map.hpp"
#include "shared/codec/entropy/bits.hpp"
#include "shared/codec/entropy/quantized_levels.hpp"

#include <algorithm>
#include <array>
#include <bit>

namespace fl::codec {

namespace {

constexpr std::uint16_t bitmap_form = 0;
constexpr std::uint16_t nibbles_form = 0xffff;
constexpr std::uint32_t divisor_max = 0xfffe;

constexpr std::int32_t nibble_levels = 8;  // Nibble - 8 is a level from -8 to 7.

// If fewer than 1/16 of the elements are selected, Golomb codes are within 1% of the entropy.
// Trying the nibbles would then take more time than everything else.
constexpr std::size_t nibbles_density_inverse = 16;

// Remainders of a division by m in truncated binary: those below `shorts` take bits - 1 bits, the
// others `bits`. With m = 1 there are no remainders.
struct Remainders {
  explicit Remainders(std::uint32_t m)
      : bits(std::bit_width(m - 1)), shorts((std::uint32_t{1} << bits) - m) {}
  int bits;
  std::uint32_t shorts;
};

// Calls use(gap) for each index. The gap is the number of elements between it and the index before.
template <class Use>
void for_each_gap(std::span<const std::uint32_t> indices, const Use& use) {
  std::uint32_t next = 0;
  for (const std::uint32_t index : indices) {
    use(index - next);
    next = index + 1;
  }
}

std::uint64_t golomb_bits(std::span<const std::uint32_t> indices, std::uint32_t m) {
  const Remainders remainders(m);
  std::uint64_t bits = 0;
  for_each_gap(indices, [&](std::uint32_t gap) {
    const std::uint32_t quotient = gap / m;
    const bool is_short = gap - quotient * m < remainders.shorts;
    bits += quotient + 1 + static_cast<std::uint32_t>(remainders.bits) - (is_short ? 1 : 0);
  });
  return bits;
}

struct Golomb {
  std::uint32_t divisor;
  std::uint64_t bits;
};

// For random indices the best divisor is near ln 2 times their mean distance (Gallager and Van
// Voorhis 1975). For clustered indices it is not, so several divisors are tried.
Golomb choose_golomb(std::span<const std::uint32_t> indices, std::size_t n) {
  const auto near = static_cast<std::uint32_t>((11 * n / indices.size() + 8) / 16);
  Golomb best = {.divisor = 0, .bits = ~std::uint64_t{0}};
  std::uint32_t before = 0;
  // The divisors ascend, so equal ones are neighbours and are tried once.
  for (const std::uint32_t wanted : {near / 4, near / 2, near - 1, near, near + 1, near * 2}) {
    const std::uint32_t m = std::clamp(wanted, 1u, divisor_max);
    if (m == before) continue;
    before = m;
    const std::uint64_t bits = golomb_bits(indices, m);
    if (bits < best.bits) best = {.divisor = m, .bits = bits};
  }
  return best;
}

void append_golomb(std::span<const std::uint32_t> indices, std::uint32_t m,
                   std::vector<std::byte>& out) {
  const Remainders remainders(m);
  BitWriter writer(out);
  for_each_gap(indices, [&](std::uint32_t gap) {
    const std::uint32_t quotient = gap / m;
    const std::uint32_t remainder = gap - quotient * m;
    writer.put_ones(quotient);
    if (m == 1) return;
    if (remainder < remainders.shorts) {
      writer.put(remainder, remainders.bits - 1);
    } else {
      const std::uint32_t code = remainder + remainders.shorts;
      writer.put(code >> 1, remainders.bits - 1);
      writer.put(code & 1, 1);
    }
  });
  writer.finish();
}

std::optional<std::size_t> read_golomb(Bytes bytes, std::size_t n, std::uint32_t m,
                                       std::span<std::uint32_t> out) {
  const Remainders remainders(m);
  BitReader reader(bytes);
  std::uint64_t next = 0;
  for (std::uint32_t& index : out) {
    std::uint64_t gap = std::uint64_t{reader.take_ones()} * m;
    if (m > 1) {
      std::uint32_t code = reader.take(remainders.bits - 1);
      if (code >= remainders.shorts) code = (code << 1 | reader.take(1)) - remainders.shorts;
      gap += code;
    }
    next += gap;
    if (next >= n) return std::nullopt;
    index = static_cast<std::uint32_t>(next++);
  }
  reader.align();
  if (!reader.is_good()) return std::nullopt;
  return reader.bytes_taken();
}

std::vector<std::uint8_t> bitmap_of(std::span<const std::uint32_t> indices, std::size_t n) {
  std::vector<std::uint8_t> bitmap((n + 7) / 8);
  for (const std::uint32_t index : indices) {
    bitmap[index / 8] = static_cast<std::uint8_t>(bitmap[index / 8] | 1u << (index % 8));
  }
  return bitmap;
}

bool read_bitmap(std::span<const std::uint8_t> bitmap, std::size_t n,
                 std::span<std::uint32_t> out) {
  std::size_t found = 0;
  for (std::size_t byte = 0; byte < bitmap.size(); ++byte) {
    for (std::uint32_t left = bitmap[byte]; left != 0; left &= left - 1) {
      const std::size_t index = byte * 8 + static_cast<std::size_t>(std::countr_zero(left));
      if (found == out.size() || index >= n) return false;
      out[found++] = static_cast<std::uint32_t>(index);
    }
  }
  return found == out.size();
}

/// Writes the coded nibbles of the bitmap to `out` and returns their length; 0 if they would not be
/// shorter than `out`.
std::size_t write_nibbles(std::span<const std::uint8_t> bitmap, EncodeScratch& scratch,
                          MutableBytes out) {
  const auto levels = levels_in(scratch.levels, bitmap.size() * 2);
  for (std::size_t i = 0; i < bitmap.size(); ++i) {
    levels[2 * i] = static_cast<std::int16_t>((bitmap[i] & 15) - nibble_levels);
    levels[2 * i + 1] = static_cast<std::int16_t>((bitmap[i] >> 4) - nibble_levels);
  }
  return write_rans_levels(levels, nibble_levels, scratch.coded, out);
}

bool read_nibbles(Bytes bytes, std::size_t n, DecodeScratch& scratch,
                  std::span<std::uint32_t> out) {
  std::vector<std::uint8_t> bitmap((n + 7) / 8);
  const auto levels = levels_in(scratch.levels, bitmap.size() * 2);
  if (!read_rans_levels(bytes, nibble_levels, scratch.coded, levels)) return false;
  if (std::ranges::find(levels, nibble_levels) != levels.end()) return false;
  for (std::size_t i = 0; i < bitmap.size(); ++i) {
    bitmap[i] = static_cast<std::uint8_t>((levels[2 * i] + nibble_levels) |
                                          (levels[2 * i + 1] + nibble_levels) << 4);
  }
  return read_bitmap(bitmap, n, out);
}

void append_u16(std::uint64_t value, std::vector<std::byte>& out) {
  out.resize(out.size() + sizeof(std::uint16_t));
  store(out, out.size() - sizeof(std::uint16_t), static_cast<std::uint16_t>(value));
}

}  // namespace

void append_indices(std::span<const std::uint32_t> indices, std::size_t n, EncodeScratch& scratch,
                    std::vector<std::byte>& out) {
  FL_ASSERT(!indices.empty() && indices.back() < n && n <= block_elements_max);
  const Golomb golomb = choose_golomb(indices, n);
  const std::uint64_t golomb_bytes = (golomb.bits + 7) / 8;
  if (indices.size() * nibbles_density_inverse < n && golomb_bytes <= (n + 7) / 8) {
    append_u16(golomb.divisor, out);
    return append_golomb(indices, golomb.divisor, out);
  }
  const std::vector<std::uint8_t> bitmap = bitmap_of(indices, n);
  const std::size_t shorter = std::min<std::size_t>(golomb_bytes, bitmap.size());
  std::vector<std::byte> nibbles(shorter - std::min(shorter, sizeof(std::uint16_t)));
  nibbles.resize(write_nibbles(bitmap, scratch, nibbles));
  if (!nibbles.empty()) {
    append_u16(nibbles_form, out);
    append_u16(nibbles.size(), out);
    out.insert(out.end(), nibbles.begin(), nibbles.end());
  } else if (golomb_bytes < bitmap.size()) {
    append_u16(golomb.divisor, out);
    append_golomb(indices, golomb.divisor, out);
  } else {
    append_u16(bitmap_form, out);
    const Bytes bytes = std::as_bytes(std::span(bitmap));
    out.insert(out.end(), bytes.begin(), bytes.end());
  }
}

std::optional<std::size_t> read_indices(Bytes bytes, std::size_t n, DecodeScratch& scratch,
                                        std::span<std::uint32_t> out) {
  constexpr std::size_t word = sizeof(std::uint16_t);
  if (bytes.size() < word) return std::nullopt;
  const auto form = load<std::uint16_t>(bytes);
  bytes = bytes.subspan(word);
  if (form == bitmap_form) {
    const std::size_t size = (n + 7) / 8;
    if (bytes.size() < size) return std::nullopt;
    const std::span bitmap(reinterpret_cast<const std::uint8_t*>(bytes.data()), size);
    if (!read_bitmap(bitmap, n, out)) return std::nullopt;
    return word + size;
  }
  if (form == nibbles_form) {
    if (bytes.size() < word) return std::nullopt;
    const std::size_t size = load<std::uint16_t>(bytes);
    if (bytes.size() - word < size) return std::nullopt;
    if (!read_nibbles(bytes.subspan(word, size), n, scratch, out)) return std::nullopt;
    return 2 * word + size;
  }
  const auto taken = read_golomb(bytes, n, form, out);
  if (!taken) return std::nullopt;
  return word + *taken;
}

}  // namespace fl::codec
