// SPDX-License-Identifier: Apache-2.0
// The accumulator's sums are exact for any order of updates and any number of threads, and a bad
// update leaves them unchanged.
#include "shared/codec/sums/accumulator.hpp"

#include "tests/codec/codec_support.hpp"

#include "tests/support/distortion.hpp"
#include "tests/support/payload_blocks.hpp"
#include "tests/support/plain_sketch.hpp"

#include <limits>
#include <thread>

using namespace fl;
using namespace fl::testing;

namespace {

constexpr std::size_t updates = 8;
const FixedPoint fixed = choose_fixed_point(1.0, 10'000);

struct Upload {
  std::vector<std::byte> payload;
  std::uint64_t weight;
};

// A layout whose tensors straddle the accumulator's stripes.
const Layout& big_layout() {
  static const Layout layout = layout_of({{"a", {70001}}, {"b", {65536, 2}}, {"c", {3}}});
  return layout;
}

std::vector<Upload> uploads() {
  std::vector<Upload> all;
  for (std::size_t i = 0; i < updates; ++i) {
    const char* spec = i % 3 == 0 ? "none" : i % 3 == 1 ? "fp16" : "qsgd:127";
    all.push_back({encode(*codec_of(spec), big_layout(), normal(big_layout().elements(), i), i,
                          i % 2 == 0 ? block_elements_default : 1000),
                   100 + 17 * i});
  }
  return all;
}

Result<UpdateNorms> add(Accumulator& sums, const Upload& upload, const Layout& layout) {
  SpanSource source(upload.payload);
  auto reader = PayloadReader::open(source, upload.payload.size(), layout).value();
  return sums.add(reader, upload.weight);
}

std::vector<float> mean_of(const Accumulator& sums, const Layout& layout) {
  std::vector<float> out(layout.elements());
  sums.mean(0, static_cast<double>(sums.total_weight()), out);
  return out;
}

// A source that fails after a number of reads.
class FailingSource final : public ByteSource {
 public:
  FailingSource(Bytes bytes, int reads) : inner_(bytes), reads_left_(reads) {}
  Result<void> read(std::uint64_t offset, MutableBytes out) override {
    if (reads_left_-- <= 0) return Error(Errc::io, "the disk is gone");
    return inner_.read(offset, out);
  }

 private:
  SpanSource inner_;
  int reads_left_;
};

}  // namespace

TEST_CASE("a sparse update adds the same bits as the dense update with the same values") {
  const std::vector<float> x = normal(big_layout().elements(), 60);
  for (const char* spec : {"topk:0.001,dense_below=0", "topk:0.01+qsgd:8", "topk:0.12+fp16",
                           "topk:0.3", "randk:0.01", "threshold:3.5", "a=topk:0.01;*=none",
                           "ecuq:0.1+ef", "ecuq:0.25+ef", "topk:0.05+ecuq:0.1,mode=centroid"}) {
    CAPTURE(spec);
    const Upload few{encode(*codec_of(spec), big_layout(), x, 3, block_elements_default), 7};
    const auto values = decode(few.payload, big_layout());
    const Upload all{encode(*codec_of("none"), big_layout(), values), 7};
    Accumulator of_few(big_layout(), fixed);
    Accumulator of_all(big_layout(), fixed);
    const UpdateNorms norms = add(of_few, few, big_layout()).value();
    const UpdateNorms expected = add(of_all, all, big_layout()).value();
    CHECK(norms.l2 == expected.l2);
    CHECK(norms.max_abs == expected.max_abs);
    CHECK(mean_of(of_few, big_layout()) == mean_of(of_all, big_layout()));
  }
  // The same in large blocks.
  for (const char* spec : {"topk:0.001", "randk:0.01", "ecuq:0.1+ef"}) {
    CAPTURE(spec);
    const Upload few{encode(*codec_of(spec), big_layout(), x, 3), 7};
    const Upload all{encode(*codec_of("none"), big_layout(), decode(few.payload, big_layout())), 7};
    Accumulator of_few(big_layout(), fixed);
    Accumulator of_all(big_layout(), fixed);
    CHECK(add(of_few, few, big_layout()).value().max_abs ==
          add(of_all, all, big_layout()).value().max_abs);
    CHECK(mean_of(of_few, big_layout()) == mean_of(of_all, big_layout()));
  }
}

TEST_CASE("a sparse update with a value out of range is refused by name and leaves the sums") {
  std::vector<float> x = normal(big_layout().elements(), 61);
  x[70001 + 66'000] = 1e6f;
  const Upload large{encode(*codec_of("topk:0.01"), big_layout(), x), 7};
  const Upload good{encode(*codec_of("topk:0.01"), big_layout(), normal(x.size(), 62)), 5};
  Accumulator sums(big_layout(), fixed);
  REQUIRE(add(sums, good, big_layout()).has_value());
  const auto before = mean_of(sums, big_layout());
  const auto refused = add(sums, large, big_layout());
  REQUIRE(refused.has_error());
  CHECK(refused.error().code() == Errc::too_large);
  CHECK(refused.error().message().find("b[66000]") != std::string::npos);
  CHECK(mean_of(sums, big_layout()) == before);
  // An infinite fp16 value is corrupt, as in any block.
  auto damaged =
      encode(*codec_of("topk:0.01,dense_below=0+fp16"), big_layout(), normal(x.size(), 63));
  damaged[damaged.size() - 1] = std::byte{0x7c};
  damaged[damaged.size() - 2] = std::byte{0};
  const auto corrupt = add(sums, {damaged, 1}, big_layout());
  REQUIRE(corrupt.has_error());
  CHECK(corrupt.error().code() == Errc::corrupt);
  CHECK(mean_of(sums, big_layout()) == before);
}

TEST_CASE("the mean has the same bits in any order and with any number of threads") {
  const auto all = uploads();
  Accumulator forward(big_layout(), fixed);
  for (const Upload& upload : all) CHECK(add(forward, upload, big_layout()).has_value());
  const auto expected = mean_of(forward, big_layout());

  Accumulator backward(big_layout(), fixed);
  for (std::size_t i = updates; i-- > 0;) CHECK(add(backward, all[i], big_layout()).has_value());
  CHECK(mean_of(backward, big_layout()) == expected);

  Accumulator together(big_layout(), fixed);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = t; i < updates; i += 4) add(together, all[i], big_layout()).value();
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(together.total_weight() == forward.total_weight());
  CHECK(mean_of(together, big_layout()) == expected);

  std::vector<double> exact(big_layout().elements());
  double weight = 0;
  for (const Upload& upload : all) {
    const auto values = decode(upload.payload, big_layout());
    for (std::size_t i = 0; i < exact.size(); ++i) {
      exact[i] += static_cast<double>(upload.weight) * values[i];
    }
    weight += static_cast<double>(upload.weight);
  }
  const double step = std::ldexp(1.0, -fixed.fraction_bits);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double wanted = exact[i] / weight;
    REQUIRE(std::fabs(expected[i] - wanted) <= step + std::fabs(wanted) * 0x1p-23);
  }
}

