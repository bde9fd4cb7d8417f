#include "shared/codec/level_codes.hpp"

#include "kernels/rans.hpp"
#include "shared/base/error.hpp"
#include "shared/codec/bits.hpp"

#include <bit>

namespace fl {

namespace {

constexpr int width_bits = 4;

}  // namespace

bool append_rans_levels(std::span<const std::int16_t> x, std::int32_t levels, std::size_t bytes_max,
                        std::vector<std::byte>& out) {
  FL_ASSERT(levels >= 1 && levels <= rans_levels_max);
  if (x.empty()) return false;
  std::vector<std::uint8_t> symbols(x.size());
  std::array<std::uint32_t, rans_symbols_max> counts{};
  for (std::size_t i = 0; i < x.size(); ++i) {
    symbols[i] = static_cast<std::uint8_t>(x[i] + levels);
    ++counts[symbols[i]];
  }
  const auto alphabet = static_cast<std::size_t>(2 * levels + 1);
  const RansFrequencies frequencies = rans_frequencies(std::span(counts).first(alphabet));

  const std::size_t before = out.size();
  BitWriter table(out);
  for (std::size_t s = 0; s < alphabet; ++s) {
    const int width = std::bit_width(frequencies[s]);
    table.put(static_cast<std::uint32_t>(width), width_bits);
    if (width > 1) table.put(frequencies[s] ^ (1u << (width - 1)), width - 1);
  }
  table.finish();
  std::vector<std::uint8_t> stream(rans_bytes_max(x.size()));
  const std::size_t bytes =
      rans_encode(symbols.data(), symbols.size(), frequencies, stream.data() + stream.size());
  if (out.size() - before + bytes >= bytes_max) {
    out.resize(before);
    return false;
  }
  const auto begin = std::as_bytes(std::span(stream)).last(bytes);
  out.insert(out.end(), begin.begin(), begin.end());
  return true;
}

bool read_rans_levels(Bytes bytes, std::int32_t levels, std::vector<std::uint8_t>& scratch,
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
  scratch.resize(out.size());
  if (!rans_decode(reinterpret_cast<const std::uint8_t*>(stream.data()), stream.size(), frequencies,
                   scratch.data(), scratch.size()))
    return false;
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<std::int16_t>(scratch[i] - levels);
  return true;
}

}  // namespace fl
