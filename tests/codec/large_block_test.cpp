// SPDX-License-Identifier: Apache-2.0
// Large blocks (large_block.hpp) of codecs that send few values: coded whole if possible, else in
// parts.
#include "shared/codec/blocks/large_block.hpp"

#include "tests/codec/codec_support.hpp"
#include "tests/support/print_result.hpp"

#include <fmt/format.h>

#include <map>
#include <set>

using namespace fl;
using namespace fl::codec;
using namespace fl::testing;

namespace {

constexpr std::size_t many = 2 * block_elements_max + 70'001;

/// Blocks of all sizes: two full large blocks, a large block of little more than one part, a tensor
/// that does not fill a large block, and small tensors.
const Layout& large_layout() {
  static const Layout layout = layout_of({{"w", {static_cast<std::int64_t>(many)}},
                                          {"m", {700, 1000}},
                                          {"w.bias", {2000}},
                                          {"b", {5}}});
  return layout;
}

std::vector<std::string> specs_of_few() {
  return {"topk:0.01", "topk:0.001+qsgd:8", "topk:0.01,scope=global+fp16", "randk:0.01",
          "randk:0.001+kbit:4", "ema-threshold:0.01", "ecuq:0.05+ef", "ecuq:0.1", "ecuq:0.2",
          "m=powersgd:2;*.bias=none;*=ecuq:0.1", "m=gradzip:2;*=topk:0.01",
          "m=countsketch:3x4000,recovery=own;*=topk:0.001", "w=sign;*=topk:0.01+sign",
          "w=eden:1;*=ecuq:0.1",
          // The rule of a small tensor does not count.
          "b=randk:0.5;*=topk:0.01"};
}

/// The number of blocks by format, among blocks of at least `elements_min` elements.
std::map<int, int> formats_of(const std::vector<std::byte>& payload, std::size_t elements_min) {
  const auto block_elements = load<std::uint32_t>(payload, 4);
  const BlockMap map(large_layout(), block_elements);
  const std::size_t table_at = payload_header_bytes;
  std::size_t at = table_at + map.blocks() * sizeof(std::uint32_t);
  std::map<int, int> found;
  for (std::uint64_t b = 0; b < map.blocks(); ++b) {
    if (map.at(b).elements >= elements_min) ++found[std::to_integer<int>(payload[at])];
    at += load<std::uint32_t>(payload, table_at + b * sizeof(std::uint32_t));
  }
  CHECK(at == payload.size());
  return found;
}

constexpr std::size_t large_min = part_elements_max + 1;

int count_parts(const std::vector<std::byte>& payload) {
  const auto found = formats_of(payload, large_min);
  const auto parts = found.find(static_cast<int>(BlockFormat::parts));
  return parts == found.end() ? 0 : parts->second;
}

std::size_t count_not_zero(std::span<const float> x) {
  return x.size() - static_cast<std::size_t>(std::ranges::count(x, 0.0f));
}

}  // namespace

TEST_CASE("codecs that send few values use large blocks if a tensor fills one") {
  for (const std::string& spec : specs_of_few()) {
    CAPTURE(spec);
    CHECK(codec_of(spec)->block_elements(large_layout()) == block_elements_max);
    CHECK(codec_of(spec)->block_elements(flat_layout(65536)) == block_elements_default);
  }
  for (const char* spec : {"none", "qsgd:7", "ecuq:0.3", "topk:0.02", "threshold:1", "randk:0.5",
                           "w=threshold:1;*=topk:0.001", "w=randk:0.5;*=ecuq:0.1",
                           "m=qsgd:7;*=topk:0.01", "b=topk:0.01;*=eden:1"}) {
    CAPTURE(spec);
    CHECK(codec_of(spec)->block_elements(large_layout()) == block_elements_default);
  }
}

