// Properties of every codec, over sizes and kinds of input.
#include "codec_support.hpp"

#include <fmt/format.h>

#include <limits>

using namespace fl;
using namespace fl::testing;

namespace {

constexpr std::size_t sizes[] = {0, 1, 2, 7, 8, 9, 31, 32, 33, 1023, 1024, 1025, 65537};

struct Input {
  const char* name;
  std::vector<float> x;
};

std::vector<Input> inputs(std::size_t n) {
  std::vector<Input> all = {
      {"zeros", std::vector<float>(n)}, {"one spike", std::vector<float>(n)},
      {"all negative", normal(n, 1)},   {"denormal", std::vector<float>(n, 1e-42f)},
      {"huge", normal(n, 2, 8000.0f)},  {"signed zeros", std::vector<float>(n)},
      {"heavy tail", normal(n, 3)}};
  if (n > 0) all[1].x[n / 2] = -3.5f;
  for (float& v : all[2].x) v = -std::fabs(v);
  for (std::size_t i = 0; i < n; i += 2) all[5].x[i] = -0.0f;
  for (float& v : all[6].x) v = v * v * v;
  return all;
}

// Selected values are as near as the quantizer makes them, or scaled; the others are lost. What
// is selected exactly, selector_test.cpp says.
double sparse_error_bound(const std::string& spec, std::span<const float> x, std::size_t i) {
  const double block = static_cast<double>(std::min<std::size_t>(x.size(), block_elements_max));
  double scale = 1;
  if (const std::size_t at = spec.find("randk:"); at != std::string::npos) {
    scale = block / std::max(1.0, std::round(block * std::stod(spec.substr(at + 6))));
  }
  double largest = 0;
  for (const float v : x) largest = std::max(largest, std::fabs(static_cast<double>(v)));
  const std::size_t at = spec.find("qsgd:");
  const double levels = at == std::string::npos ? 1024 : std::stod(spec.substr(at + 5));
  return scale * (std::fabs(x[i]) + largest / levels * (1 + 1e-6)) + 0x1p-25;
}

// How far decode(encode(x)) may be from x at element i.
double error_bound(const std::string& spec, std::span<const float> x, std::size_t i) {
  for (const char* selector : {"topk", "randk", "threshold"}) {
    if (spec.find(selector) != std::string::npos) return sparse_error_bound(spec, x, i);
  }
  if (spec == "none") return 0;
  if (spec == "fp16") return std::max(std::fabs(x[i]) * 0x1p-11, 0x1p-25);
  // QSGD: one level of the element's bucket, and the rounding of the level's value.
  const auto number = [&](const char* key, std::size_t otherwise) {
    const std::size_t at = spec.find(key);
    return at == std::string::npos ? otherwise : std::stoul(spec.substr(at + std::strlen(key)));
  };
  const std::size_t levels = number("qsgd:", 0);
  const std::size_t bucket = number("bucket=", 512);
  const std::size_t begin = i / bucket * bucket;  // Within the first block.
  const std::size_t end = std::min(begin + bucket, x.size());
  double largest = 0;
  double squares = 0;
  for (std::size_t k = begin; k < end; ++k) {
    largest = std::max(largest, std::fabs(static_cast<double>(x[k])));
    squares += static_cast<double>(x[k]) * x[k];
  }
  const double scale = spec.find("l2") == std::string::npos ? largest : std::sqrt(squares);
  return scale / static_cast<double>(levels) * (1 + 1e-6) + scale * 1e-6 + 1e-40;
}

}  // namespace

