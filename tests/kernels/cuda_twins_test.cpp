// The bodies of the CUDA kernels, run on a CPU by blocks of threads that are loops, against the
// table's rows, bit for bit. What a GPU adds (starts, barriers, atomics) is not tested here, but in
// cuda_kernels_test.
#include "kernels/cuda/dither_body.hpp"
#include "kernels/cuda/pack_body.hpp"
#include "kernels/cuda/quantize_body.hpp"
#include "kernels/cuda/rans_body.hpp"
#include "kernels/cuda/rotate_body.hpp"
#include "kernels/cuda/scan_body.hpp"
#include "kernels/cuda/select_body.hpp"
#include "kernels/kernels.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

using namespace fl;

namespace {

const Kernels& plain() { return *all_kernels().front(); }

constexpr std::size_t sizes[] = {1,  2,  3,  7,  8,   9,    15,   16,   17,
                                 31, 32, 33, 63, 255, 1023, 1024, 1025, 65537};

/// Normal values of sizes that differ, zeros of both signs and denormals among them.
std::vector<float> values(std::size_t n, std::uint64_t seed) {
  std::vector<float> x(n);
  plain().gaussian(seed, 0, 0, x.data(), n);
  constexpr float odd[] = {0.0f, -0.0f, 1e-41f, -1e-41f, 1000.0f};
  for (std::size_t i = 0; i < n; i += 7) x[i] = odd[i / 7 % std::size(odd)];
  return x;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return false;
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// Shared memory as a kernel finds it: with anything in it.
template <class T>
std::vector<T> shared_memory(std::size_t n) {
  std::vector<T> out(n);
  std::memset(static_cast<void*>(out.data()), 0xA5, n * sizeof(T));
  return out;
}

/// Runs body(block) for each block of a launch, the last one first: no order is promised.
template <unsigned threads, class Body>
void launch(unsigned blocks, const Body& body) {
  for (unsigned index = blocks; index-- > 0;) body(cuda::HostBlock<threads>{index, blocks});
}

}  // namespace

TEST_CASE("fused quantizing is add, quantize, dequantize, subtract and count") {
  for (const std::size_t n : sizes) {
    for (const std::int32_t top : {1, 2, 7, 127, 128, 32767}) {
      for (const std::uint64_t first : {0ull, 1ull, 63ull, 0xfffffffeull, 0x7fffffffffff000ull}) {
        CAPTURE(n);
        CAPTURE(top);
        CAPTURE(first);
        const std::vector<float> x = values(n, n);
        const std::vector<float> before = values(n, n + 1);
        std::vector<float> whole(n);
        for (std::size_t i = 0; i < n; ++i) whole[i] = x[i] + before[i];
        const float scale = std::max(plain().scan(whole.data(), n).max_abs, 1e-30f) * 0.75f;
        const QuantizeArgs args = {
            .scale = scale, .levels = top, .seed = 3, .stream = 4, .first = first};
        const float step = scale / static_cast<float>(top);
        std::vector<std::int16_t> levels(n);
        std::vector<float> sent(n);
        plain().quantize(whole.data(), n, args, levels.data());
        plain().dequantize(levels.data(), n, step, sent.data());
        const bool is_counted = top <= cuda::counted_levels_max;
        std::vector<std::uint32_t> counts(is_counted ? 2 * top + 1 : 0, 5);
        std::vector<std::uint32_t> counts_seen = counts;
        std::vector<float> after(n);
        for (std::size_t i = 0; i < n; ++i) {
          after[i] = whole[i] - sent[i];
          if (is_counted) ++counts[static_cast<std::size_t>(levels[i] + top)];
        }

        for (const unsigned blocks : {1u, 3u}) {
          std::vector<float> residual = before;
          std::vector<std::int16_t> levels_seen(n);
          std::ranges::fill(counts_seen, 5);
          const cuda::FusedRun run = {.x = x.data(),
                                      .residual = residual.data(),
                                      .n = n,
                                      .args = args,
                                      .factors = element::quantize_factors(scale, top),
                                      .step = step,
                                      .levels = levels_seen.data(),
                                      .counts = is_counted ? counts_seen.data() : nullptr};
          launch<64>(blocks, [&](const auto& block) {
            auto shared = shared_memory<std::uint32_t>(cuda::counts_max);
            cuda::quantize_with_feedback(block, run, shared.data());
          });
          CHECK(levels_seen == levels);
          CHECK(same_bits(residual, after));
          CHECK(counts_seen == counts);
        }
      }
    }
  }
}

TEST_CASE("blocks dither, undither and round as the rows do") {
  for (const std::size_t n : sizes) {
    for (const std::uint64_t first : {0ull, 1ull, 63ull, 0xfffffffeull, 0x7fffffffffff000ull}) {
      for (const float step : {0.25f, 1e-5f, 100.0f}) {
        CAPTURE(n);
        CAPTURE(first);
        CAPTURE(step);
        const std::vector<float> x = values(n, n + 2);
        const DitherArgs args = {
            .step = step, .key = 0xfedcba9876543210, .first = first, .class_bits = 3};
        std::vector<std::int16_t> levels(n);
        std::vector<std::uint8_t> classes(n);
        std::vector<float> back(n);
        const std::int32_t largest =
            plain().dither(x.data(), n, args, levels.data(), classes.data());
        plain().undither(levels.data(), n, args, back.data());
        std::vector<std::int16_t> rounded(n);
        const std::int32_t largest_rounded = plain().round(x.data(), n, step, rounded.data());

        std::vector<std::int16_t> levels_seen(n);
        std::vector<std::int16_t> levels_alone(n);
        std::vector<std::uint8_t> classes_seen(n);
        std::vector<std::uint8_t> classes_alone(n);
        std::vector<float> back_seen(n);
        std::vector<std::int16_t> rounded_seen(n);
        std::uint32_t largest_seen = 0;
        std::uint32_t largest_alone = 0;
        std::uint32_t largest_rounded_seen = 0;
        launch<64>(3, [&](const auto& block) {
          std::uint32_t shared = 0xA5A5A5A5;
          cuda::dither(block, x.data(), n, args, levels_seen.data(), classes_seen.data(),
                       &largest_seen, &shared);
          cuda::dither(block, x.data(), n, args, levels_alone.data(), nullptr, &largest_alone,
                       &shared);
          cuda::dither_classes(block, n, args, classes_alone.data());
          cuda::undither(block, levels.data(), n, args, back_seen.data());
          cuda::round_levels(block, x.data(), n, step, rounded_seen.data(), &largest_rounded_seen,
                             &shared);
        });
        CHECK(levels_seen == levels);
        CHECK(levels_alone == levels);
        CHECK(classes_seen == classes);
        CHECK(classes_alone == classes);
        CHECK(same_bits(back_seen, back));
        CHECK(rounded_seen == rounded);
        CHECK(largest_seen == static_cast<std::uint32_t>(largest));
        CHECK(largest_alone == static_cast<std::uint32_t>(largest));
        CHECK(largest_rounded_seen == static_cast<std::uint32_t>(largest_rounded));
      }
    }
  }
}

TEST_CASE("blocks scan runs, and pack their signs, as the rows do each") {
  const auto bad = std::numeric_limits<float>::quiet_NaN();
  const auto infinite = std::numeric_limits<float>::infinity();
  for (const std::size_t n : sizes) {
    for (const std::size_t run : {8u, 24u, 4096u, 5000u, 65536u}) {
      CAPTURE(n);
      CAPTURE(run);
      std::vector<float> x = values(n, n + 3);
      const std::size_t runs = (n + run - 1) / run;
      std::vector<std::uint8_t> bits((n + 7) / 8);
      std::vector<double> sums(runs);
      for (std::size_t r = 0; r < runs; ++r) {
        sums[r] = plain().pack_signs(x.data() + r * run, std::min(run, n - r * run),
                                     bits.data() + r * run / 8);
      }
      std::vector<std::uint8_t> bits_seen((n + 7) / 8, 0xff);
      std::vector<double> sums_seen(runs);
      launch<64>(2, [&](const auto& block) {
        auto shared = shared_memory<cuda::ScanMemory>(1);
        cuda::pack_signs_of_runs(block, x.data(), n, run, bits_seen.data(), sums_seen.data(),
                                 shared[0]);
      });
      CHECK(bits_seen == bits);
      CHECK(same_bits(sums_seen, sums));

      for (const bool is_bad : {false, true}) {
        if (is_bad) {  // In some runs, and at the end of all.
          for (std::size_t i = n / 2; i < n; i += 5000) x[i] = i % 3 == 0 ? bad : -infinite;
          x[n - 1] = infinite;
        }
        std::vector<Scan> scans(runs);
        launch<64>(2, [&](const auto& block) {
          auto shared = shared_memory<cuda::ScanMemory>(1);
          cuda::scan_runs(block, x.data(), n, run, scans.data(), shared[0]);
        });
        for (std::size_t r = 0; r < runs; ++r) {
          const Scan wanted = plain().scan(x.data() + r * run, std::min(run, n - r * run));
          CHECK(scans[r].first_bad == wanted.first_bad);
          CHECK(scans[r].max_abs == wanted.max_abs);
          CHECK(std::memcmp(&scans[r].sum_squares, &wanted.sum_squares, sizeof(double)) == 0);
        }
      }
    }
  }
}

TEST_CASE("blocks pack and unpack the host's bit fields, and refuse what it refuses") {
  constexpr std::int32_t tops[] = {1, 2, 3, 4, 7, 12, 63, 100, 127, 128, 1000, 5000, 32767};
  for (const std::size_t n : sizes) {
    for (const std::int32_t top : tops) {
      CAPTURE(n);
      CAPTURE(top);
      std::vector<std::int16_t> levels(n);
      for (std::size_t i = 0; i < n; ++i) {
        const auto span = static_cast<std::uint32_t>(2 * top + 1);
        const auto code = static_cast<std::int32_t>(philox::block_at(1, n, i).word[0] % span);
        levels[i] = static_cast<std::int16_t>(code - top);
      }
      std::vector<std::uint8_t> packed(packed_bytes(n, top));
      pack_levels(levels.data(), n, top, packed.data());
      const cuda::Fields fields = cuda::fields_of_levels(top);
      std::vector<std::uint8_t> packed_seen(packed.size(), 0xff);
      launch<32>(3, [&](const auto& block) {
        cuda::pack_fields(block, levels.data(), n, fields, packed_seen.data());
      });
      CHECK(packed_seen == packed);
      // As it is, then with ends of all ones, of which most are no codes, or fill.
      for (const std::size_t damaged : {0u, 1u, 3u}) {
        for (std::size_t k = 0; k < std::min(damaged, packed.size()); ++k) {
          packed[packed.size() - 1 - k] = 0xff;
        }
        std::vector<std::int16_t> back(n);
        std::vector<std::int16_t> back_seen(n);
        const bool is_good = unpack_levels(packed.data(), n, top, back.data());
        std::uint32_t is_bad = 0;
        launch<32>(3, [&](const auto& block) {
          cuda::unpack_fields(block, packed.data(), n, fields, back_seen.data(), &is_bad);
        });
        CHECK(is_bad == (is_good ? 0 : 1));
        if (damaged == 0) CHECK(is_good);
        if (is_good) CHECK(back_seen == back);
      }
    }
  }
}

TEST_CASE("blocks pack and unpack codes that are all in use") {
  for (const std::size_t n : sizes) {
    for (int bits = 1; bits <= 7; ++bits) {
      CAPTURE(n);
      CAPTURE(bits);
      std::vector<std::int16_t> levels(n);
      for (std::size_t i = 0; i < n; ++i) {
        const auto code = static_cast<int>(philox::block_at(2, n, i).word[0] >> (32 - bits));
        levels[i] = static_cast<std::int16_t>(code - (1 << (bits - 1)));
      }
      std::vector<std::uint8_t> packed(packed_code_bytes(n, bits));
      pack_codes(levels.data(), n, bits, packed.data());
      const cuda::Fields fields = cuda::fields_of_codes(bits);
      std::vector<std::uint8_t> packed_seen(packed.size(), 0xff);
      std::vector<std::int16_t> back(n);
      std::uint32_t is_bad = 0;
      launch<32>(3, [&](const auto& block) {
        cuda::pack_fields(block, levels.data(), n, fields, packed_seen.data());
        cuda::unpack_fields(block, packed.data(), n, fields, back.data(), &is_bad);
      });
      CHECK(packed_seen == packed);
      CHECK(back == levels);
      CHECK(is_bad == 0);
      if (n * static_cast<std::size_t>(bits) % 8 == 0) continue;
      packed.back() |= 0x80;  // Fills.
      launch<32>(3, [&](const auto& block) {
        cuda::unpack_fields(block, packed.data(), n, fields, back.data(), &is_bad);
      });
      CHECK(is_bad == 1);
    }
  }
}

namespace {

using Bytes = std::vector<std::uint8_t>;

/// n symbols below `alphabet`: the larger `slope`, the rarer the late ones.
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

Bytes warp_stream(const Bytes& symbols, const RansFrequencies& frequencies) {
  std::vector<std::uint16_t> buffer(rans_bytes_max(symbols.size()) / 2);  // Exactly, for ASan.
  auto codes = shared_memory<rans::Code>(rans_symbols_max);
  std::uint32_t bytes = 77;
  cuda::encode_stream(cuda::HostBlock<32>{},
                      cuda::EncodeRun{.frequencies = frequencies.data(),
                                      .symbols = symbols.data(),
                                      .n = symbols.size(),
                                      .out_end = buffer.data() + buffer.size(),
                                      .bytes = &bytes},
                      codes.data());
  REQUIRE(bytes <= buffer.size() * 2);
  Bytes out(bytes);
  if (bytes > 0) std::memcpy(out.data(), buffer.data() + buffer.size() - bytes / 2, bytes);
  return out;
}

/// The n symbols, or nothing where the stream is refused: what the warp says, which is what the
/// scalar row says.
std::optional<Bytes> decoded(const Bytes& stream, const RansFrequencies& frequencies, std::size_t n,
                             const Bytes& classes = {}, std::size_t class_count = 1) {
  const std::uint8_t* const class_of = classes.empty() ? nullptr : classes.data();
  Bytes symbols(n);
  const bool host =
      rans_decode(stream.data(), stream.size(), frequencies, symbols.data(), n, class_of, plain());
  Bytes seen(n);
  auto places = shared_memory<rans::Place>(class_count * rans::total);
  std::uint32_t is_good = 77;
  cuda::decode_stream(cuda::HostBlock<32>{},
                      cuda::DecodeRun{.stream = stream.data(),
                                      .bytes = stream.size(),
                                      .frequencies = frequencies.data(),
                                      .classes = class_of,
                                      .symbols = seen.data(),
                                      .n = n,
                                      .is_good = &is_good},
                      places.data());
  REQUIRE(is_good == (host ? 1 : 0));
  if (!host) return {};
  REQUIRE(seen == symbols);
  return seen;
}

}  // namespace

TEST_CASE("a warp writes the streams that the rows write, and reads them back") {
  for (const int alphabet : {1, 2, 3, 17, 255, 256}) {
    for (const double slope : {0.0, 0.05, 1.0, 20.0}) {
      for (const std::size_t n :
           {1u, 2u, 3u, 4u, 5u, 33u, 1000u, 16383u, 16384u, 16385u, 16415u, 16416u, 65536u}) {
        CAPTURE(alphabet);
        CAPTURE(slope);
        CAPTURE(n);
        const Bytes symbols = skewed(n, alphabet, slope);
        const RansFrequencies frequencies = frequencies_of(symbols);
        const Bytes stream = host_stream(symbols, frequencies);
        CHECK(warp_stream(symbols, frequencies) == stream);
        CHECK(decoded(stream, frequencies, n) == symbols);
      }
    }
  }
}

TEST_CASE("a warp knows the classes of symbols") {
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
      Bytes stream = warp_stream(symbols, frequencies);
      CHECK(stream == host_stream(symbols, frequencies));
      CHECK(decoded(stream, frequencies, n, of, classes) == symbols);
      stream.push_back(0);
      CHECK(decoded(stream, frequencies, n, of, classes) == std::nullopt);
    }
  }
}

