#include "shared/codec/level_codes.hpp"

#include "kernels/rans.hpp"
#include "shared/base/error.hpp"
#include "shared/codec/bits.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace fl {

namespace {

constexpr int width_bits = 4;

}  // namespace

std::size_t write_rans_levels(std::span<const std::int16_t> x, std::int32_t levels,
                              LevelScratch& scratch, MutableBytes out) {
  FL_ASSERT(levels >= 1 && levels <= rans_levels_max);
  if (x.empty()) return 0;
  scratch.symbols.resize(std::max(scratch.symbols.size(), x.size()));
  scratch.stream.resize(std::max(scratch.stream.size(), rans_bytes_max(x.size())));
  std::uint8_t* const symbols = scratch.symbols.data();
  for (std::size_t i = 0; i < x.size(); ++i) symbols[i] = static_cast<std::uint8_t>(x[i] + levels);
  std::array<std::uint32_t, rans_symbols_max> counts;
  kernels().count_symbols(symbols, x.size(), counts.data());
  const auto alphabet = static_cast<std::size_t>(2 * levels + 1);
  const RansFrequencies frequencies = rans_frequencies(std::span(counts).first(alphabet));

  scratch.table.clear();
  BitWriter writer(scratch.table);
  for (std::size_t s = 0; s < alphabet; ++s) {
    const int width = std::bit_width(frequencies[s]);
    writer.put(static_cast<std::uint32_t>(width), width_bits);
    if (width > 1) writer.put(frequencies[s] ^ (1u << (width - 1)), width - 1);
  }
  writer.finish();
  const std::size_t table_bytes = scratch.table.size();
  std::uint8_t* const end = scratch.stream.data() + scratch.stream.size();
  const std::size_t stream_bytes = rans_encode(symbols, x.size(), frequencies, end);
  if (table_bytes + stream_bytes >= out.size()) return 0;
  std::memcpy(out.data(), scratch.table.data(), table_bytes);
  std::memcpy(out.data() + table_bytes, end - stream_bytes, stream_bytes);
  return table_bytes + stream_bytes;
}

bool read_rans_levels(Bytes bytes, std::int32_t levels, LevelScratch& scratch,
                      std::span<std::int16_t> out) {
  FL_ASSERT(levels >= 1 && levels <= rans_levels_max);
  RansFrequencies frequencies{};
  std::uint32_t sum = 0;
  BitReader table(bytes);
  for (std::size_t s = 0; s < static_cast<std::size_t>(2 * levels + 1); ++s) {
    const auto width = static_cast<int>(table.take(width_bits));
    if (width > rans_bits + 1) return false;
    if (width == 0) continue;
    const std::uint32_t frequency = (1u << (width - 1)) | table.take(width - 1);
    frequencies[s] = static_cast<std::uint16_t>(frequency);
    sum += frequency;
  }
  table.align();
  if (!table.is_good() || sum != 1u << rans_bits) return false;
  const Bytes stream = bytes.subspan(table.bytes_taken());
  scratch.symbols.resize(std::max(scratch.symbols.size(), out.size()));
  std::uint8_t* const symbols = scratch.symbols.data();
  if (!rans_decode(reinterpret_cast<const std::uint8_t*>(stream.data()), stream.size(), frequencies,
                   symbols, out.size()))
    return false;
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<std::int16_t>(symbols[i] - levels);
  return true;
}

}  // namespace fl