TEST_CASE(
    "decode(encode(x)) lies within the method's bound, and the size within payload_bytes_max") {
  for (const std::string& spec : specs_to_test()) {
    const auto codec = codec_of(spec);
    for (const std::size_t n : sizes) {
      const Layout layout = flat_layout(static_cast<std::int64_t>(n));
      for (const Input& input : inputs(n)) {
        CAPTURE(spec);
        CAPTURE(n);
        CAPTURE(input.name);
        const auto payload = encode(*codec, layout, input.x, n + 1);
        CHECK(payload.size() <= codec->payload_bytes_max(layout));
        CHECK(encode(*codec, layout, input.x, n + 1) == payload);
        const auto back = decode(payload, layout);
        // The bucket of the second block's single value begins there: leave it out of the bound.
        const std::size_t checked = std::min<std::size_t>(n, 65000);
        for (std::size_t i = 0; i<checked; i += n> 2000 ? 997 : 1) {
          const double error = std::fabs(static_cast<double>(back[i]) - input.x[i]);
          CHECK(error <= error_bound(spec, input.x, i));
        }
        for (const float v : back) REQUIRE(std::isfinite(v));
      }
    }
  }
}

TEST_CASE("a value that is not finite is refused by its name, by every codec") {
  const Layout layout = layout_of({{"a", {300}}, {"b.weight", {5, 70}}});
  for (const std::string& spec : specs_to_test()) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      std::vector<float> x(layout.elements(), 1.0f);
      x[300 + 17] = bad;
      std::vector<std::byte> bytes;
      VectorSink sink(bytes);
      const auto encoded = codec_of(spec)->encode(layout, x, 1, sink);
      REQUIRE_FALSE(encoded.has_value());
      CHECK(encoded.error().code() == Errc::invalid_input);
      CHECK(encoded.error().message().find("b.weight[17]") != std::string::npos);
    }
  }
}

TEST_CASE("values past a codec's range are refused, and those at its end are not") {
  const Layout layout = flat_layout(3);
  std::vector<std::byte> bytes;
  VectorSink sink(bytes);
  const auto fp16 = codec_of("fp16");
  CHECK(fp16->encode(layout, std::vector<float>{65504, -65504, 0}, 1, sink).has_value());
  const auto refused = fp16->encode(layout, std::vector<float>{0, -65505, 0}, 1, sink);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().message().find("w[1]") != std::string::npos);

  const std::vector<float> largest = {0x1p127f, -0x1p127f, 1};
  for (const float v : decode(encode(*codec_of("qsgd:3"), layout, largest), layout)) {
    CHECK(std::isfinite(v));
  }
  const std::vector<float> past = {0x1.8p127f, 0, 1};
  CHECK_FALSE(codec_of("qsgd:3")->encode(layout, past, 1, sink).has_value());
  CHECK_FALSE(codec_of("qsgd:3,norm=l2")->encode(layout, largest, 1, sink).has_value());
}

TEST_CASE("qsgd is unbiased: the mean over 4,096 seeds is x within 5 sigma") {
  constexpr std::size_t n = 40;
  constexpr int seeds = 4096;
  const Layout layout = flat_layout(n);
  const std::vector<float> x = normal(n, 9);
  for (const std::string& spec : specs_to_test()) {
    if (!spec.starts_with("qsgd")) continue;
    CAPTURE(spec);
    std::vector<double> sum(n);
    std::vector<double> squares(n);
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      const auto back = decode(encode(*codec_of(spec), layout, x, seed), layout);
      for (std::size_t i = 0; i < n; ++i) {
        const double error = static_cast<double>(back[i]) - x[i];
        sum[i] += error;
        squares[i] += error * error;
      }
    }
    for (std::size_t i = 0; i < n; ++i) {
      const double sigma_of_mean = std::sqrt(squares[i]) / seeds;
      CHECK(std::fabs(sum[i] / seeds) <= 5 * sigma_of_mean + 1e-6);
    }
  }
}

TEST_CASE("blocks decode alone and in any order, whatever their size") {
  const Layout layout = layout_of({{"a", {1000}}, {"none", {0}}, {"b", {7, 100}}, {"scalar", {}}});
  const std::vector<float> x = normal(layout.elements(), 4);
  for (const std::string& spec : specs_to_test()) {
    const auto payload = encode(*codec_of(spec), layout, x, 5, 256);
    const auto whole = decode(payload, layout);
    SpanSource source(payload);
    auto reader = PayloadReader::open(source, payload.size(), layout).value();
    CHECK(reader.spec() == codec_of(spec)->canonical());
    REQUIRE(reader.blocks() == 4 + 3 + 1);
    for (std::uint64_t i = reader.blocks(); i-- > 0;) {
      const Block block = reader.block(i);
      std::vector<float> values(block.elements);
      const Scan scan = reader.decode(i, values).value();
      CHECK(scan.max_abs == kernels().scan(values.data(), values.size()).max_abs);
      CHECK(std::memcmp(values.data(), whole.data() + block.flat, block.elements * 4) == 0);
    }
  }
}

