// SPDX-License-Identifier: Apache-2.0
// Codecs that send a matrix as two thin factors: the decoded values, convergence with error
// feedback, and blocks that need the first block of their tensor.
#include "shared/codec/blocks/low_rank_block.hpp"

#include "tests/codec/codec_support.hpp"

#include "kernels/generic/philox.hpp"
#include "shared/codec/encode/feedback.hpp"
#include "tests/support/distortion.hpp"

#include <limits>

using namespace fl;
using namespace fl::codec;
using namespace fl::testing;

namespace {

constexpr std::size_t rows = 60;
constexpr std::size_t cols = 90;

/// The sum of `rank` outer products of Gaussian vectors; each is `decay` times the one before.
std::vector<float> matrix_of_rank(std::size_t rank, std::uint64_t seed, float decay = 1) {
  const std::vector<float> left = normal(rank * rows, seed);
  const std::vector<float> right = normal(rank * cols, seed + 1);
  std::vector<float> out(rows * cols);
  float factor = 1;
  for (std::size_t k = 0; k < rank; ++k) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] += factor * left[k * rows + i / cols] * right[k * cols + i % cols];
    }
    factor *= decay;
  }
  return out;
}

Layout matrix_layout() { return layout_of({{"w", {rows, 9, 10}}, {"b", {rows}}}); }

/// The matrix, followed by a bias of zeros.
std::vector<float> with_bias(std::vector<float> matrix) {
  matrix.resize(matrix.size() + rows);
  return matrix;
}

/// |x - decoded|^2 / |x|^2 with the codec.
double loss_of(const char* spec, std::span<const float> x, std::uint64_t seed = 1) {
  const Layout layout = matrix_layout();
  return nmse(x, decode(encode(*codec_of(spec), layout, x, seed, 256), layout));
}

/// The loss of the mean of the sent values, if one update is sent in each round with error
/// feedback.
double feedback_loss(const char* spec, std::span<const float> x, std::uint64_t rounds) {
  const Layout layout = matrix_layout();
  std::vector<float> residual(x.size());
  std::vector<float> sent(x.size());
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    std::vector<float> update(x.begin(), x.end());
    add_residual(update, residual);
    const auto payload = encode(*codec_of(spec), layout, update, round, 256);
    SpanSource source(payload);
    auto reader = PayloadReader::open(source, payload.size(), layout).value();
    keep_residual(update, reader, residual).value();
    const auto decoded = decode(payload, layout);
    for (std::size_t i = 0; i < sent.size(); ++i) sent[i] += decoded[i];
  }
  for (float& v : sent) v /= static_cast<float>(rounds);
  return nmse(x, sent);
}

}  // namespace

TEST_CASE("powersgd reproduces matrices of at most its rank, wherever the blocks are cut") {
  for (std::size_t rank = 1; rank <= 4; ++rank) {
    CAPTURE(rank);
    const auto x = with_bias(matrix_of_rank(rank, 10 * rank));
    CHECK(loss_of("powersgd:4", x) < 1e-11);
    const std::string same = "powersgd:" + std::to_string(rank);
    CHECK(loss_of(same.c_str(), x) < 1e-9);
    // With a lower rank a part is lost.
    const std::string less = "powersgd:" + std::to_string(rank - 1);
    if (rank > 1) CHECK(loss_of(less.c_str(), x) > 1e-3);
  }
  // Now with very small and very large values.
  auto x = with_bias(matrix_of_rank(2, 5));
  for (const float scale : {1e-30f, 1e30f}) {
    auto scaled = x;
    for (float& v : scaled) v *= scale;
    const Layout layout = matrix_layout();
    auto back = decode(encode(*codec_of("powersgd:2"), layout, scaled), layout);
    for (float& v : back) v /= scale;
    CHECK(nmse(x, back) < 1e-9);
  }
}

TEST_CASE("a matrix takes the bytes of its factors; small matrices and vectors go dense") {
  const Layout layout =
      layout_of({{"w", {60, 90}}, {"b", {5000}}, {"small", {3, 4}}, {"none", {0, 7}}, {"s", {}}});
  const std::vector<float> x = normal(layout.elements(), 3);
  const auto bytes_of = [&](const char* spec) {
    const auto codec = codec_of(spec);
    const auto payload = encode(*codec, layout, x);
    CHECK(payload.size() <= codec->payload_bytes_max(layout));
    const auto back = decode(payload, layout);
    CHECK(std::equal(back.begin() + 5400, back.end(), x.begin() + 5400));
    return payload.size() - payload_header_bytes - 4 * 4;
  };
  // A coded float takes 26.5 to 28 bits here.
  const auto has = [&](const char* spec, std::size_t head, std::size_t floats) {
    CAPTURE(std::string(spec));
    const auto bits = static_cast<double>(8 * (bytes_of(spec) - head));
    CHECK(bits > 26.5 * static_cast<double>(5000 + 12 + 1 + floats));
    CHECK(bits < 28 * static_cast<double>(5000 + 12 + 1 + floats));
  };
  has("powersgd:2", 3 + 2, 2 * (60 + 90));
  has("gradzip:2", 3 + 2 + 8, 2 * 60);
  has("powersgd:18", 3 + 2, 18 * (60 + 90));
  has("powersgd:19", 3, 60 * 90);
  has("powersgd:19,min_ratio=1", 3 + 2, 19 * (60 + 90));
  has("powersgd:2,min_ratio=19", 3, 60 * 90);
}

