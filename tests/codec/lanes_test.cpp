// SPDX-License-Identifier: Apache-2.0
// "lanes": steps that all clients share, so that levels add up as integers.
#include "kernels/generic/philox.hpp"
#include "server/sums/accumulator.hpp"
#include "server/sums/lane_steps.hpp"
#include "shared/codec/blocks/lane_block.hpp"
#include "shared/codec/entropy/quantized_levels.hpp"
#include "tests/codec/codec_support.hpp"
#include "tests/support/distortion.hpp"

#include <fmt/format.h>

#include <map>
#include <set>

using namespace fl;
using namespace fl::testing;

namespace {

std::shared_ptr<const LaneSteps> steps_of(std::initializer_list<double> values) {
  LaneSteps steps;
  for (const double value : values)
    steps.push_back(value > 0 ? LaneStep::at_least(value) : LaneStep());
  return std::make_shared<const LaneSteps>(std::move(steps));
}

std::vector<std::byte> encode_with(std::string_view spec, const Layout& layout,
                                   std::span<const float> x, const CodeInputs& inputs,
                                   int threads = 1) {
  std::vector<std::byte> bytes;
  VectorSink sink(bytes);
  codec_of(spec)
      ->encode(layout, x, inputs, sink, block_elements_of_codec, nullptr, threads)
      .value();
  return bytes;
}

LaneTally tally_of(const std::vector<std::byte>& payload, const Layout& layout, LaneStep step,
                   std::uint32_t tensor = 0) {
  SpanSource source(payload);
  auto reader = PayloadReader::open(source, payload.size(), layout).value();
  LaneTally tally;
  for (std::uint64_t i = 0; i < reader.blocks(); ++i) {
    if (reader.block(i).tensor == tensor) reader.add_lane_tally(i, step, tally).value();
  }
  return tally;
}

/// The bytes of the only block of a payload of one tensor.
Bytes only_block(const std::vector<std::byte>& payload) {
  return Bytes(payload).subspan(payload_header_bytes + sizeof(std::uint32_t));
}

/// (level - u) * 2^(20 - B) of each value of a block with dither, by the format's description.
std::vector<std::int64_t> integers_of(Bytes block, std::size_t elements) {
  const auto [head, coded] = read_lane_head(block.subspan(1)).value();
  REQUIRE(head.has_dither);
  DecodeScratch scratch;
  const auto levels = read_levels(coded, format_of(block) == BlockFormat::lanes_rans,
                                  (1 << (head.bits - 1)) - 1, elements, scratch)
                          .value();
  std::vector<std::int64_t> integers;
  for (std::size_t i = 0; i < elements; ++i) {
    const std::uint64_t counter = philox::counter_of(i);
    const std::uint32_t word = philox::block_at(head.key, 0, counter).word[philox::word_of(i)];
    const int random_bits = 19 - head.bits;
    const std::int64_t twice_u =
        std::int64_t{word >> (32 - random_bits)} * 2 + 1 - (std::int64_t{1} << random_bits);
    integers.push_back((std::int64_t{levels[i]} << (20 - head.bits)) - twice_u);
  }
  return integers;
}

}  // namespace

TEST_CASE("a step is the smallest that is large enough, and is at most a 16th too large") {
  for (double value = 1e-25; value < 1e5; value *= 1.0137) {
    const LaneStep step = LaneStep::at_least(value);
    CHECK(step.value() >= value);
    CHECK(step.value() <= value * (17.0 / 16));
    CHECK(LaneStep::at_least(step.value()) == step);
    CHECK(LaneStep::parse(step.code()).value() == step);
    CHECK(step.mantissa() >= 16);
    CHECK(step.mantissa() <= 31);
    CHECK(step.value() == std::ldexp(step.mantissa(), step.exponent()));
    CHECK(LaneStep() < step);
    CHECK(LaneStep::at_least(step.value() * 1.0001) > step);
  }
  const LaneStep least = LaneStep::at_least(1e-300);
  const LaneStep most = LaneStep::at_least(1e300);
  CHECK(least.exponent() == LaneStep::exponent_min);
  CHECK(most.exponent() == LaneStep::exponent_max);
  CHECK_FALSE(LaneStep::parse(static_cast<std::uint16_t>(least.code() - 1)).has_value());
  CHECK_FALSE(LaneStep::parse(static_cast<std::uint16_t>(most.code() + 1)).has_value());
  CHECK_FALSE(LaneStep::parse(1).has_value());
}