TEST_CASE("large blocks decode to nearly the values of small blocks, and take fewer bytes") {
  const std::vector<float> x = normal(large_layout().elements(), 3);
  for (const std::string& spec : specs_of_few()) {
    CAPTURE(spec);
    const auto codec = codec_of(spec);
    const auto payload = encode(*codec, large_layout(), x, 9);
    CHECK(payload.size() <= codec->payload_bytes_max(large_layout()));
    const auto small = encode(*codec, large_layout(), x, 9, block_elements_default);
    const auto values = decode(payload, large_layout());
    const auto of_small = decode(small, large_layout());
    const auto sent = static_cast<double>(count_not_zero(values));
    CHECK(sent == doctest::Approx(static_cast<double>(count_not_zero(of_small))).epsilon(0.05));
    // ecuq has a requested rate in bits, so its size may be the same.
    if (spec.find("ecuq") == std::string::npos) CHECK(payload.size() < small.size() + 100);
    double error = 0;
    double power = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      error += std::pow(static_cast<double>(values[i]) - static_cast<double>(of_small[i]), 2);
      power += std::pow(static_cast<double>(of_small[i]), 2);
    }
    // The values are equal if the codec is deterministic. Otherwise other random numbers round or
    // select them.
    const std::set<std::string> exact{"topk:0.01", "topk:0.01,scope=global+fp16",
                                      "ema-threshold:0.01"};
    if (exact.contains(spec)) CHECK(error == 0);
    CHECK(error < 2.5 * power);
  }
}

TEST_CASE("a large block with few sent values is whole, else its parts are coded as small blocks") {
  const std::vector<float> x = normal(large_layout().elements(), 3);
  CHECK(count_parts(encode(*codec_of("topk:0.01"), large_layout(), x)) == 0);
  CHECK(count_parts(encode(*codec_of("ecuq:0.1+ef"), large_layout(), x)) == 0);
  CHECK(count_parts(encode(*codec_of("m=powersgd:2;*=ecuq:0.1"), large_layout(), x)) == 0);

  // These compressors have no format for large blocks. Their parts decode to the same bits as small
  // blocks.
  for (const char* spec : {"w=sign;*=topk:0.01", "w=eden:1;*=topk:0.01",
                           "w=countsketch:3x4000,recovery=own;*=topk:0.01"}) {
    CAPTURE(spec);
    const auto payload = encode(*codec_of(spec), large_layout(), x);
    CHECK(count_parts(payload) == 3);
    const auto small = encode(*codec_of(spec), large_layout(), x, 1, block_elements_default);
    const auto part = decode(payload, large_layout());
    const auto of_small = decode(small, large_layout());
    CHECK(std::equal(part.begin(), part.begin() + many, of_small.begin()));
  }
}