TEST_CASE("gradzip is unbiased over 4,096 seeds, and with error feedback it is a projection" *
          statistics) {
  const Layout layout = layout_of({{"w", {6, 20}}});
  const std::vector<float> x = normal(layout.elements(), 9);
  constexpr int seeds = 4096;
  std::vector<double> sum(x.size());
  std::vector<double> squares(x.size());
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const auto back = decode(encode(*codec_of("gradzip:2"), layout, x, seed), layout);
    const auto kept = decode(encode(*codec_of("gradzip:2+ef"), layout, x, seed), layout);
    double inner = 0;
    double length = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double error = static_cast<double>(back[i]) - x[i];
      sum[i] += error;
      squares[i] += error * error;
      inner += static_cast<double>(kept[i]) * x[i];
      length += static_cast<double>(kept[i]) * kept[i];
      REQUIRE(kept[i] * 10 == doctest::Approx(back[i]).epsilon(1e-5));
    }
    REQUIRE(inner == doctest::Approx(length).epsilon(1e-4));
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    CHECK(std::fabs(sum[i] / seeds) <= 5 * std::sqrt(squares[i]) / seeds + 1e-6);
  }
}

TEST_CASE("with error feedback the mean of the sent values approaches the update as 1 / rounds" *
          statistics) {
  const auto x = with_bias(matrix_of_rank(20, 7, 0.9f));
  for (const char* spec : {"powersgd:1+ef", "gradzip:4+ef"}) {
    CAPTURE(spec);
    const double after_100 = feedback_loss(spec, x, 100);
    const double after_400 = feedback_loss(spec, x, 400);
    CHECK(after_100 < 0.2);
    // Four times the rounds give a sixteenth of the squared error, once the residual is stationary.
    CHECK(after_400 < after_100 / 8);
    CHECK(after_400 < 0.01);
  }
}

TEST_CASE("low-rank blocks decode in any order, whether they begin inside rows or span rows") {
  // In the first tensor a row has several blocks, in the second a block has several rows.
  const Layout layout = layout_of({{"wide", {5, 1000}}, {"tall", {900, 4}}, {"b", {40}}});
  const std::vector<float> x = normal(layout.elements(), 4);
  for (const char* spec : {"powersgd:1", "powersgd:1,min_ratio=1", "gradzip:1", "gradzip:2+ef"}) {
    for (const std::uint32_t block_elements : {256u, 999u, block_elements_default}) {
      CAPTURE(spec);
      CAPTURE(block_elements);
      const auto payload = encode(*codec_of(spec), layout, x, 5, block_elements);
      CHECK(payload.size() <= codec_of(spec)->payload_bytes_max(layout, block_elements));
      const auto whole = decode(payload, layout);
      CHECK(whole == decode(encode(*codec_of(spec), layout, x, 5), layout));
      SpanSource source(payload);
      auto reader = PayloadReader::open(source, payload.size(), layout).value();
      for (std::uint64_t i = 0; i < 3 * reader.blocks(); ++i) {
        const std::uint64_t index = philox::block_at(1, 0, i).word[0] % reader.blocks();
        const Block block = reader.block(index);
        std::vector<float> values(block.elements);
        reader.decode(index, values).value();
        REQUIRE(std::equal(values.begin(), values.end(),
                           whole.begin() + static_cast<std::ptrdiff_t>(block.flat)));
      }
    }
  }
}

TEST_CASE("the right factor of a key is drawn once for all who need it, and goes with the last") {
  DrawnRights rights;
  const auto first = rights.get(7, 2, 300);
  CHECK(*first == drawn_right(7, 2, 300));
  CHECK(rights.get(7, 2, 300) == first);
  CHECK(rights.draws() == 1);
  // All three arguments count.
  CHECK(rights.get(8, 2, 300) != first);
  CHECK(rights.get(7, 1, 300) != first);
  CHECK(rights.get(7, 2, 150) != first);
  CHECK(rights.draws() == 4);
  // The first one is still in use; of the others only the last one is kept.
  CHECK(rights.get(7, 2, 300) == first);
  CHECK(rights.get(8, 2, 300) != nullptr);
  CHECK(rights.get(8, 2, 300) != nullptr);
  CHECK(rights.draws() == 5);
}

