// SPDX-License-Identifier: Apache-2.0
// Runs the bodies of the CUDA kernels for rANS on a CPU, where a warp is a loop. Bytes and results
// must equal those of the scalar row.
#include "kernels/cuda/bodies/rans_body.hpp"
#include "tests/kernels/cuda_twins.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

using namespace fl;
using namespace fl::twins;

namespace {

using Bytes = std::vector<std::uint8_t>;

/// n symbols below `alphabet`. With a larger `slope` high symbols are rarer.
Bytes skewed(std::size_t n, int alphabet, double slope) {
  Bytes symbols(n);
  for (std::size_t i = 0; i < n; ++i) {
    const double u = (philox::block_at(n, 0, i).word[0] + 0.5) * 0x1p-32;
    const double s = slope == 0 ? u * alphabet : -std::log(u) / slope;
    symbols[i] = static_cast<std::uint8_t>(std::min<double>(s, alphabet - 1));
  }
  return symbols;
}

RansFrequencies frequencies_of(const Bytes& symbols) {
  std::vector<std::uint32_t> counts(rans_symbols_max);
  plain().count_symbols(symbols.data(), symbols.size(), counts.data());
  return rans_frequencies(counts);
}

Bytes host_stream(const Bytes& symbols, const RansFrequencies& frequencies) {
  Bytes buffer(rans_bytes_max(symbols.size()));
  const std::size_t bytes = rans_encode(symbols.data(), symbols.size(), frequencies,
                                        buffer.data() + buffer.size(), plain());
  return Bytes(buffer.end() - static_cast<std::ptrdiff_t>(bytes), buffer.end());
}

Bytes warp_stream(const Bytes& symbols, const RansFrequencies& frequencies, bool is_backwards) {
  std::vector<std::uint16_t> buffer(rans_bytes_max(symbols.size()) / 2);  // Exact size, for ASan.
  auto shared = shared_memory<cuda::EncodeMemory>(1);
  std::uint32_t bytes = 77;
  cuda::encode_stream(cuda::HostBlock<32>{.is_backwards = is_backwards},
                      cuda::EncodeRun{.frequencies = frequencies.data(),
                                      .n = symbols.size(),
                                      .out_end = buffer.data() + buffer.size(),
                                      .bytes = &bytes},
                      shared.front(), cuda::PlainSymbols{symbols.data()});
  REQUIRE(bytes <= buffer.size() * 2);
  Bytes out(bytes);
  if (bytes > 0) std::memcpy(out.data(), buffer.data() + buffer.size() - bytes / 2, bytes);
  return out;
}

/// The n symbols, or nothing if the stream is rejected. Checks that the warp and the scalar row
/// agree.
std::optional<Bytes> decoded(const Bytes& stream, const RansFrequencies& frequencies, std::size_t n,
                             const Bytes& classes = {}, std::size_t class_count = 1) {
  const std::uint8_t* const class_of = classes.empty() ? nullptr : classes.data();
  Bytes symbols(n);
  const bool host =
      rans_decode(stream.data(), stream.size(), frequencies, symbols.data(), n, class_of, plain());
  for (const bool is_backwards : {false, true}) {
    Bytes seen(n);
    auto places = shared_memory<rans::Place>(class_count * rans::total);
    std::uint32_t is_good = 77;
    cuda::decode_stream(cuda::HostBlock<32>{.is_backwards = is_backwards},
                        cuda::DecodeRun{.stream = stream.data(),
                                        .bytes = stream.size(),
                                        .frequencies = frequencies.data(),
                                        .classes = class_of,
                                        .symbols = seen.data(),
                                        .n = n,
                                        .is_good = &is_good},
                        places.data());
    REQUIRE(is_good == (host ? 1 : 0));
    if (host) REQUIRE(seen == symbols);
  }
  if (!host) return {};
  return symbols;
}

}  // namespace

