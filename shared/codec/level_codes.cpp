#include "shared/codec/level_codes.hpp"

#include "kernels/rans.hpp"
#include "shared/base/error.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace fl {

namespace {

constexpr int width_bits = 4;

/// A table at its longest: of each level the width of its frequency and all but its highest bit.
constexpr std::size_t table_bytes_max = rans_symbols_max * (width_bits + rans_bits) / 8;

class BitWriter {
 public:
  /// `out` has room for all that is put.
  explicit BitWriter(std::byte* out) : begin_(out), out_(out) {}
  void put(std::uint32_t value, int bits) {
    held_ |= std::uint64_t{value} << count_;
    for (count_ += bits; count_ >= 8; count_ -= 8, held_ >>= 8) *out_++ = low_byte();
  }
  /// Fills the last byte with zeros; returns how many bytes there are.
  std::size_t finish() {
    if (count_ > 0) *out_++ = low_byte();
    return static_cast<std::size_t>(out_ - begin_);
  }

 private:
  [[nodiscard]] std::byte low_byte() const { return static_cast<std::byte>(held_ & 0xff); }
  std::byte* begin_;
  std::byte* out_;
  std::uint64_t held_ = 0;
  int count_ = 0;
};

/// Past the end it reads zeros; is_whole() tells.
class BitReader {
 public:
  explicit BitReader(Bytes bytes) : bytes_(bytes) {}
  std::uint32_t take(int bits) {
    for (; count_ < bits; count_ += 8, ++at_) {
      if (at_ < bytes_.size()) held_ |= std::to_integer<std::uint32_t>(bytes_[at_]) << count_;
    }
    const std::uint32_t value = held_ & ((1u << bits) - 1);
    held_ >>= bits;
    count_ -= bits;
    return value;
  }
  /// Whether all was there, and what is left of the last byte is zeros.
  [[nodiscard]] bool is_whole() const { return at_ <= bytes_.size() && held_ == 0; }
  [[nodiscard]] std::size_t bytes_taken() const { return at_; }

 private:
  Bytes bytes_;
  std::size_t at_ = 0;
  std::uint32_t held_ = 0;
  int count_ = 0;  // Bits held, below 8 between calls.
};

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

  std::array<std::byte, table_bytes_max> table;
  BitWriter writer(table.data());
  for (std::size_t s = 0; s < alphabet; ++s) {
    const int width = std::bit_width(frequencies[s]);
    writer.put(static_cast<std::uint32_t>(width), width_bits);
    if (width > 1) writer.put(frequencies[s] ^ (1u << (width - 1)), width - 1);
  }
  const std::size_t table_bytes = writer.finish();
  std::uint8_t* const end = scratch.stream.data() + scratch.stream.size();
  const std::size_t stream_bytes = rans_encode(symbols, x.size(), frequencies, end);
  if (table_bytes + stream_bytes >= out.size()) return 0;
  std::memcpy(out.data(), table.data(), table_bytes);
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
  if (!table.is_whole() || sum != 1u << rans_bits) return false;
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
