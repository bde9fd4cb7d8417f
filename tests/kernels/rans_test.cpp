// SPDX-License-Identifier: Apache-2.0
// rANS: streams decode to the same symbols and are nearly as short as the entropy. Streams that
// rans_encode() cannot make are rejected. All rows give the same bytes and the same results.
#include "kernels/generic/rans.hpp"
#include "kernels/generic/philox.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <vector>

using namespace fl;

namespace {

using Symbols = std::vector<std::uint8_t>;

/// n symbols below `alphabet`. With a larger `slope` high symbols are rarer.
Symbols skewed(std::size_t n, int alphabet, double slope, std::uint64_t seed) {
  Symbols symbols(n);
  for (std::size_t i = 0; i < n; ++i) {
    const double u = (static_cast<double>(philox::block_at(seed, 0, i).word[0]) + 0.5) * 0x1p-32;
    const double s = slope == 0 ? u * alphabet : -std::log(u) / slope;
    symbols[i] = static_cast<std::uint8_t>(std::min<double>(s, alphabet - 1));
  }
  return symbols;
}

std::vector<std::uint32_t> counts_of(const Symbols& symbols) {
  std::vector<std::uint32_t> counts(rans_symbols_max);
  for (const std::uint8_t s : symbols) ++counts[s];
  return counts;
}

/// The least bits for all symbols together, for a code that knows the counts.
double entropy(const Symbols& symbols) {
  double bits = 0;
  for (const std::uint32_t count : counts_of(symbols)) {
    if (count > 0) bits += count * std::log2(static_cast<double>(symbols.size()) / count);
  }
  return bits;
}

/// Encodes with all rows, and checks that they agree.
Symbols stream_of(const Symbols& symbols, const RansFrequencies& frequencies) {
  Symbols stream;
  for (const Kernels* row : all_kernels()) {
    CAPTURE(row->name);
    Symbols buffer(rans_bytes_max(symbols.size()));  // Exact size, for ASan.
    const std::size_t bytes = rans_encode(symbols.data(), symbols.size(), frequencies,
                                          buffer.data() + buffer.size(), *row);
    buffer.erase(buffer.begin(), buffer.end() - static_cast<std::ptrdiff_t>(bytes));
    if (row == all_kernels().front()) stream = buffer;
    REQUIRE(buffer == stream);
  }
  return stream;
}

/// Decodes with all rows, and checks that they agree. Returns the n symbols, or nothing if the
/// stream is rejected.
std::optional<Symbols> decode(const Symbols& stream, const RansFrequencies& frequencies,
                              std::size_t n, const std::uint8_t* classes = nullptr) {
  std::optional<Symbols> out;
  for (const Kernels* row : all_kernels()) {
    CAPTURE(row->name);
    Symbols symbols(n);
    std::optional<Symbols> here;
    if (rans_decode(stream.data(), stream.size(), frequencies, symbols.data(), n, classes, *row))
      here = symbols;
    if (row == all_kernels().front()) out = here;
    REQUIRE(here == out);
  }
  return out;
}

}  // namespace

TEST_CASE("symbols of every alphabet, skew and length are encoded and decoded") {
  for (const int alphabet : {1, 2, 3, 4, 5, 6, 8, 9, 17, 255, 256}) {
    for (const double slope : {0.0, 0.05, 1.0, 20.0}) {
      for (const std::size_t n :
           {1u, 2u, 3u, 4u, 5u, 33u, 1000u, 16383u, 16384u, 16385u, 16415u, 16416u, 65536u}) {
        CAPTURE(alphabet);
        CAPTURE(slope);
        CAPTURE(n);
        const Symbols symbols = skewed(n, alphabet, slope, n);
        const RansFrequencies frequencies = rans_frequencies(counts_of(symbols));
        CHECK(decode(stream_of(symbols, frequencies), frequencies, n) == symbols);
      }
    }
  }
}