TEST_CASE("a large block with too many large values is coded in parts") {
  // Top-k over the whole tensor selects more elements of one block than the block can count.
  constexpr std::size_t n = 10 * block_elements_max;
  const Layout layout = flat_layout(n);
  std::vector<float> x = normal(n, 4);
  for (std::size_t i = 0; i < 120'000; ++i) x[block_elements_max + 4 * i] *= 1000;
  const auto codec = codec_of("topk:0.015625");
  const auto payload = encode(*codec, layout, x);
  CHECK(payload.size() <= codec->payload_bytes_max(layout));
  const auto small = encode(*codec, layout, x, 1, block_elements_default);
  CHECK(decode(payload, layout) == decode(small, layout));
  CHECK(payload.size() < small.size());

  // With ecuq: one block has an outlier, which is listed, and in another many levels are not 0.
  std::vector<float> y = normal(large_layout().elements(), 5);
  y[100] = 1e6f;
  constexpr std::size_t last = 2 * block_elements_max;
  for (std::size_t i = last; i < many; ++i) y[i] *= 30;
  for (const char* spec : {"ecuq:0.1", "ecuq:0.1+ef"}) {
    CAPTURE(spec);
    const auto coded = encode(*codec_of(spec), large_layout(), y, 3);
    CHECK(count_parts(coded) == 2);
    const auto back = decode(coded, large_layout());
    CHECK(back[100] == 1e6f);
    double error = 0;
    double power = 0;
    for (std::size_t i = last; i < many; ++i) {
      error += std::pow(static_cast<double>(back[i]) - static_cast<double>(y[i]), 2);
      power += std::pow(static_cast<double>(y[i]), 2);
    }
    // With random rounding the error is many times the power at this rate.
    if (codec_of(spec)->error_feedback()) CHECK(error < 0.5 * power);
  }
}

TEST_CASE("a large block is no longer than its parts, whatever its values are") {
  constexpr std::size_t n = 8 * block_elements_max;
  const Layout layout = flat_layout(n);
  // All selected values are close together.
  for (const std::size_t stride : {1u, 4u}) {
    CAPTURE(stride);
    std::vector<float> x = normal(n, 11);
    for (std::size_t i = 0; i < 64'000; ++i) x[block_elements_max / 2 + i * stride] *= 1000;
    const auto codec = codec_of("topk:0.015+qsgd:8");
    const auto payload = encode(*codec, layout, x);
    CHECK(payload.size() <= codec->payload_bytes_max(layout));
    CHECK(payload.size() <= encode(*codec, layout, x, 1, block_elements_default).size());
  }
  // With only two magnitudes no step gives runs of zeros.
  std::vector<float> x = normal(n, 12);
  for (float& v : x) v = v < 0 ? -1.0f : 1.0f;
  const auto payload = encode(*codec_of("ecuq:0.2"), layout, x);
  CHECK(static_cast<double>(payload.size()) * 8 / n < 0.204);
}

TEST_CASE("payload_bytes_max is tight for the factors of a matrix") {
  for (const std::int64_t rows : {1024, 64}) {
    const Layout layout = layout_of({{"m", {rows, 1024}}});
    for (const char* spec : {"powersgd:2", "gradzip:4"}) {
      CAPTURE(spec);
      const auto payload = encode(*codec_of(spec), layout, normal(layout.elements(), 13));
      // A coded float takes 26.5 to 28 bits instead of 32.
      const auto most = static_cast<double>(codec_of(spec)->payload_bytes_max(layout));
      CHECK(static_cast<double>(payload.size()) > 0.82 * most);
      CHECK(static_cast<double>(payload.size()) < 0.88 * most);
    }
  }
}

TEST_CASE("large blocks of zeros decode to zeros, and values that can't be sent are refused") {
  for (const std::string& spec : specs_of_few()) {
    CAPTURE(spec);
    std::vector<float> x(large_layout().elements());
    const auto codec = codec_of(spec);
    CHECK(count_not_zero(decode(encode(*codec, large_layout(), x), large_layout())) == 0);
    x[600'000] = std::numeric_limits<float>::quiet_NaN();
    std::vector<std::byte> bytes;
    VectorSink sink(bytes);
    const auto refused = codec->encode(large_layout(), x, 1, sink);
    REQUIRE(refused.has_error());
    CHECK(refused.error().message().find("w[600000]") != std::string::npos);
  }
}

TEST_CASE("every kernel row and any number of threads make the same large blocks") {
  const std::vector<float> x = normal(large_layout().elements(), 6);
  for (const std::string& spec : specs_of_few()) {
    CAPTURE(spec);
    check_rows_agree(spec, large_layout(), x);
    const auto alone = encode(*codec_of(spec), large_layout(), x);
    std::vector<std::byte> bytes;
    VectorSink sink(bytes);
    codec_of(spec)->encode(large_layout(), x, 1, sink, 0, nullptr, 3).value();
    CHECK(bytes == alone);
    SpanSource source(alone);
    auto reader = PayloadReader::open(source, alone.size(), large_layout()).value();
    std::vector<float> values(x.size());
    reader.decode_all(values, 3).value();
    CHECK(values == decode(alone, large_layout()));
  }
}

TEST_CASE("damaged large blocks are refused, or decode to finite values") {
  const Layout layout = layout_of({{"w", {200'000}}, {"v", {70'000}}});
  const std::vector<float> x = normal(layout.elements(), 7);
  const auto is_refused_or_finite = [&](const std::vector<std::byte>& payload) {
    SpanSource source(payload);
    auto reader = PayloadReader::open(source, payload.size(), layout);
    if (!reader) return true;
    std::vector<float> out(layout.elements());
    if (!reader->decode_all(out)) return true;
    return kernels().scan(out.data(), out.size()).first_bad == out.size();
  };
  for (const char* spec :
       {"topk:0.001+qsgd:8", "randk:0.001", "ecuq:0.05+ef", "ecuq:0.1", "w=sign;v=topk:0.01;*=none",
        "w=countsketch:3x400,recovery=own;v=topk:0.01;*=none"}) {
    CAPTURE(spec);
    const auto good = encode(*codec_of(spec), layout, x);
    // Change each byte before the codes, and some bytes of the codes.
    for (std::size_t at = 0; at < good.size(); at += at < 120 ? 1 : good.size() / 20) {
      for (const int flip : {1, 0x80, 0xff}) {
        auto bad = good;
        bad[at] ^= static_cast<std::byte>(flip);
        CHECK(is_refused_or_finite(bad));
      }
      CHECK(is_refused_or_finite({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(at)}));
    }
  }

  // A format that is not allowed in large blocks, and a part that is itself in parts.
  std::vector<float> out(200'000);
  DecodeScratch scratch;
  for (int id = 0; id < 256; ++id) {
    std::vector<std::byte> block(40'000);
    block[0] = static_cast<std::byte>(id);
    const auto decoded = decode_block(block, out, scratch);
    REQUIRE(decoded.has_error());
    CHECK(decoded.error().code() == Errc::corrupt);
  }
  std::vector<std::byte> nested(1 + 4 * sizeof(std::uint32_t) + 4, std::byte{0});
  nested[0] = static_cast<std::byte>(BlockFormat::parts);
  for (std::size_t p = 0; p < 4; ++p) store(MutableBytes(nested), 1 + p * 4, std::uint32_t{1});
  nested[1 + 16] = static_cast<std::byte>(BlockFormat::parts);
  const auto decoded = decode_block(nested, out, scratch);
  REQUIRE(decoded.has_error());
  CHECK(decoded.error().message().find("part 0") != std::string::npos);
}

TEST_CASE("a part that claims bytes behind its block's end is refused before it is read") {
  const std::size_t elements = part_elements_max + 1000;
  const Layout layout = flat_layout(static_cast<std::int64_t>(elements));
  const std::vector<float> x = normal(elements, 3);
  const Block whole{
      .tensor = 0, .elements = static_cast<std::uint32_t>(elements), .first = 0, .flat = 0};
  Selected selected;
  for (std::uint32_t i = 0; i < elements; i += 2) {
    selected.room.push_back(i);
    selected.values.push_back(x[i]);
  }
  selected.indices = selected.room;
  EncodeScratch encode_scratch;
  std::vector<std::byte> block;
  REQUIRE(encode_selected_block(selected, dense_compressor(), layout, whole, 1, {}, encode_scratch,
                                block));
  REQUIRE(static_cast<BlockFormat>(block[0]) == BlockFormat::parts);
  DecodeScratch scratch;
  std::vector<float> out(elements);
  REQUIRE(decode_block(block, out, scratch));
  // The bytes go on behind the block, as those of a payload's next block do. So a part that takes
  // them would decode.
  const auto refusal = [&](std::size_t bytes) {
    const auto decoded = decode_block(Bytes(block).first(bytes), out, scratch);
    return decoded ? std::string("none") : decoded.error().message();
  };
  for (const std::size_t less : {1u, 2u, 100u}) {
    CAPTURE(less);
    CHECK(refusal(block.size() - less).find("part 1 has ") == 0);
  }
  // The last part claims the byte behind it.
  const auto size = load<std::uint32_t>(block, 1 + 4);
  const std::size_t bytes = block.size();
  block.push_back(std::byte{0});
  store(MutableBytes(block), 1 + 4, size + 1);
  CHECK(refusal(bytes) == fmt::format("part 1 has {} bytes, but only {} are left", size + 1, size));
  store(MutableBytes(block), 1 + 4, size - 1);
  CHECK(refusal(bytes) != "none");
}

TEST_CASE("sparse large blocks are within 3% of their entropy" * statistics) {
  struct Case {
    std::int64_t elements;
    double fraction;
  };
  for (const Case& of : {Case{1 << 20, 0.001}, Case{1 << 20, 0.01}, Case{4 << 20, 0.001},
                         Case{4 << 20, 0.005}, Case{4 << 20, 0.01}}) {
    const auto n = static_cast<double>(of.elements);
    const Layout layout = flat_layout(of.elements);
    const std::vector<float> x = normal(layout.elements(), 8);
    const auto index_bits = [&](double share) {
      return n * (-share * std::log2(share) - (1 - share) * std::log2(1 - share));
    };
    const std::string spec = fmt::format("topk:{}", of.fraction);
    CAPTURE(spec);
    CAPTURE(of.elements);
    const auto topk = encode(*codec_of(spec), layout, x);
    const double wanted = index_bits(of.fraction) + of.fraction * n * 32;
    CHECK(static_cast<double>(topk.size()) * 8 < 1.03 * wanted);
    // Now with quantized values: add the levels' entropy.
    const auto payload = encode(*codec_of(spec + "+qsgd:8,bucket=65536"), layout, x);
    std::map<float, double> counts;
    const auto back = decode(payload, layout);
    for (std::size_t begin = 0; begin < back.size(); begin += block_elements_max) {
      const auto block = std::span<const float>(back).subspan(begin, block_elements_max);
      const float scale = kernels().scan(block.data(), block.size()).max_abs;
      for (const float v : block) counts[std::round(v / scale * 8)]++;
    }
    const double not_sent = counts[0];
    counts.erase(0);
    double level_bits = 0;
    for (const auto& [level, count] : counts)
      level_bits -= count * std::log2(count / (n - not_sent));
    CHECK(static_cast<double>(payload.size()) * 8 < 1.03 * (index_bits(of.fraction) + level_bits));
  }
}
