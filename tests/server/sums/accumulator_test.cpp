// SPDX-License-Identifier: Apache-2.0
// The accumulator's sums are exact for any order of updates and any number of threads, and a bad
// update leaves them unchanged.
#include "server/sums/accumulator.hpp"

#include "tests/codec/codec_support.hpp"

#include "tests/support/distortion.hpp"
#include "tests/support/payload_blocks.hpp"
#include "tests/support/plain_sketch.hpp"

#include <limits>
#include <thread>

using namespace fl;
using namespace fl::server;
using namespace fl::testing;

namespace {

constexpr std::size_t updates = 8;
constexpr std::uint64_t expected_weight = 10'000;

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

/// Sums, and the updates that are in them.
class Sums {
 public:
  explicit Sums(const Layout& layout, std::uint64_t expected = expected_weight,
                std::optional<std::uint64_t> shared_seed = std::nullopt,
                SummedSketches sketches = {})
      : layout_(layout), accumulator(layout, expected, shared_seed, std::move(sketches)) {}

  Result<UpdateNorms> add(const Upload& upload) {
    SpanSource source(upload.payload);
    auto reader = PayloadReader::open(source, upload.payload.size(), layout_).value();
    FL_TRY(const auto added, accumulator.add(reader, upload.weight));
    accumulator.count(added);
    const std::lock_guard lock(lock_);
    uploads_.push_back(upload);
    return added.norms;
  }

  void settle() {
    const auto visit = [this](const Accumulator::AddUpdate& again) -> Result<void> {
      for (const Upload& upload : uploads_) {
        SpanSource source(upload.payload);
        auto reader = PayloadReader::open(source, upload.payload.size(), layout_).value();
        FL_CHECK(again(reader, upload.weight, nullptr));
        ++read_again;
      }
      return {};
    };
    REQUIRE(accumulator.settle(visit).has_value());
  }

  std::vector<float> mean() {
    settle();
    std::vector<float> out(layout_.elements());
    accumulator.mean(0, static_cast<double>(accumulator.total_weight()), out);
    return out;
  }

  void reset(std::optional<std::uint64_t> shared_seed = std::nullopt,
             SummedSketches sketches = {}) {
    uploads_.clear();
    accumulator.reset(expected_weight, shared_seed, std::move(sketches));
  }

 private:
  const Layout& layout_;
  std::mutex lock_;
  std::vector<Upload> uploads_;

 public:
  Accumulator accumulator;
  int read_again = 0;  // Updates that settle() read.
};

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
    Sums of_few(big_layout(), expected_weight);
    Sums of_all(big_layout(), expected_weight);
    const UpdateNorms norms = of_few.add(few).value();
    const UpdateNorms expected = of_all.add(all).value();
    CHECK(norms.l2 == expected.l2);
    CHECK(norms.max_abs == expected.max_abs);
    CHECK(of_few.mean() == of_all.mean());
  }
  // Now in large blocks.
  for (const char* spec : {"topk:0.001", "randk:0.01", "ecuq:0.1+ef"}) {
    CAPTURE(spec);
    const Upload few{encode(*codec_of(spec), big_layout(), x, 3), 7};
    const Upload all{encode(*codec_of("none"), big_layout(), decode(few.payload, big_layout())), 7};
    Sums of_few(big_layout(), expected_weight);
    Sums of_all(big_layout(), expected_weight);
    CHECK(of_few.add(few).value().max_abs == of_all.add(all).value().max_abs);
    CHECK(of_few.mean() == of_all.mean());
  }
}

TEST_CASE("a damaged sparse update leaves the sums") {
  const Upload good{
      encode(*codec_of("topk:0.01"), big_layout(), normal(big_layout().elements(), 62)), 5};
  Sums sums(big_layout());
  REQUIRE(sums.add(good).has_value());
  const auto before = sums.mean();
  // An infinite fp16 value is corrupt, as in any block.
  auto damaged = encode(*codec_of("topk:0.01,dense_below=0+fp16"), big_layout(),
                        normal(big_layout().elements(), 63));
  damaged[damaged.size() - 1] = std::byte{0x7c};
  damaged[damaged.size() - 2] = std::byte{0};
  const auto corrupt = sums.add({damaged, 1});
  REQUIRE(corrupt.has_error());
  CHECK(corrupt.error().code() == Errc::corrupt);
  CHECK(sums.mean() == before);
}

