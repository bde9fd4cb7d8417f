// SPDX-License-Identifier: Apache-2.0
// A masked round and one in the clear, of the same updates: the mean is the same, bit for bit, and
// so are the tallies from which the next steps follow.
#include "server/sums/accumulator.hpp"
#include "server/sums/lane_steps.hpp"
#include "server/sums/lane_sums.hpp"
#include "shared/codec/spec/parser.hpp"
#include "tests/codec/codec_support.hpp"
#include "tests/secure/attempt_world.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <numeric>

using namespace fl;
using namespace fl::testing;

namespace {

constexpr std::uint64_t round_seed = 77;

const Layout& some_layout() {
  static const Layout layout = layout_of({{"conv", {70, 1000}},
                                          {"conv.bias", {70}},
                                          {"gain", {}},
                                          {"embedding", {300, 9}},
                                          {"shift", {2}}});
  return layout;
}

/// One round of clients with these weights.
struct Updates {
  Updates(const std::string& codec_spec, std::vector<std::uint64_t> client_weights,
          LaneSteps round_steps)
      : codec(codec_of(codec_spec)),
        weights(std::move(client_weights)),
        steps(std::make_shared<const LaneSteps>(std::move(round_steps))) {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      auto x = normal(some_layout().elements(), 50 + i, 0.02f);
      x[70'070] = 0.3f;  // A bare tensor.
      std::vector<std::byte> payload;
      VectorSink sink(payload);
      codec->encode(some_layout(), x, {seed_of(i), round_seed, steps}, sink).value();
      payloads.push_back(std::move(payload));
    }
  }

  static std::uint64_t seed_of(std::size_t client) { return 1000 + client; }
  static double loss_of(std::size_t client) { return 0.25 + static_cast<double>(client); }
  [[nodiscard]] std::uint64_t weight_sum() const {
    return std::accumulate(weights.begin(), weights.end(), std::uint64_t{0});
  }
  template <class Use>
  void read(std::size_t client, const Use& use) const {
    SpanSource source(payloads[client]);
    auto reader = PayloadReader::open(source, payloads[client].size(), some_layout()).value();
    use(reader);
  }
  [[nodiscard]] secure::LaneWords lanes() const {
    return {codec->lane_runs(some_layout(), *steps).value(), some_layout().tensors().size(),
            weight_sum()};
  }
  [[nodiscard]] Words words(std::size_t client) const {
    Words out;
    read(client, [&](PayloadReader& reader) {
      out =
          secure::lane_words_of(reader, lanes(), *steps, loss_of(client), weights[client]).value();
    });
    return out;
  }

  std::shared_ptr<const Codec> codec;
  std::vector<std::uint64_t> weights;
  std::shared_ptr<const LaneSteps> steps;
  std::vector<std::vector<std::byte>> payloads;
};

std::vector<float> mean_in_the_clear(const Updates& updates) {
  server::Accumulator sums(some_layout(), updates.weight_sum());
  for (std::size_t i = 0; i < updates.weights.size(); ++i) {
    updates.read(i, [&](PayloadReader& reader) {
      sums.count(sums.add(reader, updates.weights[i]).value());
    });
  }
  const auto visit = [&](const server::Accumulator::AddUpdate& again) {
    for (std::size_t i = 0; i < updates.weights.size(); ++i) {
      updates.read(
          i, [&](PayloadReader& reader) { again(reader, updates.weights[i], nullptr).value(); });
    }
    return success();
  };
  sums.settle(visit).value();
  std::vector<float> mean(some_layout().elements());
  sums.mean(0, static_cast<double>(updates.weight_sum()), mean);
  return mean;
}

std::vector<LaneTally> tallies_in_the_clear(const Updates& updates) {
  std::vector<LaneTally> tallies(some_layout().tensors().size());
  for (std::size_t i = 0; i < updates.weights.size(); ++i) {
    updates.read(i, [&](PayloadReader& reader) {
      for (std::uint64_t b = 0; b < reader.blocks(); ++b) {
        const std::uint32_t tensor = reader.block(b).tensor;
        reader.add_lane_tally(b, (*updates.steps)[tensor], tallies[tensor]).value();
      }
    });
  }
  return tallies;
}

LaneSteps some_steps(int bits) {
  LaneSteps steps;
  for (const double rms : {0.02, 0.02, 0.02, 0.004, 0.02}) steps.push_back(fitting_step(bits, rms));
  return steps;
}

/// The words of all, masked, added up and opened.
Words masked_sum(const Updates& updates) {
  Table table(people(updates.weights.size()));
  const Indices everybody = first_indices(updates.weights.size());
  table.deal(everybody);
  Words sum(updates.lanes().words());
  for (const std::uint32_t i : everybody) {
    const Words plain = updates.words(i);
    const Words sent = masked(table.seats[i], plain);
    CHECK(sent != plain);
    add_to(sum, sent);
  }
  const auto consents = table.consents(everybody, everybody);
  Unlocking unlocking(table.cohort, everybody, everybody);
  for (const std::uint32_t i : everybody)
    unlocking.take(i, table.seats[i].reveal(everybody, consents).value()).value();
  return unmasked(sum, unlocking.removals().value());
}

}  // namespace

