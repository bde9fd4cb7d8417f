// SPDX-License-Identifier: Apache-2.0
// Properties that every codec must have, for many sizes and kinds of input.
#include "tests/codec/codec_support.hpp"
#include "tests/support/sanitized.hpp"

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

// The number after `key` in a spec.
double number(const std::string& spec, const char* key, double otherwise) {
  const std::size_t at = spec.find(key);
  return at == std::string::npos ? otherwise : std::stod(spec.substr(at + std::strlen(key)));
}

// A bound for sparse codecs: a selected value has the quantizer's error, times randk's scale; the
// other values are lost. selector_test.cpp checks exactly which elements are selected.
double sparse_error_bound(const std::string& spec, std::span<const float> x, std::size_t i) {
  const double block = static_cast<double>(std::min<std::size_t>(x.size(), block_elements_default));
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

// A bound for ecuq: half a step. The step is at most 12 sigma, and proportionally more below half a
// bit. ecuq_test.cpp checks the step exactly.
double ecuq_error_bound(const std::string& spec, std::span<const float> x) {
  double largest = 0;
  for (const float v : x) largest = std::max(largest, std::fabs(static_cast<double>(v)));
  const double rate = number(spec, "ecuq:", 1);
  return largest * (rate == 8 ? 0.1 : 6 * std::max(1.0, 0.5 / rate)) + 0x1p-127;
}

// A bound for lanes with a step of its own: half a step, or what lies beyond the last level.
// lanes_test.cpp checks the steps.
double lanes_error_bound(const std::string& spec, std::span<const float> x, std::size_t i) {
  const int bits = static_cast<int>(number(spec, "lanes:", 0));
  const double squares = kernels().scan(x.data(), x.size()).sum_squares;
  if (squares == 0) return 0;
  const LaneStep step = fitting_step(bits, std::sqrt(squares / static_cast<double>(x.size())));
  const double last = step.value() * (lane_levels(bits) - 0.5);
  return std::max(0.5 * step.value() * (1 + 1e-5), std::fabs(x[i]) - last) + 1e-40;
}

// The largest allowed difference between decode(encode(x)) and x at element i. The layout has one
// dimension, so each block is one channel.
double error_bound(const std::string& spec, std::span<const float> x, std::size_t i) {
  if (spec.find("eden") != std::string::npos || spec.starts_with("countsketch")) {
    // Each decoded value depends on many values, so only the norm of the error is bounded.
    const auto block = x.first(std::min<std::size_t>(x.size(), block_elements_default));
    const double norm = std::sqrt(kernels().scan(block.data(), block.size()).sum_squares);
    return (spec.starts_with("randk") || spec == "eden:0.3" ? 4 : 2) * norm + 1e-40;
  }
  if (spec.find("+ecuq") != std::string::npos) return 2 * ecuq_error_bound("", x);
  for (const char* selector : {"topk", "randk", "threshold"}) {
    if (spec.find(selector) != std::string::npos) return sparse_error_bound(spec, x, i);
  }
  // Low-rank codecs send vectors dense.
  if (spec == "none" || spec.starts_with("powersgd") || spec.starts_with("gradzip")) return 0;
  if (spec == "fp16") return std::max(std::fabs(x[i]) * 0x1p-11, 0x1p-25);
  if (spec == "bf16") return std::max(std::fabs(x[i]) * 0x1p-8, 0x1p-134);
  if (spec.starts_with("ecuq")) return ecuq_error_bound(spec, x);
  if (spec.starts_with("lanes")) return lanes_error_bound(spec, x, i);
  const auto share = spec.starts_with("qsgd")
                         ? static_cast<std::size_t>(number(spec, "bucket=", 512))
                         : std::size_t{block_elements_default};
  const std::size_t begin = i / share * share;  // In the first block.
  const auto sharing = x.subspan(begin, std::min(share, x.size() - begin));
  double largest = 0;
  double sum = 0;
  double squares = 0;
  for (const float v : sharing) {
    largest = std::max(largest, std::fabs(static_cast<double>(v)));
    sum += std::fabs(v);
    squares += static_cast<double>(v) * v;
  }
  const auto count = static_cast<double>(sharing.size());
  if (spec == "sign") return std::fabs(std::fabs(x[i]) - sum / count) + largest * 1e-6 + 1e-40;
  double scale = spec.find("l2") == std::string::npos ? largest : std::sqrt(squares);
  double levels = number(spec, "qsgd:", 1);
  double clipped = 0;
  if (spec.starts_with("terngrad")) {
    const double clip = number(spec, "clip=", 2.5);
    if (clip > 0) scale = std::min(scale, clip * std::sqrt(squares / count));
    clipped = std::max(0.0, std::fabs(x[i]) - scale);
  } else if (spec.starts_with("kbit")) {
    levels = std::exp2(number(spec, "kbit:", 0) - 1) - 1;
    if (spec.find("affine") != std::string::npos) {
      const auto [least, most] = std::ranges::minmax(sharing);
      scale = (static_cast<double>(most) - least) / 2;
    }
  }
  // One level plus its rounding error, or the part that was clipped if that is larger.
  return std::max(clipped, scale / levels * (1 + 1e-6)) + largest * 1e-6 + 1e-40;
}

}  // namespace

