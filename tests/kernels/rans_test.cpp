// rANS: every symbol comes back, close to the entropy; what rans_encode did not make is refused.
#include "kernels/rans.hpp"
#include "kernels/philox.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <numeric>
#include <vector>

using namespace fl;

namespace {

using Symbols = std::vector<std::uint8_t>;

/// n symbols below `alphabet`: the larger `slope`, the rarer the late ones.
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

/// Bits of all symbols together, of a code that knows the counts.
double entropy(const Symbols& symbols) {
  double bits = 0;
  for (const std::uint32_t count : counts_of(symbols)) {
    if (count > 0) bits += count * std::log2(static_cast<double>(symbols.size()) / count);
  }
  return bits;
}

Symbols stream_of(const Symbols& symbols, const RansFrequencies& frequencies) {
  Symbols buffer(rans_bytes_max(symbols.size()));  // Exactly: ASan watches its begin.
  const std::size_t bytes =
      rans_encode(symbols.data(), symbols.size(), frequencies, buffer.data() + buffer.size());
  return {buffer.end() - static_cast<std::ptrdiff_t>(bytes), buffer.end()};
}

bool decodes_to(const Symbols& stream, const RansFrequencies& frequencies,
                const Symbols& expected) {
  Symbols back(expected.size());
  return rans_decode(stream.data(), stream.size(), frequencies, back.data(), back.size()) &&
         back == expected;
}

}  // namespace

TEST_CASE("symbols of every alphabet, skew and length come back") {
  for (const int alphabet : {1, 2, 3, 17, 255, 256}) {
    for (const double slope : {0.0, 0.05, 1.0, 20.0}) {
      for (const std::size_t n : {1u, 2u, 31u, 32u, 33u, 1000u, 65536u}) {
        CAPTURE(alphabet);
        CAPTURE(slope);
        CAPTURE(n);
        const Symbols symbols = skewed(n, alphabet, slope, n);
        const RansFrequencies frequencies = rans_frequencies(counts_of(symbols));
        CHECK(decodes_to(stream_of(symbols, frequencies), frequencies, symbols));
      }
    }
  }
}

TEST_CASE("frequencies add up, and none that occurs is lost") {
  for (const int alphabet : {1, 2, 5, 100, 256}) {
    for (const double slope : {0.0, 0.3, 5.0}) {
      const auto counts = counts_of(skewed(60000, alphabet, slope, 3));
      const RansFrequencies frequencies = rans_frequencies(counts);
      CHECK(std::accumulate(frequencies.begin(), frequencies.end(), 0) == 1 << rans_bits);
      for (std::size_t s = 0; s < counts.size(); ++s)
        CHECK((counts[s] > 0) == (frequencies[s] > 0));
    }
  }
  // One symbol has nearly all, and 255 others want their share of 1.
  std::vector<std::uint32_t> counts(rans_symbols_max, 1);
  counts[7] = 4'000'000'000u;
  const RansFrequencies frequencies = rans_frequencies(counts);
  CHECK(frequencies[7] == (1 << rans_bits) - 255);
}

TEST_CASE("a stream of 65,536 symbols is within 1% of the entropy and the lanes' states") {
  for (const int alphabet : {2, 3, 15, 63, 255}) {
    for (const double slope : {0.0, 4.0 / alphabet, 12.0 / alphabet}) {
      CAPTURE(alphabet);
      CAPTURE(slope);
      const Symbols symbols = skewed(65536, alphabet, slope, 5);
      const Symbols stream = stream_of(symbols, rans_frequencies(counts_of(symbols)));
      const double least = entropy(symbols) / 8;
      CHECK(static_cast<double>(stream.size()) >= least);
      CHECK(static_cast<double>(stream.size()) <= least * 1.01 + rans_state_bytes);
    }
  }
}

TEST_CASE("the bytes of a stream are fixed") {
  const Symbols symbols = {0, 1, 2, 0, 0, 1, 0, 2, 0, 0};
  const Symbols stream = stream_of(symbols, rans_frequencies(counts_of(symbols)));
  REQUIRE(stream.size() == rans_state_bytes);  // Too short for a word: all is in the states.
  std::uint32_t first = 0;
  for (int i = 3; i >= 0; --i) first = first << 8 | stream[static_cast<std::size_t>(i)];
  // Symbol 0 has 2458 of 4096: 65536 / 2458 * 4096 + 65536 % 2458 is lane 0's state.
  CHECK(first == 65536u / 2458 * 4096 + 65536u % 2458);
}

TEST_CASE(
    "a stream that is cut or longer is refused; one bit flipped is seldom a stream, never this "
    "one") {
  const Symbols symbols = skewed(3000, 20, 0.4, 8);
  const RansFrequencies frequencies = rans_frequencies(counts_of(symbols));
  const Symbols stream = stream_of(symbols, frequencies);
  for (std::size_t bytes = 0; bytes < stream.size(); ++bytes) {
    Symbols cut(stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(bytes));
    CHECK_FALSE(decodes_to(cut, frequencies, symbols));
  }
  Symbols longer = stream;
  longer.insert(longer.end(), {0, 0});
  CHECK_FALSE(decodes_to(longer, frequencies, symbols));
  std::size_t taken = 0;
  for (std::size_t bit = 0; bit < stream.size() * 8; ++bit) {
    Symbols flipped = stream;
    flipped[bit / 8] ^= static_cast<std::uint8_t>(1u << (bit % 8));
    Symbols back(symbols.size());
    if (!rans_decode(flipped.data(), flipped.size(), frequencies, back.data(), back.size()))
      continue;
    ++taken;
    CHECK(back != symbols);
  }
  CHECK(taken < stream.size() / 100);  // Of eight times as many. Digests are what notices all.
}
