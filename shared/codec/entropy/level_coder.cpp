// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/entropy/level_coder.hpp"

#include "kernels/generic/rans.hpp"
#include "shared/base/error.hpp"
#include "shared/codec/entropy/adaptive_coder.hpp"
#include "shared/codec/entropy/bits.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace fl::codec {

namespace {

constexpr int width_bits = 4;

}  // namespace

RansFrequencies make_level_tables(std::span<std::uint32_t> counts, std::size_t alphabet,
                                  std::vector<std::byte>& table) {
  const bool has_classes = counts.size() > alphabet;
  RansFrequencies frequencies{};
  for (std::size_t first = 0; first < counts.size(); first += alphabet) {
    const auto of_class = counts.subspan(first, alphabet);
    // With several classes no level may have the whole frequency of its class, so at least two
    // levels of each class must have a count.
    if (has_classes && std::ranges::count(of_class, 0u) + 1 >= std::ssize(of_class)) {
      ++of_class[0];
      ++of_class[1];
    }
    const RansFrequencies scaled = rans_frequencies(of_class);
    std::copy_n(scaled.begin(), alphabet, frequencies.begin() + static_cast<std::ptrdiff_t>(first));
  }
  table.clear();
  BitWriter writer(table);
  for (const std::uint16_t frequency : std::span(frequencies).first(counts.size())) {
    const int width = std::bit_width(frequency);
    writer.put(static_cast<std::uint32_t>(width), width_bits);
    if (width > 1) writer.put(frequency ^ (1u << (width - 1)), width - 1);
  }
  writer.finish();
  return frequencies;
}

std::size_t write_rans_levels(std::span<const std::int16_t> x, std::int32_t levels,
                              LevelScratch& scratch, MutableBytes out,
                              const LevelClasses& classes) {
  FL_ASSERT(levels >= 1 && levels <= rans_levels_max);
  const auto alphabet = static_cast<std::size_t>(2 * levels + 1);
  const std::size_t symbols_all = classes.count * alphabet;
  FL_ASSERT(symbols_all <= rans_symbols_max && classes.count <= rans_classes_max);
  FL_ASSERT(classes.count == 1 || classes.of.size() == x.size());
  if (x.empty()) return 0;
  if (x.size() <= adaptive_levels_max)
    return write_adaptive_levels(x, levels, scratch, out, classes);
  scratch.symbols.resize(std::max(scratch.symbols.size(), x.size()));
  scratch.stream.resize(std::max(scratch.stream.size(), rans_bytes_max(x.size())));
  std::uint8_t* const symbols = scratch.symbols.data();
  const std::uint8_t* const of = classes.of.data();
  const bool has_classes = classes.count > 1;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::int32_t first = has_classes ? of[i] * (2 * levels + 1) : 0;
    symbols[i] = static_cast<std::uint8_t>(first + x[i] + levels);
  }
  std::array<std::uint32_t, rans_symbols_max> counts;
  kernels().count_symbols(symbols, x.size(), counts.data());
  const RansFrequencies frequencies =
      make_level_tables(std::span(counts).first(symbols_all), alphabet, scratch.table);
  const std::size_t table_bytes = scratch.table.size();
  std::uint8_t* const end = scratch.stream.data() + scratch.stream.size();
  const std::size_t stream_bytes = rans_encode(symbols, x.size(), frequencies, end);
  if (table_bytes + stream_bytes >= out.size()) return 0;
  std::memcpy(out.data(), scratch.table.data(), table_bytes);
  copy_bytes(out.data() + table_bytes, reinterpret_cast<const std::byte*>(end - stream_bytes),
             stream_bytes);
  return table_bytes + stream_bytes;
}

bool read_rans_levels(Bytes bytes, std::int32_t levels, LevelScratch& scratch,
                      std::span<std::int16_t> out, const LevelClasses& classes) {
  FL_ASSERT(levels >= 1 && levels <= rans_levels_max && classes.count <= rans_classes_max);
  const auto alphabet = static_cast<std::size_t>(2 * levels + 1);
  const std::size_t symbols_all = classes.count * alphabet;
  FL_ASSERT(classes.count == 1 || classes.of.size() == out.size());
  if (symbols_all > rans_symbols_max || out.empty()) return false;
  if (out.size() <= adaptive_levels_max) return read_adaptive_levels(bytes, levels, out, classes);
  RansFrequencies frequencies{};
  std::uint32_t sum = 0;  // The sum of a class's frequencies.
  BitReader table(bytes);
  for (std::size_t s = 0; s < symbols_all; ++s) {
    if (s > 0 && s % alphabet == 0) {
      if (sum != rans::total) return false;
      sum = 0;
    }
    const auto width = static_cast<int>(table.take(width_bits));
    if (width > rans_bits + 1) return false;
    if (width == 0) continue;
    const std::uint32_t frequency = (1u << (width - 1)) | table.take(width - 1);
    if (classes.count > 1 && frequency == rans::total) return false;
    frequencies[s] = static_cast<std::uint16_t>(frequency);
    sum += frequency;
  }
  table.align();
  if (!table.is_good() || sum != rans::total) return false;
  const Bytes stream = bytes.subspan(table.bytes_taken());
  scratch.symbols.resize(std::max(scratch.symbols.size(), out.size()));
  std::uint8_t* const symbols = scratch.symbols.data();
  if (!rans_decode(reinterpret_cast<const std::uint8_t*>(stream.data()), stream.size(), frequencies,
                   symbols, out.size(), classes.count > 1 ? classes.of.data() : nullptr))
    return false;
  const std::uint8_t* const of = classes.of.data();
  const bool has_classes = classes.count > 1;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::int32_t first = has_classes ? of[i] * (2 * levels + 1) : 0;
    out[i] = static_cast<std::int16_t>(symbols[i] - first - levels);
  }
  return true;
}

}  // namespace fl::codec
