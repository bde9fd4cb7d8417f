// SPDX-License-Identifier: Apache-2.0
// Error feedback loses nothing: the sent values plus the residual are the sum of all updates.
#include "shared/codec/encode/feedback.hpp"

#include "shared/codec/spec/parser.hpp"
#include "tests/codec/codec_support.hpp"

using namespace fl;
using namespace fl::codec;
using namespace fl::testing;

TEST_CASE("with every codec, sent + residual = sum of updates over 50 rounds") {
  const Layout layout = layout_of({{"a", {700}}, {"b", {33}}});
  for (const std::string& spec : specs_to_test()) {
    CAPTURE(spec);
    const auto codec = codec_of(spec + "+ef");
    std::vector<float> residual(layout.elements());
    std::vector<double> wanted(layout.elements());
    std::vector<double> sent(layout.elements());
    for (std::uint64_t round = 0; round < 50; ++round) {
      std::vector<float> update = normal(layout.elements(), round);
      for (std::size_t i = 0; i < update.size(); ++i) wanted[i] += update[i];
      add_residual(update, residual);
      const auto payload = encode(*codec, layout, update, round, 256);
      SpanSource source(payload);
      auto reader = PayloadReader::open(source, payload.size(), layout).value();
      keep_residual(update, reader, residual).value();
      const auto decoded = decode(payload, layout);
      for (std::size_t i = 0; i < sent.size(); ++i) sent[i] += decoded[i];
    }
    for (std::size_t i = 0; i < sent.size(); ++i) {
      // Each round rounds twice, at values below about 2^6.
      CHECK(std::fabs(sent[i] + residual[i] - wanted[i]) < 50 * 2 * 0x1p-18);
    }
  }
}

TEST_CASE("with ef:KEEP a part of what was lost goes into the next update") {
  // Each round sends one value of four. All numbers are exact.
  const Layout layout = flat_layout(4);
  const auto codec = codec_of("topk:0.25,dense_below=0+ef:0.5");
  CHECK(codec->residual_kept() == 0.5F);
  std::vector<float> residual(4);
  struct Round {
    std::vector<float> update, sent, residual;
  };
  const std::vector<Round> rounds = {
      {{8, 4, 2, 0}, {8, 0, 0, 0}, {0, 4, 2, 0}},
      {{1, 0, 0, 0}, {0, 2, 0, 0}, {1, 0, 1, 0}},
      {{0, 0, 0, 0}, {0.5F, 0, 0, 0}, {0, 0, 0.5F, 0}},
  };
  for (const Round& round : rounds) {
    std::vector<float> update = round.update;
    add_residual(update, residual, codec->residual_kept());
    const auto payload = encode(*codec, layout, update);
    SpanSource source(payload);
    auto reader = PayloadReader::open(source, payload.size(), layout).value();
    keep_residual(update, reader, residual).value();
    CHECK(decode(payload, layout) == round.sent);
    CHECK(residual == round.residual);
  }
}

TEST_CASE("the part that ef keeps stands in the spec") {
  CHECK(codec_of("topk:0.25+ef:0.950")->canonical() == "topk:0.25+ef:0.95");
  CHECK(codec_of("topk:0.25+ef")->residual_kept() == 1);
  CHECK(codec_of("none+ef:0.5")->is_plain());
  CHECK(codec_of("lossless+ef:0.5")->is_exact());
  for (const char* wrong : {"sign+ef:0", "sign+ef:1", "sign+ef:", "sign+ef:x", "sign+ef:-1"}) {
    CAPTURE(wrong);
    const auto parsed = parse_codec(wrong);
    REQUIRE(!parsed.has_value());
    CHECK(parsed.error().message().find("such as ef:0.95") != std::string::npos);
  }
}

TEST_CASE("momentum gives the same numbers as a computation by hand over three rounds") {
  // Each round sends one value of four. All numbers are exact.
  const Layout layout = flat_layout(4);
  const auto codec = codec_of("topk:0.25,dense_below=0+dgc:0.5");
  std::vector<float> residual(4);
  std::vector<float> velocity(4);
  struct Round {
    std::vector<float> update, sent, velocity, residual;
  };
  const std::vector<Round> rounds = {
      {{8, 4, 2, 0}, {8, 0, 0, 0}, {0, 4, 2, 0}, {0, 4, 2, 0}},
      // The second value is sent with the momentum of the round before: 4 + (2 + 4). The first
      // value has none, because it was sent.
      {{1, 4, 2, 0}, {0, 10, 0, 0}, {1, 0, 3, 0}, {1, 0, 5, 0}},
      {{1, 1, -8, 0}, {2.5f, 0, 0, 0}, {0, 1, -6.5f, 0}, {0, 1, -1.5f, 0}},
  };
  for (const Round& round : rounds) {
    std::vector<float> update = round.update;
    add_velocity(update, velocity, codec->momentum());
    add_residual(update, residual);
    const auto payload = encode(*codec, layout, update);
    SpanSource source(payload);
    auto reader = PayloadReader::open(source, payload.size(), layout).value();
    keep_residual(update, reader, residual).value();
    stop_sent(velocity, reader).value();
    CHECK(decode(payload, layout) == round.sent);
    CHECK(velocity == round.velocity);
    CHECK(residual == round.residual);
  }
}

