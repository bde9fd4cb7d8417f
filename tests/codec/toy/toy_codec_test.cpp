// SPDX-License-Identifier: Apache-2.0
// Adding a codec takes one file, one row of the table and a line of CMake, and nothing else. This
// program links the library's objects with a copy of the table that has one more row
// (CMakeLists.txt), so it tests a new codec as it will be used.
#include "server/sums/accumulator.hpp"
#include "shared/codec/encode/feedback.hpp"
#include "shared/codec/spec/parser.hpp"

#include "tests/codec/codec_support.hpp"

#include <set>

using namespace fl;
using namespace fl::codec;
using namespace fl::server;
using namespace fl::testing;

namespace {

/// The formats of a payload's blocks.
std::set<int> formats_in(const std::vector<std::byte>& payload, const Layout& layout) {
  SpanSource source(payload);
  const auto reader = PayloadReader::open(source, payload.size(), layout).value();
  std::set<int> formats;
  std::size_t at = payload_header_bytes + reader.blocks() * sizeof(std::uint32_t);
  for (std::uint64_t i = 0; i < reader.blocks(); ++i) {
    formats.insert(std::to_integer<int>(payload.at(at)));
    at += load<std::uint32_t>(payload, payload_header_bytes + i * sizeof(std::uint32_t));
  }
  return formats;
}

}  // namespace

TEST_CASE("the table has the new row, and its specs parse") {
  const auto row = std::ranges::find(codec_rows(), "toy", &CodecRow::name);
  REQUIRE(row != codec_rows().end());
  const auto codec = codec_of(row->example);
  CHECK(codec->canonical() == row->example);
  CHECK(codec->names() == std::vector<std::string>{"toy"});
  CHECK(parse_codec("toy:100,from=2,over=4", 1).value()->canonical() == "toy:2");

  const auto no_levels = parse_codec("toy");
  REQUIRE(no_levels.has_error());
  CHECK(no_levels.error().message() ==
        "codec \"toy\", at its end: toy needs its number of levels here, such as toy:100");
  const auto unknown = parse_codec("toys:1");
  REQUIRE(unknown.has_error());
  CHECK(unknown.error().message().starts_with("codec \"toys:1\": there is no such codec"));
  CHECK(unknown.error().message().find(" toy") != std::string::npos);
}

TEST_CASE("the new codec decodes a vector within half a step") {
  const Layout layout = layout_of({{"w", {300, 100}}, {"b", {7}}, {"large", {70'000}}});
  const std::vector<float> x = normal(layout.elements(), 1);
  const auto codec = codec_of("toy:100");
  const auto payload = encode(*codec, layout, x);
  CHECK(payload.size() <= codec->payload_bytes_max(layout));
  CHECK(formats_in(payload, layout) == std::set{200});
  const auto back = decode(payload, layout);
  const float half_step = kernels().scan(x.data(), x.size()).max_abs / 200 * 1.0001f;
  for (std::size_t i = 0; i < x.size(); ++i) REQUIRE(std::fabs(back[i] - x[i]) <= half_step);
}

TEST_CASE("the new codec works with selectors, rules, error feedback and sums") {
  const Layout layout = layout_of({{"w", {40'000}}, {"w.bias", {2000}}});
  std::vector<float> x = normal(layout.elements(), 2);

  const auto selected = codec_of("topk:0.1+toy:7");
  CHECK(selected->canonical() == "topk:0.1+toy:7");
  const auto payload = encode(*selected, layout, x);
  CHECK(payload.size() <= selected->payload_bytes_max(layout));
  CHECK(formats_in(payload, layout) == std::set{16});
  const auto back = decode(payload, layout);
  CHECK(std::ranges::count_if(back, [](float v) { return v != 0; }) == 4200);

  const auto rules = codec_of("*.bias=none;*=toy:7+ef");
  CHECK(rules->error_feedback());
  CHECK(formats_in(encode(*rules, layout, x), layout) == std::set{0, 200});

  const auto toy = encode(*codec_of("toy:100"), layout, x);
  SpanSource source(toy);
  auto reader = PayloadReader::open(source, toy.size(), layout).value();
  Accumulator sums(layout, 4);
  sums.count(sums.add(reader, 3).value());
  const auto visit = [&](const Accumulator::AddUpdate& again) { return again(reader, 3, nullptr); };
  REQUIRE(sums.settle(visit).has_value());
  std::vector<float> mean(layout.elements());
  sums.mean(0, 3, mean);
  CHECK(mean == decode(toy, layout));
  CHECK(keep_residual(x, reader, x).value().nmse() < 1e-3);
}

TEST_CASE("the new codec refuses bytes that no encoder writes") {
  const Layout layout = flat_layout(300);
  auto payload = encode(*codec_of("toy:100"), layout, normal(300, 3));
  SpanSource source(payload);
  std::vector<float> out(300);
  for (std::size_t bytes = 0; bytes < payload.size(); ++bytes)
    CHECK(PayloadReader::open(source, bytes, layout).has_error());
  const std::size_t block_at = payload_header_bytes + sizeof(std::uint32_t);
  store(payload, block_at + 1, std::numeric_limits<float>::infinity());
  auto reader = PayloadReader::open(source, payload.size(), layout).value();
  CHECK(reader.decode_all(out).has_error());
  payload[block_at] = std::byte{201};
  const auto unknown = reader.decode_all(out);
  REQUIRE(unknown.has_error());
  CHECK(unknown.error().message().find("block format 201 is not known") != std::string::npos);
}