TEST_CASE("add returns the norms of the decoded update") {
  const Layout layout = layout_of({{"a", {2}}, {"b", {2}}});
  Accumulator sums(layout, fixed);
  const Upload upload = {encode(*codec_of("none"), layout, std::vector<float>{1, -2, 2, 4}), 1};
  const UpdateNorms norms = add(sums, upload, layout).value();
  CHECK(norms.l2 == 5.0);
  CHECK(norms.max_abs == 4.0f);
}

TEST_CASE("an update with a bad block leaves the sums unchanged, whichever block it is") {
  const Layout layout = layout_of({{"a", {600}}, {"b", {600}}});
  const Upload good = {encode(*codec_of("none"), layout, normal(1200, 1), 1, 256), 7};
  Accumulator sums(layout, fixed);
  CHECK(add(sums, good, layout).has_value());
  const auto before = mean_of(sums, layout);

  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), 4096.0f, -1e30f}) {
    for (const std::size_t place : {0u, 255u, 256u, 599u, 600u, 1199u}) {
      std::vector<float> x = normal(1200, 2);
      x[place] = 4.0f;
      Upload upload = {encode(*codec_of("none"), layout, x, 1, 256), 9};
      // Before the value come the prefix, a format id for each block up to its own, and the values
      // before it.
      const std::size_t prefix = payload_header_bytes + 6 * sizeof(std::uint32_t);
      const std::size_t block = place < 600 ? place / 256 : 3 + (place - 600) / 256;
      store(upload.payload, prefix + block + 1 + place * sizeof(float), bad);
      const auto added = add(sums, upload, layout);
      REQUIRE_FALSE(added.has_value());
      CHECK(added.error().message().find(layout.describe(place)) != std::string::npos);
      CHECK(sums.total_weight() == 7);
      CHECK_FALSE(sums.broken());
      CHECK(mean_of(sums, layout) == before);
    }
  }
}