TEST_CASE("all threads that decode a payload share the right factors that follow from its keys") {
  const Layout layout = layout_of({{"w", {20, 5000}}});
  const std::vector<float> x = normal(layout.elements(), 3);
  const auto payload = encode(*codec_of("gradzip:2"), layout, x, 5, 256);
  SpanSource source(payload);
  const auto rights = std::make_shared<DrawnRights>();
  auto reader = PayloadReader::open(source, payload.size(), layout, rights).value();
  std::vector<float> values(x.size());
  reader.decode_all(values, 4).value();
  CHECK(values == decode(payload, layout));
  CHECK(rights->draws() == 1);
}

TEST_CASE("factors that the codec does not make are refused before memory is taken for them") {
  const Layout layout = layout_of({{"small", {4, 5}}, {"w", {20, 5000}}, {"b", {300}}});
  const CodeInputs inputs(5, 77);
  const auto reason = [&](const char* sent, const char* expected, std::uint64_t shared_seed) {
    std::vector<std::byte> payload;
    VectorSink sink(payload);
    const auto x = normal(layout.elements(), 3);
    REQUIRE(codec_of(sent)->encode(layout, x, inputs, sink, 256).has_value());
    SpanSource source(payload);
    const auto rights = std::make_shared<DrawnRights>();
    auto reader = PayloadReader::open(source, payload.size(), layout, rights).value();
    reader.expect({codec_of(expected)->factor_forms(layout), shared_seed});
    std::vector<float> out(layout.elements());
    const auto decoded = reader.decode_all(out);
    if (decoded) return std::string();
    CHECK(decoded.error().code() == Errc::corrupt);
    CHECK(rights->draws() == 0);
    return decoded.error().message();
  };
  const std::string refusal = "its factors are not those that the codec makes of this tensor";
  for (const char* const spec :
       {"gradzip:2", "gradzip:3+ef", "powersgd:2", "small=none;*=gradzip:1", "none"})
    CHECK(reason(spec, spec, 77).empty());
  // A codec may send fewer factors than it could: a vector with a value that is none has none.
  CHECK(reason("none", "gradzip:2", 77).empty());
  for (const char* const expected : {"none", "ecuq:2", "powersgd:2", "gradzip:1", "gradzip:3",
                                     "w=none;*=gradzip:2", "topk:0.1"}) {
    CAPTURE(expected);
    CHECK(reason("gradzip:2", expected, 77).ends_with(refusal));
  }
  CHECK(reason("powersgd:2", "powersgd:1", 77).ends_with(refusal));
  CHECK(reason("powersgd:2", "gradzip:2", 77).ends_with(refusal));
  // A key of the sender's own only where the codec has one.
  CHECK(reason("gradzip:2", "gradzip:2", 78).ends_with(refusal));
  CHECK(reason("gradzip:2,projection=own", "gradzip:2", 77).ends_with(refusal));
  CHECK(reason("gradzip:2,projection=own", "gradzip:2,projection=own", 78).empty());
}

TEST_CASE("a reader forgets a right factor when it leaves the tensor, or is told to") {
  const Layout layout = layout_of({{"a", {20, 5000}}, {"b", {300}}, {"c", {30, 4000}}});
  const std::vector<float> x = normal(layout.elements(), 3);
  const auto payload = encode(*codec_of("gradzip:2"), layout, x, 5, 256);
  SpanSource source(payload);
  const auto rights = std::make_shared<DrawnRights>();
  auto reader = PayloadReader::open(source, payload.size(), layout, rights).value();
  std::vector<float> out(256);
  const auto decode_at = [&](std::uint64_t index) {
    reader.decode(index, std::span(out).first(reader.block(index).elements)).value();
  };
  const std::uint64_t last = reader.blocks() - 1;
  decode_at(0);
  decode_at(last);
  const std::size_t before = rights->draws();
  decode_at(0);
  decode_at(1);
  CHECK(rights->draws() == before + 1);
  reader.forget_right_above(2 * 5000 * sizeof(float));
  CHECK(rights->get(1, 1, 8) != nullptr);  // The last one from now on.
  decode_at(2);
  CHECK(rights->draws() == before + 2);
  reader.forget_right_above(2 * 5000 * sizeof(float) - 1);
  CHECK(rights->get(2, 1, 8) != nullptr);
  decode_at(3);
  CHECK(rights->draws() == before + 4);
}

TEST_CASE("every kernel row makes the same low-rank payload and decodes it to the same values") {
  const Layout layout = layout_of({{"a", {70, 3000}}, {"b", {3000, 33}}});
  const std::vector<float> x = normal(layout.elements(), 8);
  for (const char* spec : {"powersgd:4", "gradzip:3"}) check_rows_agree(spec, layout, x);
}