TEST_CASE(
    "decode(encode(x)) is within each codec's error bound, and its size within payload_bytes_max") {
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
        if (!test::is_sanitized) CHECK(encode(*codec, layout, input.x, n + 1) == payload);
        const auto back = decode(payload, layout);
        // Leave out the end: a second block has its own bucket, which error_bound() does not know.
        const std::size_t checked = std::min<std::size_t>(n, 65000);
        const std::size_t step = n > 2000  ? test::or_sanitized(997, 20011)
                                 : n > 100 ? test::or_sanitized(1, 97)
                                           : 1;
        for (std::size_t i = 0; i < checked; i += step) {
          const double error = std::fabs(static_cast<double>(back[i]) - input.x[i]);
          CHECK(error <= error_bound(spec, input.x, i));
        }
        CHECK(std::ranges::all_of(back, [](float v) { return std::isfinite(v); }));
      }
    }
  }
}

TEST_CASE("every codec refuses a value that is not finite, and names its tensor and index") {
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

TEST_CASE("values beyond a codec's range are refused, and values at its end are not") {
  const Layout layout = flat_layout(3);
  std::vector<std::byte> bytes;
  VectorSink sink(bytes);
  const auto fp16 = codec_of("fp16");
  CHECK(fp16->encode(layout, std::vector<float>{65504, -65504, 0}, 1, sink).has_value());
  const auto refused = fp16->encode(layout, std::vector<float>{0, -65505, 0}, 1, sink);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().message().find("w[1]") != std::string::npos);

  const auto bf16 = codec_of("bf16");
  constexpr float bf16_max = 0x1.fep127f;
  CHECK(decode(encode(*bf16, layout, std::vector<float>{bf16_max, -bf16_max, 0}), layout) ==
        std::vector<float>{bf16_max, -bf16_max, 0});
  CHECK_FALSE(bf16->encode(layout,
                           std::vector<float>{
                               0, std::nextafter(bf16_max, std::numeric_limits<float>::max()), 0},
                           1, sink)
                  .has_value());

  const std::vector<float> largest = {0x1p127f, -0x1p127f, 1};
  const std::vector<float> past = {0x1.8p127f, 0x1.8p127f, -0x1.8p127f};
  for (const char* spec : {"qsgd:3", "kbit:8", "kbit:8,mode=affine", "terngrad,clip=0", "sign",
                           "ecuq:2", "ecuq:2,mode=centroid"}) {
    CAPTURE(spec);
    for (const float v : decode(encode(*codec_of(spec), layout, largest), layout)) {
      CHECK(std::isfinite(v));
    }
    CHECK_FALSE(codec_of(spec)->encode(layout, past, 1, sink).has_value());
  }
  CHECK_FALSE(codec_of("qsgd:3,norm=l2")->encode(layout, largest, 1, sink).has_value());
}

TEST_CASE(
    "qsgd, kbit, terngrad without a clip and dithered ecuq are unbiased: the mean over 4,096 seeds "
    "is x within 5 sigma" *
    statistics) {
  constexpr std::size_t n = 40;
  constexpr int seeds = 4096;
  const Layout layout = layout_of({{"w", {4, n / 4}}});
  const std::vector<float> x = normal(n, 9);
  for (const std::string& spec : specs_to_test()) {
    if (!spec.starts_with("qsgd") && !spec.starts_with("kbit") && spec != "terngrad,clip=0" &&
        (!spec.starts_with("ecuq") || spec.ends_with("centroid"))) {
      continue;
    }
    CAPTURE(spec);
    std::vector<double> sum(n);
    std::vector<double> squares(n);
    double largest = 0;
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      const auto back = decode(encode(*codec_of(spec), layout, x, seed), layout);
      for (std::size_t i = 0; i < n; ++i) {
        const double error = static_cast<double>(back[i]) - x[i];
        sum[i] += error;
        squares[i] += error * error;
        largest = std::max(largest, std::fabs(error));
      }
    }
    for (std::size_t i = 0; i < n; ++i) {
      // Add one large error to those that occurred: next to a level it is too rare to occur.
      const double sigma_of_mean = std::sqrt(squares[i] + largest * largest) / seeds;
      CHECK(std::fabs(sum[i] / seeds) <= 5 * sigma_of_mean + 1e-6);
    }
  }
}