TEST_CASE("a masked round has the mean of one in the clear, bit for bit, and its tallies") {
  for (const std::string spec :
       {"lanes:8", "lanes:8+ef", "lanes:2", "lanes:16", "randk:0.2,dense_below=0+lanes:6",
        "randk:0.01,dense_below=100+lanes:8+ef", "*.bias=lanes:12;*=lanes:4"}) {
    CAPTURE(spec);
    const int bits = codec_of(spec)->lane_bits(some_layout())[0];
    for (const bool is_first_round : {false, true}) {
      CAPTURE(is_first_round);
      LaneSteps steps = is_first_round ? LaneSteps(5) : some_steps(bits);
      const auto bits_of = codec_of(spec)->lane_bits(some_layout());
      for (std::size_t t = 0; t < steps.size(); ++t) {
        if (bits_of[t] == 0) steps[t] = LaneStep();  // As next_steps() leaves it.
      }
      const Updates updates(spec, {1, 255, 17, 100}, steps);
      const auto expected = mean_in_the_clear(updates);
      std::vector<server::LaneGiver> givers;
      for (std::size_t i = 0; i < 4; ++i)
        givers.push_back({Updates::seed_of(i), updates.weights[i]});
      const server::LaneSums sums(updates.lanes(), masked_sum(updates), givers, round_seed);
      std::vector<float> mean(some_layout().elements());
      for (std::size_t run = 0; run < sums.runs(); ++run) {
        const Block& block = sums.block(run);
        sums.mean_of_run(run, std::span(mean).subspan(block.flat, block.elements));
      }
      CHECK(mean == expected);
      CHECK(std::ranges::any_of(mean, [](float v) { return v != 0; }));
      const auto tallies = tallies_in_the_clear(updates);
      CHECK(sums.tallies() == tallies);
      const auto next = server::next_steps(bits_of, steps, tallies);
      CHECK(next[0].is_set());
      CHECK(sums.mean_loss() == (0.25 + 255 * 1.25 + 17 * 2.25 + 100 * 3.25) / 373);
    }
  }
}

TEST_CASE("squares count up to a limit at which those of the largest cohort add up") {
  // Each of so many blocks has the most squares that a block may have.
  const auto elements = static_cast<std::int64_t>(((lane_squares_max >> 50) + 2) << 16);
  const Layout layout = Layout::make({{"w", {elements}}}).value();
  const std::vector<float> x(layout.elements(), 0.01F);
  const auto codec = codec_of("lanes:8");
  const auto steps = std::make_shared<const LaneSteps>(1);
  std::vector<std::byte> payload;
  VectorSink sink(payload);
  codec->encode(layout, x, {1, 2, steps}, sink).value();
  SpanSource source(payload);
  auto reader = PayloadReader::open(source, payload.size(), layout).value();
  const secure::LaneWords places(codec->lane_runs(layout, *steps).value(), 1, secure::cohort_max);
  const Words words = secure::lane_words_of(reader, places, *steps, 0, 1).value();
  const std::uint64_t squares = words[places.tallies_at()];
  CHECK(squares == lane_squares_max);
  CHECK(squares <= std::numeric_limits<std::uint64_t>::max() / secure::cohort_max);
  CHECK(LaneTally{.values = 1, .squares = squares + 1, .clipped = 2, .large = 3}.of_client() ==
        LaneTally{.values = 1, .squares = squares, .clipped = 2, .large = 3});
}