TEST_CASE("the mean has the same bits in any order and with any number of threads") {
  const auto all = uploads();
  Sums forward(big_layout(), expected_weight);
  for (const Upload& upload : all) CHECK(forward.add(upload).has_value());
  const auto expected = forward.mean();

  Sums backward(big_layout(), expected_weight);
  for (std::size_t i = updates; i-- > 0;) CHECK(backward.add(all[i]).has_value());
  CHECK(backward.mean() == expected);

  Sums together(big_layout(), expected_weight);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = t; i < updates; i += 4) together.add(all[i]).value();
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(together.accumulator.total_weight() == forward.accumulator.total_weight());
  CHECK(together.mean() == expected);

  std::vector<double> exact(big_layout().elements());
  double weight = 0;
  for (const Upload& upload : all) {
    const auto values = decode(upload.payload, big_layout());
    for (std::size_t i = 0; i < exact.size(); ++i) {
      exact[i] += static_cast<double>(upload.weight) * values[i];
    }
    weight += static_cast<double>(upload.weight);
  }
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double wanted = exact[i] / weight;
    REQUIRE(std::fabs(expected[i] - wanted) <= 0x1p-38 + std::fabs(wanted) * 0x1p-24);
  }
}

TEST_CASE("add returns the norms of the decoded update") {
  const Layout layout = layout_of({{"a", {2}}, {"b", {2}}});
  Sums sums(layout, expected_weight);
  const Upload upload = {encode(*codec_of("none"), layout, std::vector<float>{1, -2, 2, 4}), 1};
  const UpdateNorms norms = sums.add(upload).value();
  CHECK(norms.l2 == 5.0);
  CHECK(norms.max_abs == 4.0f);
}

TEST_CASE("an update with a bad block leaves the sums unchanged, whichever block it is") {
  const Layout layout = layout_of({{"a", {600}}, {"b", {600}}});
  const Upload good = {encode(*codec_of("none"), layout, normal(1200, 1), 1, 256), 7};
  Sums sums(layout, expected_weight);
  CHECK(sums.add(good).has_value());
  const auto before = sums.mean();

  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
    for (const std::size_t place : {0u, 255u, 256u, 599u, 600u, 1199u}) {
      std::vector<float> x = normal(1200, 2);
      x[place] = 4.0f;
      Upload upload = {encode(*codec_of("none"), layout, x, 1, 256), 9};
      // Before the value come the prefix, a format id for each block up to its own, and the values
      // before it.
      const std::size_t prefix = payload_header_bytes + 6 * sizeof(std::uint32_t);
      const std::size_t block = place < 600 ? place / 256 : 3 + (place - 600) / 256;
      store(upload.payload, prefix + block + 1 + place * sizeof(float), bad);
      const auto added = sums.add(upload);
      REQUIRE_FALSE(added.has_value());
      CHECK(added.error().message().find(layout.describe(place)) != std::string::npos);
      CHECK(sums.accumulator.total_weight() == 7);
      CHECK_FALSE(sums.accumulator.broken());
      CHECK(sums.mean() == before);
    }
  }
}

TEST_CASE("weights beyond the limits are refused, and a total weight equal to the limit is not") {
  const Layout layout = flat_layout(4);
  Sums sums(layout);
  Upload upload = {encode(*codec_of("none"), layout, std::vector<float>{1, 2, 3, 4}), 0};
  CHECK(sums.add(upload).error().code() == Errc::invalid_input);
  upload.weight = update_weight_max + 1;
  CHECK(sums.add(upload).error().code() == Errc::invalid_input);
  upload.weight = update_weight_max;
  for (int i = 0; i < 1023; ++i) REQUIRE(sums.add(upload).has_value());
  CHECK(sums.add(upload).error().code() == Errc::conflict);
  upload.weight = update_weight_max - 1;
  CHECK(sums.add(upload).has_value());
  CHECK(sums.accumulator.total_weight() == total_weight_max);
  CHECK(sums.mean() == std::vector<float>{1, 2, 3, 4});
  sums.reset();
  CHECK(sums.accumulator.total_weight() == 0);
  std::vector<float> zeros(4, 1.0f);
  sums.accumulator.mean(0, 1.0, zeros);
  CHECK(zeros == std::vector<float>(4));
}

TEST_CASE("if an update can't be read while it is taken back, the sums are broken until reset()") {
  const Layout layout = flat_layout(1000);
  const auto payload = encode(*codec_of("none"), layout, normal(1000, 1), 1, 256);
  Sums sums(layout, expected_weight);
  // Opening takes two reads, and each of the four blocks one more. The source fails after `reads`.
  for (int reads = 2; reads < 6; ++reads) {
    FailingSource source(payload, reads);
    auto reader = PayloadReader::open(source, payload.size(), layout).value();
    const auto failed = sums.accumulator.add(reader, 5).error();
    CHECK(failed.code() == Errc::io);
    CHECK(failed.message().find("block") != std::string::npos);
    CHECK(sums.accumulator.broken() ==
          (reads > 2));  // If no block was added, there is nothing to take back.
    if (sums.accumulator.broken()) CHECK(sums.add({payload, 5}).error().code() == Errc::internal);
    sums.reset();
  }
  CHECK(sums.add({payload, 5}).has_value());
}