TEST_CASE("with momentum, sent + residual = sum of velocities over 50 rounds, some refused") {
  const Layout layout = layout_of({{"a", {700}}, {"b", {33}}});
  for (const std::string& spec : specs_to_test()) {
    const auto parsed = parse_codec(spec + "+dgc:0.75");
    if (!parsed) continue;  // dgc needs a selector.
    CAPTURE(spec);
    std::vector<float> residual(layout.elements());
    std::vector<float> velocity(layout.elements());
    std::vector<double> wanted(layout.elements());
    std::vector<double> sent(layout.elements());
    for (std::uint64_t round = 0; round < 50; ++round) {
      const std::vector<float> fresh = normal(layout.elements(), round);
      std::vector<float> update = fresh;
      const std::vector<float> before = velocity;
      add_velocity(update, velocity, (*parsed)->momentum());
      for (std::size_t i = 0; i < update.size(); ++i) {
        REQUIRE(velocity[i] == 0.75f * before[i] + fresh[i]);
        wanted[i] += velocity[i];
      }
      add_residual(update, residual);
      const auto payload = encode(**parsed, layout, update, round, 256);
      SpanSource source(payload);
      auto reader = PayloadReader::open(source, payload.size(), layout).value();
      keep_residual(update, reader, residual).value();
      const std::vector<float> moving = velocity;
      stop_sent(velocity, reader).value();
      const auto decoded = decode(payload, layout);
      for (std::size_t i = 0; i < sent.size(); ++i) {
        REQUIRE(velocity[i] == (decoded[i] == 0 ? moving[i] : 0.0f));
      }
      // Every third payload is refused: all values go back to the residual, and velocities that
      // were stopped stay 0.
      if (round % 3 == 2) {
        add_decoded(residual, reader).value();
        for (std::size_t i = 0; i < update.size(); ++i) {
          REQUIRE(std::fabs(residual[i] - update[i]) <= 0x1p-15);
        }
        continue;
      }
      for (std::size_t i = 0; i < sent.size(); ++i) sent[i] += decoded[i];
    }
    for (std::size_t i = 0; i < sent.size(); ++i) {
      // Each round rounds four times, at values below about 2^9.
      REQUIRE(std::fabs(sent[i] + residual[i] - wanted[i]) < 50 * 4 * 0x1p-15);
    }
  }
}

TEST_CASE("coding_error() is of the decoded values and of what was coded, over all blocks") {
  const Layout layout = layout_of({{"a", {700}}, {"b", {33}}});
  const std::vector<float> update = normal(layout.elements(), 2);
  const auto payload = encode(*codec_of("qsgd:3"), layout, update, 5, 256);
  const auto decoded = decode(payload, layout);
  double wanted = 0;
  double power = 0;
  for (std::size_t i = 0; i < update.size(); ++i) {
    wanted += std::pow(static_cast<double>(update[i]) - decoded[i], 2);
    power += std::pow(static_cast<double>(update[i]), 2);
  }
  SpanSource source(payload);
  auto reader = PayloadReader::open(source, payload.size(), layout).value();
  CHECK(wanted > 1);
  const CodingError error = coding_error(update, reader).value();
  CHECK(error.lost == doctest::Approx(wanted));
  CHECK(error.power == doctest::Approx(power));
  CHECK(error.nmse() == doctest::Approx(wanted / power));
  CHECK(CodingError().nmse() == 0);
}

TEST_CASE("with deltas the reference converges to a constant update, with every codec") {
  const Layout layout = layout_of({{"a", {20, 50}}, {"b", {33}}});
  const std::vector<float> update = normal(layout.elements(), 3);
  for (const std::string& spec : specs_to_test()) {
    CAPTURE(spec);
    const auto codec = codec_of("delta+" + spec);
    // Two kinds of codecs are left out: a fixed threshold never sends small differences, and a
    // sketch may repeat its errors.
    if (spec.starts_with("threshold") || spec.starts_with("countsketch")) continue;
    std::vector<float> reference(layout.elements());
    double first = 0;
    double last = 0;
    for (std::uint64_t round = 0; round < 60; ++round) {
      auto difference = update;
      subtract_reference(difference, reference);
      const auto payload = encode(*codec, layout, difference, round, block_elements_default);
      SpanSource source(payload);
      auto reader = PayloadReader::open(source, payload.size(), layout).value();
      add_decoded(reference, reader).value();
      last = 0;
      for (std::size_t i = 0; i < update.size(); ++i)
        last += std::pow(static_cast<double>(update[i]) - reference[i], 2);
      if (round == 0) first = last;
    }
    // Each round leaves only a part of the difference (EF21, lemma 1).
    CHECK(last <= (first > 1 ? 0.9 * first : 1e-3));
  }
}

TEST_CASE("add_decoded() takes a payload back, also if x and the residual share memory") {
  const Layout layout = flat_layout(1000);
  const std::vector<float> update = normal(1000, 1);
  const auto payload = encode(*codec_of("qsgd:1"), layout, update);
  SpanSource source(payload);
  auto reader = PayloadReader::open(source, payload.size(), layout).value();
  std::vector<float> residual = update;
  keep_residual(residual, reader, residual).value();
  CHECK(residual != update);
  add_decoded(residual, reader).value();
  for (std::size_t i = 0; i < residual.size(); ++i) {
    CHECK(std::fabs(residual[i] - update[i]) < 1e-5f);
  }
}