TEST_CASE("steps travel as two bytes for each tensor") {
  const auto steps = *steps_of({0.25, 0, 1e-9});
  const std::string bytes = to_bytes(steps);
  CHECK(bytes.size() == 6);
  CHECK(parse_lane_steps(bytes, 3).value() == steps);
  CHECK(parse_lane_steps("", 3).value() == LaneSteps(3));
  CHECK_FALSE(parse_lane_steps(bytes, 2).has_value());
  CHECK_FALSE(parse_lane_steps(bytes, 4).has_value());
  CHECK_FALSE(parse_lane_steps("\1\0", 1).has_value());
}

TEST_CASE("the mean of decoded updates is that of the integers that clients send, bit for bit") {
  // What a server gets that sees only the sum of the levels, and knows the dithers.
  const Layout layout = flat_layout(5000);
  for (const int bits : {2, 3, 8, 11, 16}) {
    CAPTURE(bits);
    const std::string spec = fmt::format("lanes:{}", bits);
    const auto steps = steps_of({fitting_step(bits, 0.01).value()});
    const LaneStep step = steps->front();
    fl::server::Accumulator sums(layout, 7);
    std::vector<std::int64_t> whole(5000);
    std::vector<std::vector<std::byte>> payloads;
    std::uint64_t weights = 0;
    for (std::uint64_t client = 1; client <= 9; ++client) {
      const auto x = normal(5000, client, client == 3 ? 0.1f : 0.01f);
      const auto& payload =
          payloads.emplace_back(encode_with(spec, layout, x, {client, 77, steps}));
      const auto integers = integers_of(only_block(payload), x.size());
      const std::uint64_t weight = client * client;
      weights += weight;
      for (std::size_t i = 0; i < whole.size(); ++i)
        whole[i] += static_cast<std::int64_t>(weight) * integers[i];
      SpanSource source(payload);
      auto reader = PayloadReader::open(source, payload.size(), layout).value();
      sums.count(sums.add(reader, weight).value());
      const auto values = decode(payload, layout);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double exact = std::ldexp(static_cast<double>(integers[i] * step.mantissa()),
                                        step.exponent() - (20 - bits));
        REQUIRE(static_cast<double>(values[i]) == exact);
      }
    }
    const auto add_again = [&](const fl::server::Accumulator::AddUpdate& again) -> Result<void> {
      for (std::uint64_t client = 1; client <= payloads.size(); ++client) {
        const auto& payload = payloads[client - 1];
        SpanSource source(payload);
        FL_TRY(auto reader, PayloadReader::open(source, payload.size(), layout));
        FL_CHECK(again(reader, client * client, nullptr));
      }
      return {};
    };
    sums.settle(add_again).value();
    std::vector<float> mean(5000);
    sums.mean(0, static_cast<double>(weights), mean);
    const double unit = std::ldexp(1.0, step.exponent() - (20 - bits));
    for (std::size_t i = 0; i < mean.size(); ++i) {
      const auto sum = static_cast<double>(whole[i] * step.mantissa());
      REQUIRE(mean[i] == static_cast<float>(sum * (unit / static_cast<double>(weights))));
    }
  }
}

TEST_CASE("without a step values become multiples of 2^-24, and what is beyond 8 becomes 8") {
  const Layout layout = flat_layout(4);
  const std::vector<float> x{0.3f, -1e-9f, 9.5f, -7.25f};
  const auto payload = encode_with("lanes:8", layout, x, {1, 2, steps_of({0})});
  const auto values = decode(payload, layout);
  CHECK(values[0] == doctest::Approx(0.3).epsilon(1e-7));
  CHECK(std::ldexp(values[0], 24) == std::nearbyint(std::ldexp(values[0], 24)));
  CHECK(values[1] == 0);
  CHECK(values[2] == 8);
  CHECK(values[3] == -7.25f);
  const LaneTally tally = tally_of(payload, layout, LaneStep());
  CHECK(tally.values == 4);
  CHECK(tally.squares == wide_squares_max);
  const std::vector<float> small{0.5f, 0.25f, 0, 0};
  const auto known = encode_with("lanes:8", layout, small, {1, 2, steps_of({0})});
  CHECK(static_cast<double>(tally_of(known, layout, LaneStep()).squares) == std::ldexp(0.3125, 48));
}