TEST_CASE("large statistics do not reduce the precision of parameters or count in the norms") {
  const Layout layout =
      layout_of({{"w", {3}}, {"bn.running_mean", {2}}, {"bn.running_var", {2}}, {"c.w", {2}}});
  const std::vector<std::vector<float>> values = {
      {1e-4f, -3e-4f, 0, 5e5f, 1e-7f, 9e12f, 1e8f, 2e-4f, 1e-4f},
      {2e-4f, 1e-4f, 0, -5e5f, 3e-7f, 7e12f, 3e8f, -1e-4f, 1e-4f}};
  Sums sums(layout);
  std::vector<Upload> all;
  for (const auto& x : values) {
    all.push_back({encode(*codec_of("none"), layout, x), 1'000'000});
    const auto norms = sums.add(all.back());
    REQUIRE(norms.has_value());
    CHECK(norms->max_abs < 4e-4f);
    CHECK(norms->l2 < 5e-4);
  }
  const auto mean = sums.mean();
  for (std::size_t i = 0; i < mean.size(); ++i) {
    const double expected = (double{values[0][i]} + values[1][i]) / 2;
    CAPTURE(i);
    CHECK(mean[i] == doctest::Approx(expected).epsilon(1e-5));
  }
  std::vector<float> part(4);
  sums.accumulator.mean(2, 2e6, part);
  CHECK(std::equal(part.begin(), part.end(), mean.begin() + 2));

  // An update with a bad value after the statistics is taken back exactly.
  std::vector<std::byte> payload = encode(*codec_of("none"), layout, values[0]);
  const float infinity = std::numeric_limits<float>::infinity();
  std::memcpy(payload.data() + payload.size() - sizeof infinity, &infinity, sizeof infinity);
  const auto before = sums.mean();
  const auto bad = sums.add({payload, 7});
  REQUIRE(bad.has_error());
  CHECK(bad.error().code() == Errc::corrupt);
  CHECK(bad.error().message().find("c.w[1]") != std::string::npos);
  CHECK(sums.mean() == before);
  sums.reset();
  REQUIRE(sums.add(all[1]).has_value());
  CHECK(sums.mean()[5] == doctest::Approx(7e12));
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
    const CodeInputs inputs(i, i == 7 ? 1234 : 4321);
    std::vector<std::byte> bytes;
    VectorSink sink(bytes);
    codec_of(specs[i])
        ->encode(matrices(), normal(matrices().elements(), 70 + i, 0.01f), inputs, sink,
                 i % 2 == 0 ? block_elements_default : 1000)
        .value();
    all.push_back({std::move(bytes), 1 + 10 * i});
  }
  return all;
}

}  // namespace

TEST_CASE("summing undecoded low-rank factors gives the mean of the decoded updates, to rounding") {
  const auto all = low_rank_uploads();
  Sums undecoded(matrices(), expected_weight, 4321);
  Sums decoded(matrices(), expected_weight);
  for (const Upload& upload : all) {
    const auto norms = undecoded.add(upload).value();
    CHECK(norms.l2 == doctest::Approx(decoded.add(upload)->l2).epsilon(1e-5));
  }
  const auto wanted = decoded.mean();
  const auto mean = undecoded.mean();
  CHECK(mean != wanted);
  CHECK(nmse(wanted, mean) < 1e-11);
  // The mean in pieces has the same bits, wherever it is cut.
  std::vector<float> cut(mean.size());
  for (std::size_t at = 0; at < cut.size();) {
    const std::size_t n = std::min<std::size_t>(cut.size() - at, 1 + at % 777);
    undecoded.accumulator.mean(at, static_cast<double>(undecoded.accumulator.total_weight()),
                               std::span(cut).subspan(at, n));
    at += n;
  }
  CHECK(cut == mean);
  // In a round with another seed all uploads are decoded.
  Sums others(matrices(), expected_weight, 99);
  for (const Upload& upload : all) REQUIRE(others.add(upload).has_value());
  CHECK(others.mean() == wanted);
}