TEST_CASE("blocks of any size decode alone and in any order") {
  const Layout layout = layout_of({{"a", {1000}}, {"none", {0}}, {"b", {7, 100}}, {"scalar", {}}});
  const std::vector<float> x = normal(layout.elements(), 4);
  for (const std::string& spec : specs_to_test()) {
    const auto payload = encode(*codec_of(spec), layout, x, 5, 256);
    const auto whole = decode(payload, layout);
    SpanSource source(payload);
    auto reader = PayloadReader::open(source, payload.size(), layout).value();
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

TEST_CASE("a file sink writes the same bytes as a memory sink, and a file source reads them back") {
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

TEST_CASE("the payload format adds less than half a percent to LeNet's fp32 values") {
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

TEST_CASE("coded levels are near their entropy, and never longer than bit fields") {
  constexpr std::size_t n = 1 << 20;
  constexpr std::size_t block = block_elements_default;
  const Layout layout = flat_layout(n);
  const std::vector<float> x = normal(n, 12);
  struct Case {
    const char* spec;
    std::size_t share;  // Number of values with one scale.
    int levels;
  };
  for (const Case& c :
       {Case{"qsgd:1", 512, 1}, Case{"qsgd:3", 512, 3}, Case{"qsgd:8", 512, 8},
        Case{"qsgd:64", 512, 64}, Case{"qsgd:127", 512, 127}, Case{"kbit:2", block, 1},
        Case{"kbit:4", block, 7}, Case{"kbit:8", block, 127}, Case{"kbit:4,mode=affine", block, 7},
        Case{"terngrad", block, 1}, Case{"terngrad,clip=0", block, 1}}) {
    CAPTURE(c.spec);
    const auto codec = codec_of(c.spec);
    const auto payload = encode(*codec, layout, x, 3);
    // Compute the levels from the decoded values: they are whole steps from the middle. The largest
    // value is always at the scale.
    const std::vector<float> back = decode(payload, layout);
    const bool is_affine = std::string_view(c.spec).find("affine") != std::string_view::npos;
    const std::size_t scales = n / c.share;
    double bits = static_cast<double>(scales) * (is_affine ? 64 : 32);
    for (std::size_t begin = 0; begin < n; begin += block) {
      std::vector<double> counts(static_cast<std::size_t>(2 * c.levels + 1));
      for (std::size_t at = begin; at < begin + block; at += c.share) {
        const Range range = kernels().range(back.data() + at, c.share);
        const float middle = is_affine ? (range.min + range.max) / 2 : 0.0f;
        const float step =
            std::max(range.max - middle, middle - range.min) / static_cast<float>(c.levels);
        for (std::size_t i = at; i < at + c.share; ++i) {
          ++counts.at(static_cast<std::size_t>(std::lround((back[i] - middle) / step) + c.levels));
        }
      }
      for (const double count : counts) {
        if (count > 0) bits += count * std::log2(block / count);
      }
    }
    CHECK(static_cast<double>(payload.size()) >= bits / 8);
    CHECK(static_cast<double>(payload.size()) < 1.02 * bits / 8);
    CHECK(payload.size() < codec->payload_bytes_max(layout));
  }
  // Levels that all occur equally often can't be compressed.
  std::vector<float> flat(n);
  for (std::size_t i = 0; i < n; ++i) flat[i] = static_cast<float>(i % 4) - 1.5f;
  const auto codec = codec_of("qsgd:127");
  CHECK(encode(*codec, layout, flat).size() <= codec->payload_bytes_max(layout));
}

TEST_CASE("sign sends one bit a value and decodes to the sign times the block's mean magnitude") {
  const Layout layout = layout_of({{"a", {9}}, {"b", {300}}});
  std::vector<float> x(layout.elements(), -0.5f);
  const std::vector<float> a = {1, -2, 0.0f, -0.0f, 4, -8, 16, -32, 9};
  std::ranges::copy(a, x.begin());
  x[9] = 1.5f;
  const auto payload = encode(*codec_of("sign"), layout, x, 1, 256);
  // A format id and a scale for each block of 9, 256 and 44 values.
  const std::size_t prefix = payload_header_bytes + 3 * sizeof(std::uint32_t);
  CHECK(payload.size() == prefix + 3 * 5 + 2 + 32 + 6);
  const auto back = decode(payload, layout);
  const std::vector<float> wanted = {8, -8, 0, 0, 8, -8, 8, -8, 8};  // 72 / 9.
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] != 0) CHECK(back[i] == wanted[i]);
    CHECK(std::fabs(back[i]) == 8);
  }
  CHECK(back[9] == (255 * 0.5f + 1.5f) / 256);
  for (std::size_t i = 10; i < 9 + 256; ++i) REQUIRE(back[i] == -back[9]);
  for (std::size_t i = 9 + 256; i < x.size(); ++i) REQUIRE(back[i] == -0.5f);
}

TEST_CASE("sign gives zeros a random sign, which depends on the seed") {
  constexpr std::size_t n = 100'000;
  const Layout layout = flat_layout(n);
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; i += 100) x[i] = i % 200 == 0 ? 1.0f : -1.0f;
  std::vector<float> first;
  for (const std::uint64_t seed : {1, 2}) {
    const auto back = decode(encode(*codec_of("sign"), layout, x, seed), layout);
    std::size_t positive = 0;
    for (std::size_t i = 0; i < n; ++i) {
      if (x[i] != 0) REQUIRE(back[i] * x[i] > 0);
      positive += back[i] > 0 ? 1 : 0;
    }
    CHECK(std::fabs(static_cast<double>(positive) - n / 2.0) < 4 * std::sqrt(n / 4.0));
    if (first.empty()) {
      first = back;
    } else {
      CHECK(first != back);
    }
  }
  const std::vector<float> nothing(n);  // The mean magnitude is 0.
  CHECK(decode(encode(*codec_of("sign"), layout, nothing), layout) == nothing);
}