TEST_CASE("symbols with classes are encoded, nearly as short as the entropy, and decoded") {
  constexpr std::size_t alphabet = 25;
  for (const std::size_t classes : {2u, 3u, 8u}) {
    for (const std::size_t n : {200u, 1000u, 16383u, 16384u, 16415u, 65536u}) {
      CAPTURE(classes);
      CAPTURE(n);
      std::vector<Symbols> parts(classes);
      Symbols symbols = skewed(n, alphabet, 0.4, n);
      Symbols of(n);
      for (std::size_t i = 0; i < n; ++i) {
        of[i] = static_cast<std::uint8_t>(philox::block_at(12, n, i).word[0] % classes);
        symbols[i] = static_cast<std::uint8_t>(symbols[i] / (of[i] % 3 + 1u));
        parts[of[i]].push_back(symbols[i]);
        symbols[i] = static_cast<std::uint8_t>(symbols[i] + of[i] * alphabet);
      }
      RansFrequencies frequencies{};
      double least = 0;
      for (std::size_t c = 0; c < classes; ++c) {
        const RansFrequencies part = rans_frequencies(counts_of(parts[c]));
        std::copy_n(part.begin(), alphabet, frequencies.data() + c * alphabet);
        least += entropy(parts[c]) / 8;
      }
      Symbols stream = stream_of(symbols, frequencies);
      CHECK(static_cast<double>(stream.size()) <= least * 1.01 + 32 * 4);
      CHECK(decode(stream, frequencies, n, of.data()) == symbols);
      stream.push_back(0);
      CHECK(decode(stream, frequencies, n, of.data()) == std::nullopt);
      stream.pop_back();
      stream.pop_back();
      CHECK(decode(stream, frequencies, n, of.data()) == std::nullopt);
    }
  }
}

TEST_CASE("count_symbols counts every symbol") {
  for (const std::size_t n : {0u, 1u, 7u, 8u, 9u, 31u, 32u, 1000u, 8160u, 8161u, 8192u, 70001u}) {
    for (const int alphabet : {1, 2, 18, 31, 32, 33, 256}) {
      const Symbols symbols = skewed(n, alphabet, 0.02, n);
      for (const Kernels* row : all_kernels()) {
        CAPTURE(row->name);
        CAPTURE(n);
        CAPTURE(alphabet);
        std::vector<std::uint32_t> counts(rans_symbols_max, 77);
        row->count_symbols(symbols.data(), n, counts.data());
        CHECK(counts == counts_of(symbols));
      }
    }
  }
}

TEST_CASE("push and pop equal their definitions for every frequency") {
  for (std::uint32_t frequency = 1; frequency < rans::total; ++frequency) {
    const std::uint32_t begin = (rans::total - frequency) / 3;
    const rans::Code code = rans::make_code(frequency, begin);
    const std::uint32_t first_full = frequency << 19;
    CHECK_FALSE(rans::is_full(first_full - 1, code));
    CHECK(rans::is_full(first_full, code));
    CHECK(rans::is_full(rans::state_end - 1, code));
    for (std::uint64_t i = 0; i < 64; ++i) {
      // Random states, multiples of the frequency, and the end of the range.
      const std::uint32_t random = philox::block_at(6, frequency, i).word[0] % first_full;
      for (const std::uint32_t x : {random, random - random % frequency, first_full - 1}) {
        if (x == 0) continue;  // Zero is no state.
        const std::uint32_t pushed = x / frequency * rans::total + begin + x % frequency;
        REQUIRE(rans::push(x, code) == pushed);
        const rans::Place place = rans::make_place(9, pushed % rans::total - begin, frequency);
        REQUIRE(rans::pop(pushed, place) == x);
      }
    }
  }
}

TEST_CASE("frequencies add up to 2^12, and each symbol that occurs has one") {
  for (const int alphabet : {1, 2, 5, 100, 256}) {
    for (const double slope : {0.0, 0.3, 5.0}) {
      const auto counts = counts_of(skewed(60000, alphabet, slope, 3));
      const RansFrequencies frequencies = rans_frequencies(counts);
      CHECK(std::accumulate(frequencies.begin(), frequencies.end(), 0) == 1 << rans_bits);
      for (std::size_t s = 0; s < counts.size(); ++s)
        CHECK((counts[s] > 0) == (frequencies[s] > 0));
    }
  }
  // One symbol has nearly all counts, and each of the 255 others must get 1.
  std::vector<std::uint32_t> counts(rans_symbols_max, 1);
  counts[7] = 4'000'000'000u;
  const RansFrequencies frequencies = rans_frequencies(counts);
  CHECK(frequencies[7] == (1 << rans_bits) - 255);
}

TEST_CASE("a stream of 65,536 symbols is at most 1% and the lanes' states above the entropy") {
  for (const int alphabet : {2, 3, 15, 63, 255}) {
    for (const double slope : {0.0, 4.0 / alphabet, 12.0 / alphabet}) {
      CAPTURE(alphabet);
      CAPTURE(slope);
      const Symbols symbols = skewed(65536, alphabet, slope, 5);
      const Symbols stream = stream_of(symbols, rans_frequencies(counts_of(symbols)));
      const double least = entropy(symbols) / 8;
      CHECK(static_cast<double>(stream.size()) >= least);
      CHECK(static_cast<double>(stream.size()) <= least * 1.01 + 32 * 4);
    }
  }
}