TEST_CASE("sums of factors have the same bits in any order, also after refused updates") {
  const auto all = low_rank_uploads();
  Sums forward(matrices(), expected_weight, 4321);
  for (const Upload& upload : all) REQUIRE(forward.add(upload).has_value());
  const auto mean = forward.mean();

  Sums backward(matrices(), expected_weight, 7);
  backward.reset(4321);
  for (auto upload = all.rbegin(); upload != all.rend(); ++upload) {
    REQUIRE(backward.add(*upload).has_value());
    // Damage the end, which is in the last tensor's rows.
    auto bad = *upload;
    bad.payload.back() = std::byte{0x7f};
    bad.payload[bad.payload.size() - 2] = std::byte{0xc0};
    if (&*upload == &all[5]) CHECK(backward.add(bad).has_error());
    // An update with a rank that no other update has, damaged in the same way.
    std::vector<std::byte> bytes;
    VectorSink sink(bytes);
    codec_of("gradzip:3+ef")
        ->encode(matrices(), normal(matrices().elements(), 90, 0.01f), CodeInputs(1, 4321), sink,
                 1000)
        .value();
    bytes.resize(bytes.size() - 1);
    store(bytes, bytes.size() - 4, std::uint32_t{0xffffffff});
    bytes.push_back(std::byte{0xff});
    CHECK(backward.add({bytes, 3}).has_error());
  }
  CHECK(backward.mean() == mean);

  Sums together(matrices(), expected_weight, 4321);
  std::vector<std::thread> threads;
  for (const Upload& upload : all) {
    threads.emplace_back([&] { static_cast<void>(together.add(upload).value()); });
  }
  for (auto& thread : threads) thread.join();
  CHECK(together.mean() == mean);
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
  Sums undecoded(layout, expected_weight, std::nullopt, sketches());
  Sums decoded(layout, expected_weight);  // For the other uploads.
  std::map<std::uint64_t, PlainSketch> plain;
  double whole = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Upload& upload = all[i];
    const auto norms = undecoded.add(upload).value();
    whole += static_cast<double>(upload.weight);
    CAPTURE(i);
    if (i > 2) {
      CHECK(norms.l2 == decoded.add(upload)->l2);
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
      plain[block.flat].add(bytes, block.elements, upload.weight);
    });
  }
  REQUIRE(plain.size() == 5);
  std::vector<float> wanted(layout.elements());
  decoded.settle();
  decoded.accumulator.mean(0, whole, wanted);
  const auto [c_begin, c_count] =
      std::pair(layout.tensors()[2].offset, layout.tensors()[2].elements);
  for (const auto& [flat, of_it] : plain) {
    const auto recovered = of_it.recovered(undecoded.accumulator.total_weight(), whole);
    CHECK(std::ranges::count_if(recovered, [](float v) { return v != 0; }) > 0);
    for (std::size_t i = 0; i < recovered.size(); ++i) wanted[flat + i] += recovered[i];
  }
  auto mean = undecoded.mean();
  // A tensor without a sketch is decoded in every update.
  Sums dense(layout, expected_weight);
  for (const Upload& upload : all) REQUIRE(dense.add(upload).has_value());
  const auto of_dense = dense.mean();
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
    undecoded.accumulator.mean(at, whole, std::span(cut).subspan(at, n));
    at += n;
  }
  CHECK(cut == mean);
}

TEST_CASE("sums of sketches have the same bits in any order, also after refused updates") {
  const auto all = sketched_uploads();
  const Layout& layout = sketched_layout();
  Sums forward(layout, expected_weight, std::nullopt, sketches());
  for (const Upload& upload : all) REQUIRE(forward.add(upload).has_value());
  const auto mean = forward.mean();

  Sums backward(layout, expected_weight);
  for (const Upload& upload : all) REQUIRE(backward.add(upload).has_value());
  CHECK(backward.mean() != mean);
  backward.reset(std::nullopt, sketches());
  // mean() does not return values of an earlier state.
  const auto divided = [&] {
    std::vector<float> out(700);
    backward.settle();
    backward.accumulator.mean(2 * 65536, 100, out);
    return out;
  };
  const auto nothing = divided();
  CHECK(nothing == std::vector<float>(700));
  REQUIRE(backward.add(all[0]).has_value());
  const auto first = divided();
  CHECK(first != nothing);
  REQUIRE(backward.add(all[2]).has_value());
  CHECK(divided() != first);
  backward.reset(std::nullopt, sketches());
  CHECK(divided() == nothing);
  for (auto upload = all.rbegin(); upload != all.rend(); ++upload) {
    REQUIRE(backward.add(*upload).has_value());
    // An update with a damaged last tensor.
    auto bad = encode(*codec_of(sketched_codec), layout, normal(layout.elements(), 90, 0.01f), 3);
    for (std::size_t at = bad.size() - 8; at < bad.size(); ++at) bad[at] = std::byte{0xff};
    CHECK(backward.add({bad, 3}).has_error());
  }
  CHECK(backward.mean() == mean);

  Sums together(layout, expected_weight, std::nullopt, sketches());
  std::vector<std::thread> threads;
  for (const Upload& upload : all)
    threads.emplace_back([&] { static_cast<void>(together.add(upload).value()); });
  for (auto& thread : threads) thread.join();
  CHECK(together.mean() == mean);
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