TEST_CASE("weights beyond the limits are refused, and a total weight equal to the limit is not") {
  const Layout layout = flat_layout(4);
  Accumulator sums(layout, choose_fixed_point(1.0, 1024));
  Upload upload = {encode(*codec_of("none"), layout, std::vector<float>{1, 2, 3, 4}), 0};
  CHECK(add(sums, upload, layout).error().code() == Errc::invalid_input);
  upload.weight = update_weight_max + 1;
  CHECK(add(sums, upload, layout).error().code() == Errc::invalid_input);
  upload.weight = 1025;
  CHECK(add(sums, upload, layout).error().code() == Errc::conflict);
  upload.weight = 1000;
  CHECK(add(sums, upload, layout).has_value());
  upload.weight = 25;
  CHECK(add(sums, upload, layout).error().code() == Errc::conflict);
  upload.weight = 24;
  CHECK(add(sums, upload, layout).has_value());
  CHECK(mean_of(sums, layout) == std::vector<float>{1, 2, 3, 4});
  sums.reset(fixed);
  CHECK(sums.total_weight() == 0);
  std::vector<float> zeros(4, 1.0f);
  sums.mean(0, 1.0, zeros);
  CHECK(zeros == std::vector<float>(4));
}

TEST_CASE("if an update can't be read while it is taken back, the sums are broken until reset()") {
  const Layout layout = flat_layout(1000);
  const auto payload = encode(*codec_of("none"), layout, normal(1000, 1), 1, 256);
  Accumulator sums(layout, fixed);
  // Opening takes two reads, and each of the four blocks one more. The source fails after `reads`.
  for (int reads = 2; reads < 6; ++reads) {
    FailingSource source(payload, reads);
    auto reader = PayloadReader::open(source, payload.size(), layout).value();
    const auto failed = sums.add(reader, 5).error();
    CHECK(failed.code() == Errc::io);
    CHECK(failed.message().find("block") != std::string::npos);
    CHECK(sums.broken() == (reads > 2));  // If no block was added, there is nothing to take back.
    if (sums.broken()) CHECK(add(sums, {payload, 5}, layout).error().code() == Errc::internal);
    sums.reset(fixed);
  }
  CHECK(add(sums, {payload, 5}, layout).has_value());
}