TEST_CASE(
    "a file sink gets the bytes of a memory sink, and a file source reads them, at an offset") {
  const Layout layout = flat_layout(70000);
  const std::vector<float> x = normal(layout.elements(), 6);
  for (const std::string& spec : specs_to_test()) {
    const auto codec = codec_of(spec);
    const auto expected = encode(*codec, layout, x, 8);
    MemoryFile file;
    FileSink sink(file, 100);
    const std::uint64_t bytes = codec->encode(layout, x, 8, sink).value();
    REQUIRE(bytes == expected.size());
    CHECK(std::equal(expected.begin(), expected.end(), file.bytes().begin() + 100,
                     file.bytes().end()));
    FileSource source(file, 100);
    auto reader = PayloadReader::open(source, bytes, layout).value();
    std::vector<float> out(layout.elements());
    reader.decode_all(out).value();
    CHECK(out == decode(expected, layout));
  }
}

TEST_CASE("what the format adds to LeNet's fp32 stays below half a percent") {
  const Layout layout = layout_of({{"conv1.weight", {6, 1, 5, 5}},
                                   {"conv1.bias", {6}},
                                   {"conv2.weight", {16, 6, 5, 5}},
                                   {"conv2.bias", {16}},
                                   {"fc1.weight", {120, 256}},
                                   {"fc1.bias", {120}},
                                   {"fc2.weight", {84, 120}},
                                   {"fc2.bias", {84}},
                                   {"fc3.weight", {10, 84}},
                                   {"fc3.bias", {10}}});
  const auto payload = encode(*codec_of("none"), layout, normal(layout.elements(), 1));
  CHECK(static_cast<double>(payload.size() - layout.bytes()) <
        0.005 * static_cast<double>(layout.bytes()));
}

TEST_CASE("qsgd's levels are near their entropy, and never above bit fields") {
  constexpr std::size_t n = 1 << 20;
  const Layout layout = flat_layout(n);
  const std::vector<float> x = normal(n, 12);
  for (const std::int32_t levels : {1, 3, 8, 64, 127}) {
    CAPTURE(levels);
    const auto codec = codec_of(fmt::format("qsgd:{}", levels));
    const auto payload = encode(*codec, layout, x, 3);
    // Back to levels, which are whole numbers of the bucket's step.
    const std::vector<float> back = decode(payload, layout);
    std::vector<double> counts(static_cast<std::size_t>(2 * levels + 1));
    for (std::size_t begin = 0; begin < n; begin += 512) {
      const float step = kernels().scan(x.data() + begin, 512).max_abs / static_cast<float>(levels);
      for (std::size_t i = begin; i < begin + 512; ++i)
        ++counts[static_cast<std::size_t>(std::lround(back[i] / step) + levels)];
    }
    double bits = n / 512 * 32.0;  // The scales.
    for (const double count : counts) {
      if (count > 0) bits += count * std::log2(n / count);
    }
    CHECK(static_cast<double>(payload.size()) >= bits / 8);
    CHECK(static_cast<double>(payload.size()) < 1.02 * bits / 8);
    CHECK(payload.size() < codec->payload_bytes_max(layout));
  }
  // Levels that all occur equally often have nothing to save.
  std::vector<float> flat(n);
  for (std::size_t i = 0; i < n; ++i) flat[i] = static_cast<float>(i % 4) - 1.5f;
  const auto codec = codec_of("qsgd:127");
  CHECK(encode(*codec, layout, flat).size() <= codec->payload_bytes_max(layout));
}