TEST_CASE("a value that is not finite or too large is refused, and the error names it") {
  const Layout layout = layout_of({{"w", {40, 50}}});
  std::vector<float> x = normal(2000, 2);
  std::vector<std::byte> bytes;
  VectorSink sink(bytes);
  x[1777] = std::numeric_limits<float>::quiet_NaN();
  for (const char* spec : {"powersgd:2", "gradzip:2"}) {
    const auto refused = codec_of(spec)->encode(layout, x, 1, sink, 256);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().message().find("w[1777] is nan") != std::string::npos);
    const std::vector<float> huge(2000, 3e38f);
    const auto large = codec_of(spec)->encode(layout, huge, 1, sink, 256);
    REQUIRE_FALSE(large.has_value());
    CHECK(large.error().code() == Errc::invalid_input);
    CHECK(large.error().message().find("w[0] has values that are too large") != std::string::npos);
  }
}

TEST_CASE("the rank, sizes and values of factors are checked before they are used") {
  const Layout layout = layout_of({{"w", {10, 100}}, {"b", {300}}});
  const Layout::Tensor& w = layout.tensors()[0];
  const auto payload = encode(*codec_of("powersgd:2"), layout, normal(1300, 1), 1, 256);
  SpanSource source(payload);
  auto reader = PayloadReader::open(source, payload.size(), layout).value();
  const std::size_t table = payload_header_bytes;
  const std::size_t at = table + reader.blocks() * 4;
  const std::vector<std::byte> good(
      payload.begin() + static_cast<std::ptrdiff_t>(at),
      payload.begin() + static_cast<std::ptrdiff_t>(at + load<std::uint32_t>(payload, table)));
  DecodeScratch scratch;
  const Block first = reader.block(0);
  RightFactor right = read_right_factor(good, w, first, scratch).value();
  CHECK(right.rank == 2);
  std::vector<float> out(256);
  DrawnRights rights;
  CHECK(decode_low_rank(good, w, first, right, rights, out, scratch).has_value());

  const auto reason = [&](const std::vector<std::byte>& block, const Layout::Tensor& tensor) {
    const auto read = read_right_factor(block, tensor, first, scratch);
    REQUIRE_FALSE(read.has_value());
    CHECK(read.error().code() == Errc::corrupt);
    return read.error().message();
  };
  const auto with = [&](std::size_t place, int byte) {
    auto bad = good;
    bad[place] = static_cast<std::byte>(byte);
    return bad;
  };
  CHECK(reason(with(0, 0), w) == "the tensor's first block is not of low rank");
  CHECK(reason(with(1, 0), w) == "rank 0, allowed are 1 to 64");
  CHECK(reason(with(1, 65), w) == "rank 65, allowed are 1 to 64");
  CHECK(reason(with(1, 10), w) == "rank 10 is too much for the tensor");
  CHECK(reason(good, layout.tensors()[1]) == "rank 2 is too much for the tensor");
  CHECK(reason({good.begin(), good.begin() + 2 + 600}, w) == "the factors are cut off");
  CHECK(reason({good.begin(), good.begin() + 1}, w) == "the rank is cut off");
  // Plain floats: R and three rows of L.
  auto plain = good;
  plain.resize(2 + 1 + 4 * 2 * (100 + 3));
  plain[2] = static_cast<std::byte>(BlockFormat::fp32);
  for (std::size_t i = 0; i < 2 * (100 + 3); ++i) store(plain, 3 + 4 * i, 1.0f);
  CHECK(read_right_factor(plain, w, first, scratch).has_value());
  auto infinite = plain;
  store(infinite, 3 + 4 * 7, std::numeric_limits<float>::infinity());
  CHECK(reason(infinite, w) == "the factors are not finite");

  const auto is_refused = [&](const std::vector<std::byte>& block) {
    const auto decoded = decode_low_rank(block, w, first, right, rights, out, scratch);
    return !decoded && decoded.error().code() == Errc::corrupt;
  };
  CHECK(is_refused(with(0, 29)));
  CHECK(is_refused(with(1, 3)));
  CHECK(is_refused({}));
  auto longer = good;
  longer.push_back(std::byte{0});
  CHECK(is_refused(longer));
  CHECK(is_refused({good.begin(), good.end() - 1}));
  CHECK_FALSE(is_refused(plain));
  CHECK(is_refused([&] {
    auto halves = plain;
    halves[2] = std::byte{1};
    halves.resize(3 + 2 * 2 * (100 + 3));
    return halves;
  }()));
  infinite = plain;
  store(infinite, plain.size() - 4, std::numeric_limits<float>::quiet_NaN());
  CHECK(is_refused(infinite));

  const auto alone = decode_block(good, out, scratch);
  REQUIRE_FALSE(alone.has_value());
  CHECK(alone.error().message() == "a block of low rank without its tensor");
}