TEST_CASE("levels have the variance of subtractive dither, and their mean is the value" *
          statistics) {
  const Layout layout = flat_layout(20000);
  const auto x = normal(20000, 5, 0.02f);
  const auto steps = steps_of({0.01});
  const double step = steps->front().value();
  std::vector<double> sum(x.size());
  constexpr int seeds = 64;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const auto values = decode(encode_with("lanes:8", layout, x, {seed, 1, steps}), layout);
    double squares = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double error = static_cast<double>(values[i]) - x[i];
      CHECK_UNARY(std::fabs(error) <= step / 2 * 1.00001);
      squares += error * error;
      sum[i] += error;
    }
    CHECK(squares / static_cast<double>(x.size()) ==
          doctest::Approx(step * step / 12).epsilon(0.03));
  }
  for (const double of : sum)
    CHECK_UNARY(std::fabs(of) / seeds < 5 * step / std::sqrt(12.0 * seeds));
}

TEST_CASE("with error feedback the level is the nearest one") {
  const Layout layout = flat_layout(1000);
  const auto x = normal(1000, 6, 0.02f);
  const auto steps = steps_of({0.01});
  const double step = steps->front().value();
  const auto payload = encode_with("lanes:6+ef", layout, x, {1, 1, steps});
  CHECK(payload == encode_with("lanes:6+ef", layout, x, {2, 1, steps}));  // No seed matters.
  const auto values = decode(payload, layout);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double level = std::clamp(std::nearbyint(x[i] / step), -31.0, 31.0);
    CHECK_UNARY(std::fabs(values[i] - level * step) < 1e-9);
  }
}

TEST_CASE(
    "shared steps decide, of each tensor its own; without them a vector has steps of its own") {
  const Layout layout = layout_of({{"a", {300}}, {"b", {300}}, {"c", {300}}});
  auto x = normal(900, 8, 0.01f);
  for (std::size_t i = 300; i < 600; ++i) x[i] *= 100;
  const auto steps = steps_of({0.001, 0.1, 0});
  const auto payload = encode_with("lanes:8", layout, x, {1, 2, steps});
  CHECK(tally_of(payload, layout, (*steps)[0], 0).values == 300);
  CHECK(tally_of(payload, layout, (*steps)[1], 1).values == 300);
  CHECK(tally_of(payload, layout, LaneStep(), 2).values == 300);
  CHECK(tally_of(payload, layout, (*steps)[1], 0) == LaneTally());
  CHECK(tally_of(payload, layout, LaneStep(), 0) == LaneTally());
  const auto own = decode(encode_with("lanes:8", layout, x, CodeInputs(1)), layout);
  for (std::size_t t = 0; t < 3; ++t) {
    const auto of = std::span(x).subspan(300 * t, 300);
    CHECK(nmse(of, std::span(own).subspan(300 * t, 300)) < 4e-4);
  }
}

TEST_CASE("a tally counts squares, values beyond the last level, and levels above half of it") {
  const Layout layout = flat_layout(6);
  const auto steps = steps_of({1});
  // S is 7.
  const std::vector<float> x{3, -4, 7.4f, -7.6f, 100, 0.4f};
  const auto payload = encode_with("lanes:4+ef", layout, x, {1, 1, steps});
  const double squares = 9 + 16 + 7.4 * 7.4 + 2 * 7.5 * 7.5 + 0.16;
  const LaneTally tally = tally_of(payload, layout, (*steps)[0]);
  CHECK(static_cast<double>(tally.squares) == doctest::Approx(squares * 4096).epsilon(1e-5));
  CHECK(tally == LaneTally{.values = 6, .squares = tally.squares, .clipped = 2, .large = 4});
  const auto dithered = encode_with("lanes:4", layout, x, {1, 1, steps});
  CHECK(tally_of(dithered, layout, (*steps)[0]) == tally);  // It is of the values, not the levels.
  const std::vector<float> fine{32767, -512, 0, 0, 0, 0};
  const auto many = encode_with("lanes:16+ef", layout, fine, {1, 1, steps});
  CHECK(tally_of(many, layout, (*steps)[0]).squares == (32767 * 32767 + 512 * 512) >> 12);
}

