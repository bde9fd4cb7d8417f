// SPDX-License-Identifier: Apache-2.0
// Count sketches: which values are recovered, that decoding is never worse than zeros, that
// sketches add up, and that damaged ones are refused.
#include "tests/codec/codec_support.hpp"

#include "kernels/generic/sketch.hpp"
#include "shared/codec/blocks/sketch_block.hpp"
#include "shared/codec/encode/feedback.hpp"
#include "tests/support/distortion.hpp"

#include <limits>

using namespace fl;
using namespace fl::codec;
using namespace fl::testing;

namespace {

constexpr std::size_t sketched = 65536;
// Bytes of a block's head with its format id, for recovery=own and for a sketch that is summed.
constexpr std::size_t head_bytes = 16;
constexpr std::size_t summed_head_bytes = 12;

/// Zeros with a normal value at every `stride`-th index from `first` on.
std::vector<float> spikes(std::size_t first, std::size_t stride, std::uint64_t seed) {
  const std::vector<float> values = normal(sketched, seed);
  std::vector<float> x(sketched);
  for (std::size_t i = first; i < sketched; i += stride) x[i] = values[i];
  return x;
}

/// The only block of the payload.
std::vector<std::byte> block_of(const std::string& spec, std::span<const float> x,
                                std::uint64_t seed) {
  const Layout layout = flat_layout(static_cast<std::int64_t>(x.size()));
  const auto payload = encode(*codec_of(spec), layout, x, seed);
  const std::size_t prefix = payload_header_bytes + sizeof(std::uint32_t);
  return {payload.begin() + static_cast<std::ptrdiff_t>(prefix), payload.end()};
}

std::vector<float> cells_of(const std::vector<std::byte>& block) {
  std::vector<float> cells(load<std::uint8_t>(block, 1) *
                           std::size_t{load<std::uint16_t>(block, 2)});
  DecodeScratch scratch;
  const auto head = block[0] == std::byte{39} ? summed_head_bytes : head_bytes;
  decode_block(Bytes(block).subspan(head), cells, scratch).value();
  return cells;
}

std::vector<float> cubes(std::size_t count, std::uint64_t seed) {
  std::vector<float> x = normal(count, seed);
  for (float& v : x) v = v * v * v;
  return x;
}

}  // namespace