TEST_CASE("the bytes of a stream are fixed") {
  const Symbols symbols = {0, 1, 2, 0, 0, 1, 0, 2, 0, 0};
  const Symbols stream = stream_of(symbols, rans_frequencies(counts_of(symbols)));
  REQUIRE(stream.size() == 4 * 4);  // Too short for words: only states.
  std::uint32_t first = 0;
  for (int i = 3; i >= 0; --i) first = first << 8 | stream[static_cast<std::size_t>(i)];
  std::uint32_t state = 1 << 15;  // Lane 0 has symbol 0 three times; its frequency is 2458.
  for (int i = 0; i < 3; ++i) state = state / 2458 * 4096 + state % 2458;
  CHECK(first == state);
}

TEST_CASE("a stream of equal symbols has no bytes, and any byte is rejected") {
  const Symbols symbols(20000, 3);
  const RansFrequencies frequencies = rans_frequencies(counts_of(symbols));
  CHECK(stream_of(symbols, frequencies).empty());
  CHECK(decode({}, frequencies, symbols.size()) == symbols);
  CHECK(decode({0}, frequencies, symbols.size()) == std::nullopt);
}

namespace {

/// Cuts and lengthens the stream, and flips each bit. Returns how many flips still decode.
std::size_t damage(const Symbols& symbols) {
  const RansFrequencies frequencies = rans_frequencies(counts_of(symbols));
  const Symbols stream = stream_of(symbols, frequencies);
  for (std::size_t bytes = 0; bytes < stream.size(); ++bytes) {
    const Symbols cut(stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(bytes));
    CHECK(decode(cut, frequencies, symbols.size()) != symbols);
  }
  for (const std::size_t more : {1u, 2u, 16u, 64u, 200u}) {
    Symbols longer = stream;
    longer.insert(longer.end(), more, std::uint8_t{0});
    CHECK(decode(longer, frequencies, symbols.size()) == std::nullopt);
  }
  std::size_t taken = 0;
  for (std::size_t bit = 0; bit < stream.size() * 8; ++bit) {
    Symbols flipped = stream;
    flipped[bit / 8] ^= static_cast<std::uint8_t>(1u << (bit % 8));
    const auto back = decode(flipped, frequencies, symbols.size());
    CHECK(back != symbols);
    if (back) ++taken;
  }
  return taken;
}

}  // namespace

TEST_CASE(
    "longer streams are rejected; cut streams and flipped bits never give the symbols, and few "
    "flips decode") {
  CHECK(damage(skewed(3000, 20, 0.4, 8)) < 40);      // There were 12,000. Only digests find all.
  CHECK(damage(skewed(16384 + 5, 3, 5.5, 8)) < 40);  // 32 lanes.
}

TEST_CASE("states outside their range are rejected, even if they would decode") {
  const RansFrequencies frequencies = {2048, 2048};
  const auto stream_with = [](std::uint32_t state, const std::vector<std::uint8_t>& words) {
    Symbols stream;
    for (int lane = 0; lane < 4; ++lane) {
      for (int byte = 0; byte < 4; ++byte)
        stream.push_back(static_cast<std::uint8_t>(state >> (8 * byte)));
    }
    stream.insert(stream.end(), words.begin(), words.end());
    return stream;
  };
  // Symbol 0 halves a state. So a state of 2^30 is 15 symbols in each lane, and 2^31 would be 16.
  CHECK(decode(stream_with(1u << 30, {}), frequencies, 60) == Symbols(60, 0));
  CHECK(decode(stream_with(1u << 31, {}), frequencies, 64) == std::nullopt);
  // A word of 2^15 would turn 0 into the last state.
  const std::vector<std::uint8_t> words = {0, 0x80, 0, 0x80, 0, 0x80, 0, 0x80};
  CHECK(decode(stream_with(0, words), frequencies, 4) == std::nullopt);
}

TEST_CASE("all rows agree on random bytes, for any frequencies") {
  const std::size_t n = 16384 + 32 + 7;
  std::size_t taken = 0;
  for (std::uint64_t round = 0; round < 300; ++round) {
    const auto random = [&](std::uint64_t i) { return philox::block_at(11, round, i).word[0]; };
    const int alphabet = static_cast<int>(random(0) % 256) + 1;
    const Symbols symbols = skewed(n, alphabet, random(1) % 8 * 0.3, round);
    const RansFrequencies frequencies = rans_frequencies(counts_of(symbols));
    Symbols stream = stream_of(symbols, frequencies);
    // In half of the rounds the states are valid.
    const std::size_t kept = round % 2 == 0 ? 128 : 0;
    for (std::size_t i = kept; i < stream.size(); ++i)
      stream[i] = static_cast<std::uint8_t>(random(i));
    if (stream.size() > kept) stream.resize(kept + random(2) % (stream.size() - kept + 1));
    if (decode(stream, frequencies, n)) ++taken;
  }
  CHECK(taken < 30);  // Streams of one symbol, cut to no bytes.
}