TEST_CASE("terngrad's scale is the clip in sigma, or the largest value if that is smaller") {
  constexpr std::size_t n = 1000;
  std::vector<float> x(n, 1.0f);
  x[7] = -50.0f;
  const double sigma = std::sqrt((999.0 + 2500.0) / n);
  const auto largest = [&](const char* spec) {
    const Layout layout = flat_layout(n);
    const auto back = decode(encode(*codec_of(spec), layout, x), layout);
    CHECK(back[7] < 0);
    return kernels().scan(back.data(), n).max_abs;
  };
  CHECK(largest("terngrad") == static_cast<float>(2.5 * sigma));
  CHECK(largest("terngrad,clip=1.5") == static_cast<float>(1.5 * sigma));
  CHECK(largest("terngrad,clip=100") == 50.0f);
  CHECK(largest("terngrad,clip=0") == 50.0f);
}

TEST_CASE("kbit,scale=channel: a row's error depends on its own scale, wherever blocks begin") {
  // Rows of 300 values, each row a hundred times as large as the one before. Blocks of 256 values
  // begin inside rows.
  constexpr std::size_t row = 300;
  const Layout layout = layout_of({{"w", {4, 3, 100}}, {"bias", {40}}});
  std::vector<float> x = normal(layout.elements(), 14);
  float scale = 1e-4f;
  for (std::size_t i = 0; i < 4 * row; ++i) {
    if (i > 0 && i % row == 0) scale *= 100;
    x[i] *= scale;
  }
  for (const char* spec : {"kbit:8,scale=channel", "kbit:8,scale=channel,mode=affine"}) {
    for (const std::uint32_t block : {256u, 1000u, block_elements_default}) {
      CAPTURE(spec);
      CAPTURE(block);
      const auto back = decode(encode(*codec_of(spec), layout, x, 1, block), layout);
      for (std::size_t begin = 0; begin < 4 * row; begin += row) {
        const double step = kernels().scan(x.data() + begin, row).max_abs / 127 * 1.001;
        for (std::size_t i = begin; i < begin + row; ++i) {
          REQUIRE(std::fabs(static_cast<double>(back[i]) - x[i]) <= step);
        }
      }
    }
  }
  // A bias has one scale, not one per element.
  const Layout bias = layout_of({{"bias", {40}}});
  const auto bytes = [&](const char* spec) {
    return encode(*codec_of(spec), bias, std::vector<float>(40, 1.0f)).size();
  };
  CHECK(bytes("kbit:8,scale=channel") == bytes("kbit:8"));
}

TEST_CASE("kbit,mode=affine is exact for equal values and puts its levels where the values are") {
  const Layout layout = flat_layout(1000);
  const std::vector<float> equal(1000, 0.1f);
  CHECK(decode(encode(*codec_of("kbit:2,mode=affine"), layout, equal), layout) == equal);
  std::vector<float> x = normal(1000, 15);
  for (float& v : x) v = 100 + v / 8;  // All between 99 and 101.
  const auto error = [&](const char* spec) {
    const auto back = decode(encode(*codec_of(spec), layout, x), layout);
    double largest = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      largest = std::max(largest, std::fabs(static_cast<double>(back[i]) - x[i]));
    }
    return largest;
  };
  CHECK(error("kbit:8,mode=affine") < 1.0 / 127);
  CHECK(error("kbit:8") > 0.1);
}
