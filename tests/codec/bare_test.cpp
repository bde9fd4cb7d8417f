// SPDX-License-Identifier: Apache-2.0
// Tensors of one or two elements are bare: their values and nothing else. Payloads of the form
// before, in which they are blocks like others, are still read.
#include "tests/codec/codec_support.hpp"
#include "tests/support/payload_blocks.hpp"

#include "server/sums/accumulator.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>

using namespace fl;
using namespace fl::server;
using namespace fl::testing;

namespace {

constexpr std::int64_t scalars = 10'000;

/// Tensors of one or two elements between larger ones, and an empty one.
const Layout& mixed() {
  static const Layout layout = layout_of({{"gain", {}},
                                          {"a.weight", {70, 1000}},
                                          {"a.bias", {2}},
                                          {"empty", {0}},
                                          {"b.weight", {3}},
                                          {"b.bias", {1}},
                                          {"c.weight", {40, 50}},
                                          {"c.scale", {1, 2}}});
  return layout;
}

bool is_bare(const Block& block) {
  const std::uint64_t elements = mixed().tensors()[block.tensor].elements;
  return elements == 1 || elements == 2;
}

/// Writes the payload in the earlier form.
std::vector<std::byte> without_bare(const std::vector<std::byte>& payload) {
  const auto blocks = placed_blocks(mixed(), payload);
  std::vector<std::byte> out(payload.begin(), payload.begin() + payload_header_bytes);
  out[3] = std::byte{'3'};
  for (const PlacedBlock& placed : blocks) {
    const auto size = static_cast<std::uint32_t>(placed.bytes + (placed.is_bare ? 1 : 0));
    const auto bytes = std::as_bytes(std::span(&size, 1));
    out.insert(out.end(), bytes.begin(), bytes.end());
  }
  for (const PlacedBlock& placed : blocks) {
    if (placed.is_bare) out.push_back(static_cast<std::byte>(BlockFormat::fp32));
    const auto block = std::span(payload).subspan(placed.begin, placed.bytes);
    out.insert(out.end(), block.begin(), block.end());
  }
  return out;
}

}  // namespace

TEST_CASE("10,000 scalars take 4 bytes each with every codec, and lose nothing") {
  std::vector<TensorSpec> specs;
  for (std::int64_t i = 0; i < scalars; ++i) specs.push_back({fmt::format("scale.{:05}", i), {}});
  const Layout layout = layout_of(specs);
  const std::vector<float> x = normal(layout.elements(), 3);
  for (const std::string& spec : specs_to_test()) {
    CAPTURE(spec);
    const auto payload = encode(*codec_of(spec), layout, x);
    CHECK(payload.size() == payload_header_bytes + scalars * sizeof(float));
    CHECK(decode(payload, layout) == x);
  }
}

TEST_CASE("bare tensors between others have no size in the table and lose nothing") {
  const std::vector<float> x = normal(mixed().elements(), 4);
  for (const std::string& spec : specs_to_test()) {
    CAPTURE(spec);
    const auto codec = codec_of(spec);
    const auto payload = encode(*codec, mixed(), x);
    CHECK(payload[3] == std::byte{'4'});
    CHECK(payload.size() <= codec->payload_bytes_max(mixed()));
    const auto back = decode(payload, mixed());
    for (const PlacedBlock& placed : placed_blocks(mixed(), payload)) {
      CHECK(placed.is_bare == is_bare(placed.block));
      if (!placed.is_bare) continue;
      CHECK(placed.bytes == placed.block.elements * sizeof(float));
      for (std::size_t i = 0; i < placed.block.elements; ++i)
        CHECK(back[placed.block.flat + i] == x[placed.block.flat + i]);
    }
    CHECK(decode(without_bare(payload), mixed()) == back);
  }
}

TEST_CASE("both forms add up to the same sums") {
  const std::vector<float> x = normal(mixed().elements(), 5);
  for (const char* const spec : {"none", "topk:0.01", "gradzip:1", "countsketch:5x2000"}) {
    CAPTURE(std::string(spec));
    const auto codec = codec_of(spec);
    const auto payload = encode(*codec, mixed(), x);
    std::vector<std::vector<float>> means;
    for (const auto& form : {payload, without_bare(payload)}) {
      Accumulator sums(mixed(), 1, std::nullopt, codec->summed_sketches(mixed()));
      SpanSource source(form);
      auto reader = PayloadReader::open(source, form.size(), mixed()).value();
      sums.count(sums.add(reader, 1).value());
      const auto settled = sums.settle(
          [&](const Accumulator::AddUpdate& again) { return again(reader, 1, nullptr); });
      REQUIRE(settled.has_value());
      sums.mean(0, 1, means.emplace_back(mixed().elements()));
    }
    CHECK(means.front() == means.back());
    CHECK(means.front().front() == x.front());
  }
}

TEST_CASE("models without so small tensors have payloads as before") {
  const Layout layout = layout_of({{"w", {300}}, {"empty", {0}}, {"b", {3}}});
  for (const std::string& spec : specs_to_test())
    CHECK(encode(*codec_of(spec), layout, normal(303, 6))[3] == std::byte{'3'});
}

TEST_CASE("a bare value that is not finite is named, by both ends") {
  std::vector<float> x = normal(mixed().elements(), 7);
  auto payload = encode(*codec_of("qsgd:8"), mixed(), x);
  const auto blocks = placed_blocks(mixed(), payload);
  const auto bias = std::ranges::find_if(blocks, [](const PlacedBlock& placed) {
    return mixed().tensors()[placed.block.tensor].name == "a.bias";
  });
  REQUIRE(bias != blocks.end());
  const float bad = std::numeric_limits<float>::infinity();
  store(payload, bias->begin + sizeof(float), bad);
  SpanSource source(payload);
  auto reader = PayloadReader::open(source, payload.size(), mixed()).value();
  const auto decoded = reader.decode_all(x);
  REQUIRE_FALSE(decoded.has_value());
  CHECK(decoded.error().code() == Errc::corrupt);
  CHECK(decoded.error().message().find("a.bias[1] is inf") != std::string::npos);

  x = normal(mixed().elements(), 7);
  x[bias->block.flat + 1] = bad;
  std::vector<std::byte> bytes;
  VectorSink sink(bytes);
  const auto encoded = codec_of("qsgd:8")->encode(mixed(), x, 1, sink);
  REQUIRE_FALSE(encoded.has_value());
  CHECK(encoded.error().message().find("a.bias[1]") != std::string::npos);
}

TEST_CASE("a payload that is too short for its bare tensors is refused") {
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 5; ++i) specs.push_back({fmt::format("s{}", i), {2}});
  const Layout layout = layout_of(specs);
  const auto payload = encode(*codec_of("none"), layout, normal(10, 8));
  for (std::size_t bytes = 0; bytes < payload.size(); ++bytes) {
    const Bytes part = Bytes(payload).first(bytes);
    SpanSource source(part);
    CHECK_FALSE(PayloadReader::open(source, bytes, layout).has_value());
  }
}