TEST_CASE("randk in front of lanes draws the same elements for all clients of a round") {
  const Layout layout = flat_layout(70000);
  const auto steps = steps_of({0.2});
  std::set<std::vector<std::size_t>> selections;
  for (std::uint64_t client = 1; client <= 3; ++client) {
    const auto x = normal(70000, client);
    const auto payload =
        encode_with("randk:0.1,dense_below=0+lanes:8", layout, x, {client, 99, steps});
    const auto values = decode(payload, layout);
    std::vector<std::size_t> selected;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] != 0) selected.push_back(i);
    }
    CHECK(selected.size() == 7000);
    selections.insert(selected);
    CHECK(tally_of(payload, layout, (*steps)[0]).values == 7000);
  }
  CHECK(selections.size() == 1);
  const auto x = normal(70000, 1);
  CHECK(encode_with("randk:0.1,dense_below=0+lanes:8", layout, x, {1, 98, steps}) !=
        encode_with("randk:0.1,dense_below=0+lanes:8", layout, x, {1, 99, steps}));
  // A selector that looks at values makes sums of levels impossible, so steps are each client's.
  const auto topk = encode_with("topk:0.1,dense_below=0+lanes:8", layout, x, {1, 99, steps});
  CHECK(tally_of(topk, layout, (*steps)[0]) == LaneTally());
  CHECK(codec_of("topk:0.1+lanes:8")->lane_bits(layout).empty());
  CHECK(codec_of("randk:0.1+lanes:8")->lane_bits(layout) == std::vector<int>{8});
  // In large blocks too, and in blocks of which all is selected.
  const Layout large = flat_layout(3'000'000);
  const auto few = normal(3'000'000, 4);
  CHECK(tally_of(encode_with("randk:0.01,dense_below=0+lanes:8", large, few, {1, 9, steps}), large,
                 (*steps)[0])
            .values == 30'000);
  CHECK(tally_of(encode_with("randk:1,dense_below=0+lanes:8", layout, x, {1, 9, steps}), layout,
                 (*steps)[0])
            .values == 70'000);
}

TEST_CASE("any number of threads and any kernels make the same bytes") {
  const Layout layout = layout_of({{"a", {300, 1000}}, {"b", {17}}});
  const auto x = normal(300'017, 9, 0.01f);
  const auto steps = steps_of({0.002, 0});
  for (const char* spec : {"lanes:8", "lanes:8+ef", "randk:0.2,dense_below=0+lanes:5"}) {
    const auto one = encode_with(spec, layout, x, {4, 5, steps}, 1);
    CHECK(encode_with(spec, layout, x, {4, 5, steps}, 3) == one);
    check_rows_agree(spec, layout, x);
  }
}

TEST_CASE("damaged heads are corrupt") {
  const Layout layout = flat_layout(300);
  const auto good = encode_with("lanes:8", layout, normal(300, 1), {1, 2, steps_of({0.1})});
  const Bytes whole = only_block(good);
  std::vector<float> out(300);
  DecodeScratch scratch;
  REQUIRE(decode_block(whole, out, scratch).has_value());
  const auto is_corrupt = [&](std::vector<std::byte> block) {
    LaneTally sum;
    const auto decoded = decode_block(block, out, scratch);
    return !decoded && decoded.error().code() == Errc::corrupt &&
           !add_lane_tally(block, 300, LaneStep::at_least(0.1), sum) && sum == LaneTally();
  };
  const auto with = [&](std::size_t at, int byte) {
    std::vector<std::byte> block(whole.begin(), whole.end());
    block[at] = static_cast<std::byte>(byte);
    return block;
  };
  CHECK(is_corrupt(with(1, 0x80 | 1)));
  CHECK(is_corrupt(with(1, 0x80 | 17)));
  CHECK(is_corrupt(with(3, 0xff)));
  auto no_step = with(2, 0);
  no_step[3] = std::byte{0};
  CHECK(is_corrupt(no_step));
  for (std::size_t bytes = 1; bytes < lane_head_bytes_max; ++bytes)
    CHECK(is_corrupt(std::vector<std::byte>(whole.begin(), whole.begin() + bytes)));
  LaneTally sum;
  CHECK_FALSE(add_lane_tally({}, 300, {}, sum).has_value());
  // Parts in parts would let a reader go as deep as a stranger likes.
  constexpr std::size_t deep = 1'000'000;
  constexpr std::size_t each = 1 + sizeof(std::uint32_t);
  std::vector<std::byte> nested(deep * each);
  for (std::size_t i = 0; i < deep; ++i) {
    nested[i * each] = static_cast<std::byte>(BlockFormat::parts);
    store(MutableBytes(nested), i * each + 1, static_cast<std::uint32_t>((deep - i - 1) * each));
  }
  CHECK_FALSE(add_lane_tally(nested, part_elements_max, {}, sum).has_value());
}

// The next round's steps -------------------------------------------------------------------------

namespace {

/// What ten clients with such values would send with this step.
LaneTally tally_for(int bits, LaneStep step, const std::vector<float>& x) {
  const Layout layout = flat_layout(static_cast<std::int64_t>(x.size()));
  const auto steps = std::make_shared<const LaneSteps>(LaneSteps{step});
  const auto payload = encode_with(fmt::format("lanes:{}", bits), layout, x, {1, 1, steps});
  return tally_of(payload, layout, step);
}

}  // namespace

TEST_CASE("steps come to fit the values, within a factor of two a round") {
  for (const int bits : {2, 4, 6, 8, 12, 16}) {
    CAPTURE(bits);
    const auto x = normal(100'000, 3, 0.01f);
    LaneStep step = server::next_step(bits, LaneStep(), tally_for(bits, LaneStep(), x));
    const double fitting = lane_range(bits) * 0.01 / lane_levels(bits);
    CHECK(step.value() == doctest::Approx(fitting).epsilon(0.07));
    // Values that are 20 times as large, then as small as they were.
    auto loud = x;
    for (float& v : loud) v *= 20;
    for (int round = 0; round < 8; ++round) {
      const LaneStep next = server::next_step(bits, step, tally_for(bits, step, loud));
      CHECK(next.value() <= 2 * step.value() * (17.0 / 16));
      step = next;
    }
    CHECK(step.value() == doctest::Approx(20 * fitting).epsilon(0.13));
    for (int round = 0; round < 8; ++round) {
      const LaneStep next = server::next_step(bits, step, tally_for(bits, step, x));
      CHECK(next.value() >= step.value() / 2);
      step = next;
    }
    if (bits > 4) CHECK(step.value() == doctest::Approx(fitting).epsilon(0.13));
  }
}

TEST_CASE("a tensor of which few rows move gets a step for these rows, and keeps it") {
  auto x = normal(100'000, 4, 0.01f);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (i % 100 != 0) x[i] = 0;
  }
  LaneStep step = server::next_step(8, LaneStep(), tally_for(8, LaneStep(), x));
  CHECK(step.value() * 127 < 0.01);  // By the root mean square nearly all of them are clipped.
  std::set<std::uint16_t> last;
  for (int round = 0; round < 12; ++round) {
    step = server::next_step(8, step, tally_for(8, step, x));
    if (round >= 6) last.insert(step.code());
  }
  CHECK(last.size() == 1);
  CHECK(step.value() * 127 > 0.015);
  CHECK(step.value() * 127 < 0.05);
}

TEST_CASE("zeros and nobody's values leave a step as it is; tensors without lanes have none") {
  const LaneStep step = LaneStep::at_least(0.5);
  CHECK(server::next_step(8, step, {}) == step);
  CHECK(server::next_step(8, step, {.values = 10, .squares = 0, .clipped = 0, .large = 0}) == step);
  CHECK_FALSE(
      server::next_step(8, {}, {.values = 10, .squares = 0, .clipped = 0, .large = 0}).is_set());
  // All values are just below the last level: a step five times as large would fit, by the rule.
  const auto at_the_end = static_cast<std::uint64_t>(100 * 0.9 * 0.9 * 127 * 127 * 16);
  CHECK(
      server::next_step(8, step, {.values = 100, .squares = at_the_end, .clipped = 0, .large = 100})
          .value() == 2 * step.value());
  const LaneTally some{.values = 100, .squares = 40'000, .clipped = 0, .large = 0};
  const std::vector<int> bits{8, 0};
  const auto next = server::next_steps(bits, {step, LaneStep()}, std::vector{some, some});
  CHECK(next[0].is_set());
  CHECK_FALSE(next[1].is_set());
  LaneTally most{.values = ~0ULL, .squares = ~0ULL, .clipped = ~0ULL, .large = ~0ULL};
  most += some;
  CHECK(most.squares == ~0ULL);
}