TEST_CASE("a warp writes the same streams as the rows, and decodes them") {
  for (const int alphabet : {1, 2, 3, 17, 255, 256}) {
    for (const double slope : {0.0, 0.05, 1.0, 20.0}) {
      for (const std::size_t n : {1u, 2u, 3u, 4u, 5u, 33u, 1000u, 16383u, 16384u, 16385u, 16415u,
                                  16416u, 16895u, 16896u, 65536u}) {
        CAPTURE(alphabet);
        CAPTURE(slope);
        CAPTURE(n);
        const Bytes symbols = skewed(n, alphabet, slope);
        const RansFrequencies frequencies = frequencies_of(symbols);
        const Bytes stream = host_stream(symbols, frequencies);
        CHECK(warp_stream(symbols, frequencies, false) == stream);
        CHECK(warp_stream(symbols, frequencies, true) == stream);
        CHECK(decoded(stream, frequencies, n) == symbols);
      }
    }
  }
}

TEST_CASE("a warp codes symbols with classes") {
  constexpr std::size_t alphabet = 25;
  for (const std::size_t classes : {2u, 3u, 8u}) {
    for (const std::size_t n : {200u, 16383u, 16384u, 16415u, 65536u}) {
      CAPTURE(classes);
      CAPTURE(n);
      std::vector<Bytes> parts(classes);
      Bytes symbols = skewed(n, alphabet, 0.4);
      Bytes of(n);
      for (std::size_t i = 0; i < n; ++i) {
        of[i] = static_cast<std::uint8_t>(philox::block_at(12, n, i).word[0] % classes);
        parts[of[i]].push_back(symbols[i]);
        symbols[i] = static_cast<std::uint8_t>(symbols[i] + of[i] * alphabet);
      }
      RansFrequencies frequencies{};
      for (std::size_t c = 0; c < classes; ++c) {
        const RansFrequencies part = frequencies_of(parts[c]);
        std::copy_n(part.begin(), alphabet, frequencies.data() + c * alphabet);
      }
      Bytes stream = warp_stream(symbols, frequencies, false);
      CHECK(stream == host_stream(symbols, frequencies));
      CHECK(decoded(stream, frequencies, n, of, classes) == symbols);
      stream.push_back(0);
      CHECK(decoded(stream, frequencies, n, of, classes) == std::nullopt);
    }
  }
}

TEST_CASE("a warp rejects states outside their range, even if they would decode") {
  const RansFrequencies frequencies = {2048, 2048};
  const auto stream_with = [](std::uint32_t state, const Bytes& words) {
    Bytes stream;
    for (int byte = 0; byte < 16; ++byte) {
      stream.push_back(static_cast<std::uint8_t>(state >> (byte % 4 * 8)));
    }
    stream.insert(stream.end(), words.begin(), words.end());
    return stream;
  };
  // Symbol 0 halves a state. So a state of 2^30 is 15 symbols in each lane, and 2^31 would be 16.
  CHECK(decoded(stream_with(1u << 30, {}), frequencies, 60) == Bytes(60, 0));
  CHECK(decoded(stream_with(1u << 31, {}), frequencies, 64) == std::nullopt);
  // A word of 2^15 would turn 0 into the last state.
  CHECK(decoded(stream_with(0, {0, 0x80, 0, 0x80, 0, 0x80, 0, 0x80}), frequencies, 4) ==
        std::nullopt);
}

TEST_CASE("a warp rejects the same damaged streams as the rows") {
  for (const auto& symbols : {skewed(3000, 20, 0.4), skewed(16384 + 5, 3, 5.5)}) {
    const std::size_t n = symbols.size();
    const RansFrequencies frequencies = frequencies_of(symbols);
    const Bytes stream = host_stream(symbols, frequencies);
    for (std::size_t bytes = 0; bytes < stream.size(); bytes += bytes < 140 ? 1 : 97) {
      CHECK(decoded(Bytes(stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(bytes)),
                    frequencies, n) != symbols);
    }
    for (const std::size_t more : {1u, 2u, 64u}) {
      Bytes longer = stream;
      longer.insert(longer.end(), more, std::uint8_t{0});
      CHECK(decoded(longer, frequencies, n) == std::nullopt);
    }
    for (std::size_t bit = 0; bit < stream.size() * 8; bit += bit < 1024 ? 1 : 61) {
      Bytes flipped = stream;
      flipped[bit / 8] ^= static_cast<std::uint8_t>(1u << (bit % 8));
      CHECK(decoded(flipped, frequencies, n) != symbols);
    }
  }
}