TEST_CASE("choose_fixed_point never allows an overflow and leaves at least ten fraction bits") {
  for (const double model_max : {0.0, 1e-30, 1.0, 511.0, 513.0, 1e6, 3e38}) {
    for (std::uint64_t weight = 1; weight <= total_weight_max; weight *= 2) {
      for (const std::uint64_t total : {weight, weight + 1}) {
        const FixedPoint point = choose_fixed_point(model_max, total);
        const double weight_log2 = std::log2(static_cast<double>(point.weight_max));
        CHECK(point.range_log2 + point.fraction_bits + weight_log2 <= 62);
        CHECK(point.range_log2 + point.fraction_bits <= 51);
        CHECK(point.fraction_bits >= 10);
        CHECK(point.range_log2 >= 12);
        CHECK(point.weight_max >= std::min(total, total_weight_max));
      }
    }
  }
  CHECK(choose_fixed_point(1.0, 60'000) == FixedPoint{12, 34, 65536});
  CHECK(choose_fixed_point(1000.0, 1) == FixedPoint{13, 38, 1});
}

TEST_CASE("small updates get a narrow range, and so as many digits in the sums as large ones") {
  CHECK(choose_fixed_point(1.0, 1 << 26, 5.0) == FixedPoint{7, 29, 1 << 26});
  CHECK(choose_fixed_point(1.0, 1 << 26, 4e-5) == FixedPoint{-10, 46, 1 << 26});
  CHECK(choose_fixed_point(1.0, 1 << 26, 1e30) == choose_fixed_point(1.0, 1 << 26));
  CHECK(choose_fixed_point(1.0, 1, 1e-300) == FixedPoint{-60, 111, 1});

  // Updates as FedNova sends them after long local training, from clients with large weights.
  const Layout layout = flat_layout(3);
  const std::vector<float> values{3e-7F, -2e-8F, 1e-9F};
  const auto payload = encode(*codec_of("none"), layout, values);
  Accumulator sums(layout, choose_fixed_point(1.0, 1ull << 34, 1e-6));
  for (int i = 0; i < 4; ++i) CHECK(add(sums, {payload, update_weight_max}, layout).has_value());
  const auto mean = mean_of(sums, layout);
  for (std::size_t i = 0; i < values.size(); ++i)
    CHECK(mean[i] == doctest::Approx(values[i]).epsilon(1e-3));
  const auto large = encode(*codec_of("none"), layout, std::vector<float>{0, 1e-4F, 0});
  Accumulator others(layout, choose_fixed_point(1.0, 1ull << 34, 1e-6));
  const auto refused = add(others, {large, 1}, layout);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().message().find("values must stay below 3.05") != std::string::npos);
}

TEST_CASE("the largest sum that the limits allow is exact") {
  const Layout layout = flat_layout(2);
  const float largest = std::nextafter(4096.0f, 0.0f);
  const auto payload = encode(*codec_of("none"), layout, std::vector<float>{largest, -largest});
  Accumulator sums(layout, choose_fixed_point(1.0, 1ull << 34));
  for (int i = 0; i < 4; ++i) CHECK(add(sums, {payload, update_weight_max}, layout).has_value());
  CHECK(mean_of(sums, layout) == std::vector<float>{largest, -largest});
}

TEST_CASE("large statistics do not reduce the precision of parameters or count in the norms") {
  const Layout layout =
      layout_of({{"w", {3}}, {"bn.running_mean", {2}}, {"bn.running_var", {2}}, {"c.w", {2}}});
  const std::vector<std::vector<float>> values = {
      {1e-4f, -3e-4f, 0, 5e5f, 1e-7f, 9e12f, 1e8f, 2e-4f, 1e-4f},
      {2e-4f, 1e-4f, 0, -5e5f, 3e-7f, 7e12f, 3e8f, -1e-4f, 1e-4f}};
  // The fixed point that the server chooses after updates with such norms.
  Accumulator sums(layout, choose_fixed_point(1, 1 << 21, 5e-4));
  std::vector<Upload> all;
  for (const auto& x : values) {
    all.push_back({encode(*codec_of("none"), layout, x), 1'000'000});
    const auto norms = add(sums, all.back(), layout);
    REQUIRE(norms.has_value());
    CHECK(norms->max_abs < 4e-4f);
    CHECK(norms->l2 < 5e-4);
  }
  const auto mean = mean_of(sums, layout);
  for (std::size_t i = 0; i < mean.size(); ++i) {
    const double expected = (double{values[0][i]} + values[1][i]) / 2;
    CAPTURE(i);
    CHECK(mean[i] == doctest::Approx(expected).epsilon(1e-5));
  }
  std::vector<float> part(4);
  sums.mean(2, 2e6, part);
  CHECK(std::equal(part.begin(), part.end(), mean.begin() + 2));

  // An update with a bad value after the statistics is taken back exactly. A statistic that is out
  // of range or infinite is named.
  for (const auto& [at, value, code] :
       {std::tuple{8, 1.0f, Errc::too_large}, std::tuple{5, 1e14f, Errc::invalid_input},
        std::tuple{6, -std::numeric_limits<float>::infinity(), Errc::corrupt}}) {
    auto x = values[0];
    x[static_cast<std::size_t>(at)] = value;
    const auto refused = add(sums, {encode(*codec_of("none"), layout, values[0]), 7}, layout);
    REQUIRE(refused.has_value());
    std::vector<std::byte> payload = encode(*codec_of("none"), layout, values[0]);
    // Write the value into the payload, because the codec would refuse it. The blocks' values are
    // at the payload's end.
    std::memcpy(payload.data() + payload.size() -
                    (9 - static_cast<std::size_t>(at)) * sizeof(float) - (at < 7 ? 1 : 0) -
                    (at < 5 ? 1 : 0),
                &value, sizeof value);
    const auto before = mean_of(sums, layout);
    const auto bad = add(sums, {payload, 7}, layout);
    REQUIRE(bad.has_error());
    CAPTURE(bad.error().message());
    CHECK(bad.error().code() == code);
    CHECK(mean_of(sums, layout) == before);
  }
  sums.reset(choose_fixed_point(1, 1 << 21));
  REQUIRE(add(sums, all[1], layout).has_value());
  CHECK(mean_of(sums, layout)[5] == doctest::Approx(7e12));
}

namespace {

// Matrices with rows that begin and end inside blocks, with rows longer than a block, and a vector.
const Layout& matrices() {
  static const Layout layout =
      layout_of({{"tall", {3000, 50}}, {"wide", {40, 2000}}, {"b", {77}}, {"s", {30, 4, 5}}});
  return layout;
}

std::vector<Upload> low_rank_uploads() {
  std::vector<Upload> all;
  constexpr const char* specs[] = {"gradzip:2",  "gradzip:3+ef", "gradzip:1",
                                   "powersgd:2", "none",         "*=gradzip:2",
                                   "qsgd:7",     "gradzip:2",    "gradzip:2,projection=own"};
  for (std::uint64_t i = 0; i < std::size(specs); ++i) {
    // Upload 7 is of another round.
    const Seeds seeds(i, i == 7 ? 1234 : 4321);
    std::vector<std::byte> bytes;
    VectorSink sink(bytes);
    codec_of(specs[i])
        ->encode(matrices(), normal(matrices().elements(), 70 + i, 0.01f), seeds, sink,
                 i % 2 == 0 ? block_elements_default : 1000)
        .value();
    all.push_back({std::move(bytes), 1 + 10 * i});
  }
  return all;
}

}  // namespace

TEST_CASE("summing undecoded low-rank factors gives the mean of the decoded updates, to rounding") {
  const auto all = low_rank_uploads();
  Accumulator undecoded(matrices(), fixed, 4321);
  Accumulator decoded(matrices(), fixed);
  for (const Upload& upload : all) {
    const auto norms = add(undecoded, upload, matrices()).value();
    CHECK(norms.l2 == doctest::Approx(add(decoded, upload, matrices())->l2).epsilon(1e-5));
  }
  const auto wanted = mean_of(decoded, matrices());
  const auto mean = mean_of(undecoded, matrices());
  CHECK(mean != wanted);
  CHECK(nmse(wanted, mean) < 1e-11);
  // The mean in pieces has the same bits, wherever it is cut.
  std::vector<float> cut(mean.size());
  for (std::size_t at = 0; at < cut.size();) {
    const std::size_t n = std::min<std::size_t>(cut.size() - at, 1 + at % 777);
    undecoded.mean(at, static_cast<double>(undecoded.total_weight()),
                   std::span(cut).subspan(at, n));
    at += n;
  }
  CHECK(cut == mean);
  // In a round with another seed all uploads are decoded.
  Accumulator others(matrices(), fixed, 99);
  for (const Upload& upload : all) REQUIRE(add(others, upload, matrices()).has_value());
  CHECK(mean_of(others, matrices()) == wanted);
}

TEST_CASE("sums of factors have the same bits in any order, also after refused updates") {
  const auto all = low_rank_uploads();
  Accumulator forward(matrices(), fixed, 4321);
  for (const Upload& upload : all) REQUIRE(add(forward, upload, matrices()).has_value());
  const auto mean = mean_of(forward, matrices());

  Accumulator backward(matrices(), fixed, 7);
  backward.reset(fixed, 4321);
  for (auto upload = all.rbegin(); upload != all.rend(); ++upload) {
    REQUIRE(add(backward, *upload, matrices()).has_value());
    // Damage the end, which is in the last tensor's rows.
    auto bad = *upload;
    bad.payload.back() = std::byte{0x7f};
    bad.payload[bad.payload.size() - 2] = std::byte{0xc0};
    if (&*upload == &all[5]) CHECK(add(backward, bad, matrices()).has_error());
    // An update with a rank that no other update has, and too large in its last tensor.
    std::vector<float> x = normal(matrices().elements(), 90, 0.01f);
    std::fill(x.end() - 600, x.end(), 1e6f);
    std::vector<std::byte> bytes;
    VectorSink sink(bytes);
    codec_of("gradzip:3+ef")->encode(matrices(), x, Seeds(1, 4321), sink, 1000).value();
    const auto refused = add(backward, {bytes, 3}, matrices());
    REQUIRE(refused.has_error());
    CHECK(refused.error().code() == Errc::too_large);
    CHECK(refused.error().message().find("the factor of the row at s[0]") != std::string::npos);
  }
  CHECK(mean_of(backward, matrices()) == mean);

  Accumulator together(matrices(), fixed, 4321);
  std::vector<std::thread> threads;
  for (const Upload& upload : all) {
    threads.emplace_back([&] { static_cast<void>(add(together, upload, matrices()).value()); });
  }
  for (auto& thread : threads) thread.join();
  CHECK(mean_of(together, matrices()) == mean);

  // An update whose decoded values are just in range is not too large as factors, either.
  std::vector<float> largest(matrices().elements(), 4095.0f);
  std::vector<std::byte> bytes;
  VectorSink sink(bytes);
  codec_of("gradzip:1+ef")->encode(matrices(), largest, Seeds(1, 4321), sink).value();
  CHECK(add(together, {bytes, 1}, matrices()).has_value());
}

namespace {

// Tensors of three blocks, of one block with a small sketch, of one block too short for a sketch,
// and of one short block with a sketch.
const Layout& sketched_layout() {
  static const Layout layout =
      layout_of({{"a", {2 * 65536 + 700}}, {"b", {50, 30}}, {"c", {77}}, {"d", {300}}});
  return layout;
}
constexpr const char* sketched_codec = "countsketch:5x600,k=200";

// The sketches of the first three uploads can be added undecoded.
std::vector<Upload> sketched_uploads() {
  std::vector<Upload> all;
  constexpr const char* specs[] = {sketched_codec,
                                   "*=countsketch:5x600,k=200,dense_below=0",
                                   sketched_codec,
                                   sketched_codec,
                                   "countsketch:3x600,k=200",
                                   "countsketch:7x600,k=200",
                                   "countsketch:5x1200,k=200",
                                   "countsketch:5x600,k=200,recovery=own",
                                   "none",
                                   "qsgd:7"};
  for (std::uint64_t i = 0; i < std::size(specs); ++i) {
    std::vector<float> x = normal(sketched_layout().elements(), 70 + i, 0.01f);
    for (float& v : x) v = v * v * v * 1e4f;
    all.push_back({encode(*codec_of(specs[i]), sketched_layout(), x, i,
                          i == 3 ? 1000 : block_elements_default),
                   1 + 10 * i});
  }
  return all;
}

SummedSketches sketches() { return codec_of(sketched_codec)->summed_sketches(sketched_layout()); }

}  // namespace

TEST_CASE("the sum of undecoded sketches, read once, gives the same mean as a simple reference") {
  const auto all = sketched_uploads();
  const Layout& layout = sketched_layout();
  Accumulator undecoded(layout, fixed, std::nullopt, sketches());
  Accumulator decoded(layout, fixed);  // For the other uploads.
  std::map<std::uint64_t, PlainSketch> plain;
  double whole = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Upload& upload = all[i];
    const auto norms = add(undecoded, upload, layout).value();
    whole += static_cast<double>(upload.weight);
    CAPTURE(i);
    if (i > 2) {
      CHECK(norms.l2 == add(decoded, upload, layout)->l2);
      continue;
    }
    // The cells give an estimate of the update's norm.
    std::vector<float> alone(layout.elements());
    SpanSource source(upload.payload);
    auto reader = PayloadReader::open(source, upload.payload.size(), layout).value();
    reader.decode_all(alone).value();
    double squares = 0;
    for (const float v : alone) squares += static_cast<double>(v) * v;
    CHECK(norms.l2 == doctest::Approx(std::sqrt(squares)).epsilon(0.3));
    for_each_block(layout, upload.payload, [&](const Block& block, Bytes bytes) {
      if (block.elements < 256) return;
      REQUIRE(bytes[0] == static_cast<std::byte>(BlockFormat::countsketch_sum));
      plain[block.flat].add(bytes, block.elements, fixed.fraction_bits, upload.weight);
    });
  }
  REQUIRE(plain.size() == 5);
  std::vector<float> wanted(layout.elements());
  decoded.mean(0, whole, wanted);
  const auto [c_begin, c_count] =
      std::pair(layout.tensors()[2].offset, layout.tensors()[2].elements);
  for (const auto& [flat, of_it] : plain) {
    const auto recovered = of_it.recovered(fixed.fraction_bits, whole);
    CHECK(std::ranges::count_if(recovered, [](float v) { return v != 0; }) > 0);
    for (std::size_t i = 0; i < recovered.size(); ++i) wanted[flat + i] += recovered[i];
  }
  auto mean = mean_of(undecoded, layout);
  // A tensor without a sketch is decoded in every update.
  Accumulator dense(layout, fixed);
  for (const Upload& upload : all) REQUIRE(add(dense, upload, layout).has_value());
  const auto of_dense = mean_of(dense, layout);
  CHECK(std::equal(mean.begin() + c_begin, mean.begin() + c_begin + c_count,
                   of_dense.begin() + c_begin));
  std::fill_n(wanted.begin() + c_begin, c_count, 0.0f);
  auto sketched_mean = mean;
  std::fill_n(sketched_mean.begin() + c_begin, c_count, 0.0f);
  CHECK(sketched_mean == wanted);
  // The mean in pieces has the same bits, wherever it is cut.
  std::vector<float> cut(mean.size());
  for (std::size_t at = 0; at < cut.size();) {
    const std::size_t n = std::min<std::size_t>(cut.size() - at, 1 + at % 77777);
    undecoded.mean(at, whole, std::span(cut).subspan(at, n));
    at += n;
  }
  CHECK(cut == mean);
}