TEST_CASE("a warp's verdict on damaged streams is the rows'") {
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

namespace {

struct Selection {
  Cutoff cutoff;  // As it was found.
  Cutoff left;
  std::vector<std::uint32_t> indices;
};

Selection host_selection(const std::vector<float>& x, std::uint32_t k) {
  const std::span<const float> all(x);
  Selection out{.cutoff = find_largest(std::span(&all, 1), k), .left = {}, .indices = {}};
  out.left = out.cutoff;
  out.indices.resize(x.size());
  out.indices.resize(select_largest(all, out.left, out.indices.data()));
  return out;
}

/// As cuda_select.cu starts the bodies, with `blocks` blocks.
template <unsigned threads>
Selection block_selection(const std::vector<float>& x, std::uint32_t k, unsigned blocks) {
  Selection out{};
  const std::size_t n = x.size();
  auto counts = shared_memory<std::uint32_t>(cuda::digit_counts);
  launch<threads>(
      1, [&](const auto& block) { cuda::begin_digits(block, k, &out.cutoff, counts.data()); });
  for (int place = 0; place < cuda::digit_count; ++place) {
    launch<threads>(blocks, [&](const auto& block) {
      auto shared = shared_memory<std::uint32_t>(cuda::digit_counts);
      cuda::count_digit(block, x.data(), n, cuda::digit_at(place), &out.cutoff, counts.data(),
                        shared.data());
    });
    launch<threads>(1, [&](const auto& block) {
      auto shared = shared_memory<std::uint32_t>(threads);
      cuda::narrow_digit(block, cuda::digit_at(place), &out.cutoff, counts.data(), shared.data());
    });
  }
  out.left = out.cutoff;
  auto sums = shared_memory<std::uint64_t>(cuda::tile_sums(n));
  std::uint32_t selected = 77;
  launch<threads>(blocks, [&](const auto& block) {
    auto shared = shared_memory<cuda::Marks>(2 * threads);
    cuda::count_tiles(block, x.data(), n, &out.left, sums.data(), shared.data());
  });
  launch<threads>(1, [&](const auto& block) {
    auto shared = shared_memory<cuda::Marks>(2 * threads);
    cuda::add_tiles(block, n, &out.left, sums.data(), &selected, shared.data());
  });
  out.indices.resize(k);  // Exactly: ASan watches its end.
  launch<threads>(blocks, [&](const auto& block) {
    auto shared = shared_memory<cuda::Marks>(2 * threads);
    cuda::write_tiles(block, x.data(), n, &out.left, sums.data(), out.indices.data(),
                      shared.data());
  });
  CHECK(selected == k);
  return out;
}

}  // namespace

TEST_CASE("blocks select what the host selects, with ties, in order") {
  for (const std::size_t n : {1u, 2u, 255u, 1000u, 4095u, 4096u, 4097u, 20'000u, 300'001u}) {
    const std::vector<float> normal = values(n, n);
    std::vector<float> tied = normal;  // Seven magnitudes.
    for (float& v : tied) v = std::clamp(std::round(v * 2), -6.0f, 6.0f) * 0.25f;
    std::vector<float> near = normal;  // All digits but the last are the same.
    for (float& v : near) v = std::copysign(1 + std::round(std::fabs(v) * 8) * 0x1p-23f, v);
    for (const auto& x :
         {normal, tied, near, std::vector<float>(n, -2.5f), std::vector<float>(n)}) {
      for (const std::size_t k : {std::size_t{1}, n / 100 + 1, n / 2 + 1, n}) {
        CAPTURE(n);
        CAPTURE(k);
        const auto wanted = host_selection(x, static_cast<std::uint32_t>(k));
        for (const unsigned blocks : {1u, 3u}) {
          const auto seen = block_selection<256>(x, static_cast<std::uint32_t>(k), blocks);
          CHECK(seen.cutoff == wanted.cutoff);
          CHECK(seen.left == wanted.left);
          CHECK(seen.indices == wanted.indices);
        }
      }
    }
  }
}

namespace {

/// One for each of the runs.
std::vector<cuda::SignFlip> some_flips(std::size_t runs) {
  std::vector<cuda::SignFlip> out;
  for (std::size_t r = 0; r < runs; ++r) {
    out.push_back({.factor = 0.3f + static_cast<float>(r), .seed = 0x123456789a, .stream = 2 * r});
  }
  return out;
}

}  // namespace

TEST_CASE("blocks flip the signs that the rows flip") {
  for (const std::size_t n : {1u, 31u, 33u, 1023u, 1025u, 8191u, 8192u, 8193u, 65537u}) {
    for (const std::size_t runs : {1u, 3u}) {
      CAPTURE(n);
      CAPTURE(runs);
      std::vector<float> x = values(n * runs, n);
      std::vector<float> wanted = x;
      const auto flips = some_flips(runs);
      for (std::size_t r = 0; r < runs; ++r) {
        plain().flip_signs(wanted.data() + r * n, n, flips[r].factor, flips[r].seed,
                           flips[r].stream);
      }
      launch<64>(5, [&](const auto& block) {
        auto words = shared_memory<std::uint32_t>(cuda::tile_words);
        cuda::flip_tiles(block, x.data(), n, runs, flips.data(), words.data());
      });
      CHECK(same_bits(x, wanted));
    }
  }
}

TEST_CASE("blocks transform tiles, with and without flips, as the rows transform") {
  for (int log2_n = 0; log2_n <= cuda::tile_log2; ++log2_n) {
    const std::size_t n = std::size_t{1} << log2_n;
    for (const std::size_t runs : {1u, 3u}) {
      for (const bool is_flipped : {false, true}) {
        CAPTURE(n);
        CAPTURE(runs);
        CAPTURE(is_flipped);
        std::vector<float> x = values(n * runs, n);
        std::vector<float> wanted = x;
        const auto flips = some_flips(runs);
        for (std::size_t r = 0; r < runs; ++r) {
          float* const run = wanted.data() + r * n;
          if (is_flipped) {
            plain().flip_signs(run, n, flips[r].factor, flips[r].seed, flips[r].stream);
          }
          plain().hadamard(run, log2_n);
        }
        launch<64>(2, [&](const auto& block) {
          auto shared = shared_memory<float>(cuda::tile_values);
          auto words = shared_memory<std::uint32_t>(cuda::tile_words);
          cuda::transform_tiles(block, x.data(), log2_n, runs, is_flipped ? flips.data() : nullptr,
                                shared.data(), words.data());
        });
        CHECK(same_bits(x, wanted));
      }
    }
  }
}

TEST_CASE("strides past a tile give the rows' bits, one, two and three at once") {
  for (int past = 1; past <= 5; ++past) {
    constexpr std::size_t runs = 3;
    const int log2_n = cuda::tile_log2 + past;
    const std::size_t n = std::size_t{1} << log2_n;
    CAPTURE(past);
    std::vector<float> x = values(n * runs, 4);
    std::vector<float> wanted = x;
    const auto flips = some_flips(runs);
    for (std::size_t r = 0; r < runs; ++r) {
      float* const run = wanted.data() + r * n;
      plain().flip_signs(run, n, flips[r].factor, flips[r].seed, flips[r].stream);
      plain().hadamard(run, log2_n);
    }
    launch<64>(3, [&](const auto& block) {
      auto shared = shared_memory<float>(cuda::tile_values);
      auto words = shared_memory<std::uint32_t>(cuda::tile_words);
      cuda::transform_tiles(block, x.data(), log2_n, runs, flips.data(), shared.data(),
                            words.data());
    });
    for (int s = cuda::tile_log2; s < log2_n;) {
      const int count = std::min(3, log2_n - s);
      launch<64>(3, [&](const auto& block) {
        if (count == 1) cuda::transform_far<1>(block, x.data(), x.size(), s);
        if (count == 2) cuda::transform_far<2>(block, x.data(), x.size(), s);
        if (count == 3) cuda::transform_far<3>(block, x.data(), x.size(), s);
      });
      s += count;
    }
    CHECK(same_bits(x, wanted));
  }
}