TEST_CASE("lanes have room for the extremes of all clients, whatever their weights") {
  for (const int bits : {2, 8, 16}) {
    for (const std::uint64_t weight : {1u, 255u}) {
      CAPTURE(bits);
      CAPTURE(weight);
      constexpr std::uint64_t clients = 128;
      LaneRun run{.values = 1000, .bits = bits, .step = LaneStep::at_least(1)};
      run.block.elements = 1000;
      LaneRun wide{.values = 3};
      wide.block.elements = 3;
      const secure::LaneWords lanes({run, wide}, 2, clients * weight);
      CHECK(lanes.lane_bits(0) == std::bit_width(clients * weight * 2 * lane_levels(bits)));
      CHECK(lanes.lane_bits(1) <= 43);
      for (const std::size_t which : {0u, 1u}) {
        const LaneRun& of = lanes.runs()[which];
        std::vector<std::int32_t> integers(of.values);
        for (std::size_t i = 0; i < integers.size(); ++i)
          integers[i] = i % 3 == 0 ? of.most() : i % 3 == 1 ? -of.most() : static_cast<int>(i % 2);
        Words one(lanes.begin_of(which + 1) - lanes.begin_of(which));
        Words sum(one.size());
        lanes.pack(which, integers, weight, one);
        for (std::uint64_t client = 0; client < clients; ++client) add_to(sum, one);
        std::vector<std::int64_t> sums(of.values);
        lanes.unpack(which, sum, clients * weight, sums);
        for (std::size_t i = 0; i < sums.size(); ++i)
          REQUIRE(sums[i] == static_cast<std::int64_t>(clients * weight) * integers[i]);
      }
    }
  }
}

TEST_CASE("a loss counts with its weight, and within bounds") {
  const Updates updates("lanes:8", {3, 255, 1}, some_steps(8));
  const auto word_of = [&](double loss, std::uint64_t weight) {
    std::uint64_t word = 0;
    updates.read(0, [&](PayloadReader& reader) {
      word = secure::lane_words_of(reader, updates.lanes(), *updates.steps, loss, weight)
                 .value()
                 .back();
    });
    return word;
  };
  CHECK(secure::mean_loss_of(word_of(0.75, 3) + word_of(-1.25, 1) + word_of(0, 1), 5) == 0.2);
  CHECK(secure::mean_loss_of(word_of(std::nan(""), 1), 1) == secure::masked_loss_max);
  CHECK(secure::mean_loss_of(word_of(1e300, 255) * 128, 255 * 128) == secure::masked_loss_max);
  CHECK(secure::mean_loss_of(word_of(-1e300, 255) * 128, 255 * 128) == -secure::masked_loss_max);
  CHECK(secure::mean_loss_of(~std::uint64_t{0} >> 1, 1) == secure::masked_loss_max);
}

TEST_CASE("an update that is coded in another way than all others' is not packed") {
  const Updates right("lanes:8", {1, 1, 1}, some_steps(8));
  const auto error_of = [&](const Updates& wrong) {
    std::string text = "no error";
    wrong.read(0, [&](PayloadReader& reader) {
      const auto words = secure::lane_words_of(reader, right.lanes(), *right.steps, 0.5, 1);
      if (!words) text = words.error().message();
    });
    return text;
  };
  CHECK(error_of(right) == "no error");
  for (const auto& wrong :
       {Updates("lanes:7", {1}, some_steps(8)), Updates("lanes:8+ef", {1}, some_steps(8)),
        Updates("lanes:8", {1}, some_steps(9)), Updates("lanes:8", {1}, LaneSteps(5)),
        Updates("none", {1}, LaneSteps(5)), Updates("kbit:8", {1}, LaneSteps(5))}) {
    INFO(error_of(wrong));
    CHECK(error_of(wrong).find("payload: block 0") == 0);
  }
}

TEST_CASE("codecs whose values can't be added up unread are refused by name") {
  const auto error_of = [&](std::string_view spec, const Layout& layout) {
    const auto runs = codec_of(spec)->lane_runs(layout, LaneSteps(layout.tensors().size()));
    return runs ? "no error" : runs.error().message();
  };
  CHECK(error_of("lanes:8", some_layout()) == "no error");
  CHECK(error_of("kbit:8", some_layout()) ==
        "updates by kbit:8 can't be added up unread: conv is not coded by lanes");
  CHECK(error_of("topk:0.1+lanes:8", some_layout()).find("conv is not coded by lanes") !=
        std::string::npos);
  CHECK(error_of("conv=none;*=lanes:8", some_layout()).find("conv is not coded by lanes") !=
        std::string::npos);
  // Small tensors are sent dense, whatever their rule: as multiples of 2^-24, which add up.
  CHECK(error_of("*.bias=none;*=lanes:8", some_layout()) == "no error");
  CHECK(error_of("lanes:8", layout_of({{"w", {9}}, {"norm.running_mean", {9}}}))
            .find("norm.running_mean is a statistic") != std::string::npos);
  CHECK(error_of("a=randk:0.01+lanes:8;*=lanes:8",
                 layout_of({{"a", {900, 1000}}, {"b", {900, 1000}}}))
            .find("b shares a codec with tensors of which few values are sent") !=
        std::string::npos);
}