TEST_CASE("sums of sketches have the same bits in any order, also after refused updates") {
  const auto all = sketched_uploads();
  const Layout& layout = sketched_layout();
  Accumulator forward(layout, fixed, std::nullopt, sketches());
  for (const Upload& upload : all) REQUIRE(add(forward, upload, layout).has_value());
  const auto mean = mean_of(forward, layout);

  Accumulator backward(layout, fixed);
  for (const Upload& upload : all) REQUIRE(add(backward, upload, layout).has_value());
  CHECK(mean_of(backward, layout) != mean);
  backward.reset(fixed, std::nullopt, sketches());
  // mean() does not return values of an earlier state.
  const auto divided = [&] {
    std::vector<float> out(700);
    backward.mean(2 * 65536, 100, out);
    return out;
  };
  const auto nothing = divided();
  CHECK(nothing == std::vector<float>(700));
  REQUIRE(add(backward, all[0], layout).has_value());
  const auto first = divided();
  CHECK(first != nothing);
  REQUIRE(add(backward, all[2], layout).has_value());
  CHECK(divided() != first);
  backward.reset(fixed, std::nullopt, sketches());
  CHECK(divided() == nothing);
  for (auto upload = all.rbegin(); upload != all.rend(); ++upload) {
    REQUIRE(add(backward, *upload, layout).has_value());
    // An update that is too large in its last tensor.
    std::vector<float> x = normal(layout.elements(), 90, 0.01f);
    x.back() = 1e6f;
    const auto bad = encode(*codec_of(sketched_codec), layout, x, 3);
    const auto refused = add(backward, {bad, 3}, layout);
    REQUIRE(refused.has_error());
    CHECK(refused.error().code() == Errc::too_large);
    CHECK(refused.error().message().find("the sketch of the values from d[0] on has") !=
          std::string::npos);
  }
  CHECK(mean_of(backward, layout) == mean);

  Accumulator together(layout, fixed, std::nullopt, sketches());
  std::vector<std::thread> threads;
  for (const Upload& upload : all)
    threads.emplace_back([&] { static_cast<void>(add(together, upload, layout).value()); });
  for (auto& thread : threads) thread.join();
  CHECK(mean_of(together, layout) == mean);
}

TEST_CASE("summed_sketches says for each tensor whether its sketches can be summed undecoded") {
  const auto of = [](const char* spec) {
    return codec_of(spec)->summed_sketches(sketched_layout());
  };
  CHECK(of("none").of_tensor.empty());
  CHECK(of("countsketch:5x600+ef").of_tensor.empty());
  CHECK(of("countsketch:5x600,recovery=own").of_tensor.empty());
  const auto some = of("b=countsketch:3x16;a=topk:0.5;*=countsketch:5x600,k=2");
  CHECK(some.block_elements == block_elements_default);
  REQUIRE(some.of_tensor.size() == 4);
  CHECK_FALSE(some.of_tensor[0].has_value());
  CHECK(some.of_tensor[1] == SketchShape{.rows = 3, .columns = 16});
  CHECK_FALSE(some.of_tensor[2].has_value());  // Small tensors go dense.
  // With another sparse rule blocks are large, and a sketch would be coded in parts.
  CHECK(of("b=countsketch:3x16;*=topk:0.01").block_elements == block_elements_max);
  CHECK(of("b=topk:0.01;*=countsketch:5x600").block_elements == block_elements_default);
}