TEST_CASE("a few values among zeros are recovered exactly") {
  // 66 values in 7 rows of 4,000 cells: no value shares three of its cells with others.
  const std::vector<float> x = spikes(7, 1000, 1);
  for (const std::string recovery : {"", ",recovery=own"}) {
    CAPTURE(recovery);
    DecodeScratch scratch;
    std::vector<float> back(sketched);
    decode_block(block_of("countsketch:7x4000" + recovery, x, 1), back, scratch).value();
    CHECK(back == x);
    // One large value in weak noise is recovered.
    std::vector<float> noisy = normal(sketched, 2, 0.01f);
    noisy[40'000] = -5;
    decode_block(block_of("countsketch:5x4000,k=1" + recovery, noisy, 1), back, scratch).value();
    std::vector<float> alone(sketched);
    alone[40'000] = -5;
    CHECK(back == alone);
  }
}

TEST_CASE("an estimate is the median over the rows, or 0 if its neighbour has another sign") {
  const auto estimate = [](std::vector<float> read) {
    return sketch::estimate(read.data(), read.size());
  };
  CHECK(estimate({3, 1, 2}) == 2);
  CHECK(estimate({-3, -1, -2}) == -2);
  CHECK(estimate({3, 0, 2}) == 0);
  CHECK(estimate({3, -1, 2}) == 0);
  CHECK(estimate({-3, 1, -2}) == 0);
  CHECK(estimate({0, 0, 0}) == 0);
  CHECK(estimate({5, 0, 2, 0, 3}) == 0);
  CHECK(estimate({5, 1, 2, 0, 3}) == 2);
  CHECK(estimate({-5, -1, 7, -2, -3}) == -2);
  // The estimates of a whole vector are those of its elements alone.
  const auto block = block_of("countsketch:5x300,k=250", cubes(sketched, 7), 1);
  const auto cells = cells_of(block);
  SketchScratch room;
  const SketchCells sketch{
      .shape = {.rows = 5, .columns = 300}, .key = load<std::uint64_t>(block, 4), .cells = cells};
  const auto all = sketch_estimates(sketch, sketched, room);
  std::size_t zeros = 0;
  for (std::size_t i = 0; i < sketched; ++i) {
    const float one = sketch::estimate_of(sketch.key, i, cells.data(), 5, 300);
    REQUIRE(all[i] == one);
    zeros += one == 0;
  }
  CHECK(zeros > sketched / 2);
  CHECK(zeros < sketched);
}

TEST_CASE("the sum of two clients' sketches is the sketch of their sum, whatever their seeds") {
  const std::vector<float> a = spikes(7, 1000, 1);
  const std::vector<float> b = spikes(400, 1200, 2);
  std::vector<float> both(sketched);
  for (std::size_t i = 0; i < sketched; ++i) both[i] = a[i] + b[i];
  const auto of_a = block_of("countsketch:5x4000", a, 1);
  const auto of_b = block_of("countsketch:5x4000", b, 2);
  const auto of_both = block_of("countsketch:5x4000", both, 3);
  // The head: format id, sizes and key.
  CHECK(std::equal(of_both.begin(), of_both.begin() + summed_head_bytes, of_a.begin()));
  CHECK(std::equal(of_both.begin(), of_both.begin() + summed_head_bytes, of_b.begin()));
  float largest = 0;
  const auto cells_a = cells_of(of_a);
  const auto cells_b = cells_of(of_b);
  const auto cells = cells_of(of_both);
  for (std::size_t i = 0; i < cells.size(); ++i)
    largest = std::max(largest, std::fabs(cells_a[i] + cells_b[i] - cells[i]));
  CHECK(largest < 1e-6f);
}

TEST_CASE("decoding a sketch never loses more than zeros would, and less with heavy tails") {
  for (const char* spec : {"countsketch:3x100,recovery=own", "countsketch:3x10000,k=10000+ef",
                           "countsketch:5x4000+ef", "countsketch:15x2000,recovery=own"}) {
    CAPTURE(spec);
    for (const std::size_t count : {256ul, 1000ul, sketched}) {
      const Layout layout = flat_layout(static_cast<std::int64_t>(count));
      std::vector<std::vector<float>> all = {normal(count, 1), laplace(count, 2), cubes(count, 3),
                                             std::vector<float>(count, 1.0f)};
      for (const auto& x : all) {
        CHECK(nmse(x, decode(encode(*codec_of(spec), layout, x), layout)) <= 1);
      }
    }
  }
  const Layout layout = flat_layout(sketched);
  const auto loss = [&](const std::string& spec) {
    return nmse(cubes(sketched, 3),
                decode(encode(*codec_of(spec), layout, cubes(sketched, 3)), layout));
  };
  // For cubes of normal values the 500 largest are recovered well.
  for (const std::string recovery : {"", "+ef"}) {
    CHECK(loss("countsketch:5x4000" + recovery) < 0.75);
    // 0.0076 selects 500 of 65,536, rounded down.
    CHECK(loss("countsketch:5x4000" + recovery) > loss("topk:0.0076"));
    CHECK(loss("countsketch:15x2000,k=500" + recovery) <
          loss("countsketch:5x2000,k=500" + recovery));
  }
  // A block of zeros takes three bytes, besides the head of a sketch that is summed.
  const std::vector<float> zeros(sketched);
  CHECK(block_of("countsketch:5x4000+ef", zeros, 1).size() == 3);
  CHECK(block_of("countsketch:5x4000", zeros, 1).size() == summed_head_bytes + 3);
}

TEST_CASE("a block's cells and k are proportional to its size, and short blocks go dense") {
  const auto block = [](std::size_t count) {
    return block_of("countsketch:5x4000", cubes(count, 4), 1);
  };
  CHECK(cells_of(block(sketched)).size() == 5 * 4000);
  CHECK(cells_of(block(sketched / 2)).size() == 5 * 2000);
  CHECK(cells_of(block(1000)).size() == 5 * 62);  // 61.04, rounded up.
  CHECK(cells_of(block(256)).size() == 5 * 16);
  CHECK(block(255) == [] {
    const auto x = cubes(255, 4);
    const auto payload = encode(*codec_of("lossless"), flat_layout(255), x);
    return std::vector<std::byte>(payload.begin() + payload_header_bytes + 4, payload.end());
  }());
  // At most an eighth of the cells are not 0, and zeros are not sent.
  const auto cells = cells_of(block(sketched));
  const auto sent = cells.size() - static_cast<std::size_t>(std::ranges::count(cells, 0.0f));
  CHECK(sent * 8 < cells.size());
  CHECK(block(sketched).size() < sent * 4);
}

TEST_CASE("with error feedback the mean of the sketches approaches the update as 1 / rounds" *
          statistics) {
  const Layout layout = flat_layout(4096);
  const std::vector<float> x = cubes(4096, 5);
  const auto loss_after = [&](std::uint64_t rounds) {
    std::vector<float> residual(x.size());
    std::vector<float> sent(x.size());
    for (std::uint64_t round = 1; round <= rounds; ++round) {
      std::vector<float> update = x;
      add_residual(update, residual);
      const auto payload = encode(*codec_of("countsketch:5x4000+ef"), layout, update, round);
      SpanSource source(payload);
      auto reader = PayloadReader::open(source, payload.size(), layout).value();
      keep_residual(update, reader, residual).value();
      const auto decoded = decode(payload, layout);
      for (std::size_t i = 0; i < sent.size(); ++i) sent[i] += decoded[i];
    }
    for (float& v : sent) v /= static_cast<float>(rounds);
    return nmse(x, sent);
  };
  const double after_200 = loss_after(200);
  CHECK(after_200 < 0.05);
  CHECK(loss_after(800) < after_200 / 8);
}

TEST_CASE("every kernel row makes the same sketch and decodes it to the same values") {
  const Layout layout = layout_of({{"a", {300, 333}}, {"b", {999}}});
  const std::vector<float> x = cubes(layout.elements(), 8);
  check_rows_agree("countsketch:7x3000", layout, x);
  check_rows_agree("countsketch:7x3000,recovery=own", layout, x);
}

TEST_CASE("values whose sums are not finite are refused, and the first of them is named") {
  const Layout layout = flat_layout(1000);
  const std::vector<float> huge(1000, 3e38f);
  std::vector<std::byte> bytes;
  VectorSink sink(bytes);
  const auto refused = codec_of("countsketch:3x8,k=8")->encode(layout, huge, 1, sink);
  // With so few cells only one value is sketched, so there is no sum.
  CHECK(refused.has_value());
  const auto summed = codec_of("countsketch:3x10000,k=10000")->encode(layout, huge, 1, sink);
  REQUIRE_FALSE(summed.has_value());
  CHECK(summed.error().code() == Errc::invalid_input);
  CHECK(summed.error().message().find("w[0]") != std::string::npos);
}

TEST_CASE("a sketch's sizes and values are checked before they are used") {
  const auto good = block_of("countsketch:5x4000,recovery=own", cubes(1000, 6), 1);
  std::vector<float> out(1000);
  DecodeScratch scratch;
  const auto reason = [&](const std::vector<std::byte>& block) {
    const auto decoded = decode_block(block, out, scratch);
    REQUIRE_FALSE(decoded.has_value());
    CHECK(decoded.error().code() == Errc::corrupt);
    return decoded.error().message();
  };
  const auto with = [&]<class T>(std::size_t at, T value) {
    auto bad = good;
    store(bad, at, value);
    return bad;
  };
  CHECK(decode_block(good, out, scratch).has_value());
  CHECK(reason(with(1, std::uint8_t{4})) == "a sketch of 4 rows of 62 cells");
  CHECK(reason(with(1, std::uint8_t{17})) == "a sketch of 17 rows of 62 cells");
  CHECK(reason(with(1, std::uint8_t{0})) == "a sketch of 0 rows of 62 cells");
  CHECK(reason(with(2, std::uint16_t{0})) == "a sketch of 5 rows of 0 cells");
  CHECK(reason(with(2, std::uint16_t{65535})) == "a sketch of 5 rows of 65535 cells");
  for (const float least : {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    CHECK(reason(with(12, least)).starts_with("estimates count from"));
  }
  auto plain = good;  // All cells as fp32.
  plain.resize(head_bytes + 1 + 5 * 62 * 4);
  plain[head_bytes] = static_cast<std::byte>(BlockFormat::fp32);
  CHECK(decode_block(plain, out, scratch).has_value());
  store(plain, head_bytes + 1 + 4 * 77, std::numeric_limits<float>::infinity());
  CHECK(reason(plain) == "a cell of the sketch is not finite");
  auto nested = good;
  nested.resize(head_bytes);
  nested.insert(nested.end(), good.begin(), good.end());
  CHECK(reason(nested) == "block format 30 where fp32 is expected");
  CHECK(reason({good.begin(), good.begin() + 15}) == "the sketch's head is cut off");
  auto longer = good;
  longer.push_back(std::byte{0});
  CHECK_FALSE(reason(longer).empty());

  const auto summed = block_of("countsketch:5x4000", cubes(1000, 6), 1);
  CHECK(decode_block(summed, out, scratch).has_value());
  auto one_row = summed;
  one_row[1] = std::byte{1};
  CHECK(reason(one_row) == "a sketch of 1 rows of 62 cells");
  one_row[1] = std::byte{4};
  CHECK(reason(one_row) == "a sketch of 4 rows of 62 cells");
  CHECK(reason({summed.begin(), summed.begin() + 11}) == "the sketch's head is cut off");
}
