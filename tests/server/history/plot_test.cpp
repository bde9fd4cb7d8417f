// SPDX-License-Identifier: Apache-2.0
// The picture of a run: what stands where, what is left out, and what a hostile name can't do.
#include "server/history/plot.hpp"
#include "tests/server/history/records.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

namespace fl::test {

using namespace fl::server;
namespace {

std::vector<RoundSummary> rounds_of(Round count) {
  std::vector<RoundSummary> rounds;
  for (Round number = 1; number <= count; ++number) {
    RoundSummary round;
    round.run = 1;
    round.round = number;
    round.seconds = 1800;
    round.bytes_up = 1'000'000;
    round.bytes_down = 1'500'000;
    round.train_loss = 2.0 / number;
    round.eval_loss = 2.5 / number;
    round.metric = "accuracy";
    round.eval_metric = 1 - 0.5 / number;
    rounds.push_back(round);
  }
  return rounds;
}

std::string plot(const std::vector<RoundSummary>& rounds) {
  return plot_svg(some_run(), rounds).value();
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

std::size_t count_of(const std::string& text, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++count;
  return count;
}

TEST_CASE("a picture shows metric and losses over rounds, hours and bytes") {
  const std::string svg = plot(rounds_of(4));
  CHECK(svg.starts_with("<svg xmlns="));
  CHECK(svg.ends_with("</svg>\n"));
  for (const char* text : {">accuracy<", ">loss<", ">rounds<", ">hours of rounds<",
                           ">MB sent, up and down<", ">measured of the model<", ">in training<"}) {
    INFO(text);
    CHECK(has(svg, text));
  }
  CHECK(has(svg, "4 rounds, 2 h 00 min, 10.0 MB; accuracy 87.50 % in round 4"));
  // One line of the metric and two of losses in each of three panels.
  CHECK(count_of(svg, "<circle class=\"one\"") == 6);
  CHECK(count_of(svg, "<circle class=\"two\"") == 3);
}

TEST_CASE("a value lies where the marks of its axes say") {
  // 50 % to 87.5 %: marks from 50 to 90. The last round is at the right end of the middle column,
  // 2 of 2 hours, and (90 - 87.5) / 40 of 190 below the top, which is 94.
  const std::string svg = plot(rounds_of(4));
  CHECK(has(svg, ">50 %<"));
  CHECK(has(svg, ">90 %<"));
  CHECK(has(svg, "cx=\"700.0\" cy=\"105.9\""));
}

TEST_CASE("what was not measured is left out, and nothing at all is refused") {
  auto rounds = rounds_of(3);
  for (RoundSummary& round : rounds) {
    round.eval_loss.reset();
    round.eval_metric.reset();
  }
  std::string svg = plot(rounds);
  CHECK_FALSE(has(svg, ">accuracy<"));
  CHECK(count_of(svg, "<circle") == 3);
  for (RoundSummary& round : rounds) round.train_loss = std::numeric_limits<double>::quiet_NaN();
  CHECK(plot_svg(some_run(), rounds).error().message().find("nothing to plot") !=
        std::string::npos);
  CHECK(plot_svg(some_run(), {}).error().code() == Errc::not_found);
  // The loss as the main metric has one row, not two.
  rounds = rounds_of(2);
  for (RoundSummary& round : rounds) round.metric = "loss";
  svg = plot(rounds);
  CHECK(count_of(svg, "class=\"row\"") == 1);
}

TEST_CASE("one round, equal values and huge ones make a picture with finite numbers") {
  for (const double value : {0.0, 1.0, -3.0, 1e299, 1e300, 1e-300}) {
    auto rounds = rounds_of(2);
    for (RoundSummary& round : rounds) {
      round.metric = "mae";
      round.eval_metric = value;
      round.seconds = 0;
      round.bytes_up = round.bytes_down = 0;
    }
    for (const std::size_t count : {std::size_t{1}, std::size_t{2}}) {
      const std::string svg = plot({rounds.begin(), rounds.begin() + static_cast<int>(count)});
      INFO(value);
      CHECK_FALSE(has(svg, "nan"));
      CHECK_FALSE(has(svg, "inf"));
      CHECK(svg.size() < 100'000);
    }
  }
}

TEST_CASE("ten thousand rounds are a small picture that keeps its peaks") {
  auto rounds = rounds_of(10'000);
  rounds[5000].eval_metric = 0.01;
  const std::string svg = plot(rounds);
  CHECK(svg.size() < 200'000);
  CHECK(has(svg, ">0 %<"));
  // The lowest point: 0.01 of 0 to 100 %, that is 1.9 above the bottom at 284.
  CHECK(has(svg, " 282.1 L"));
}

TEST_CASE("names from outside are text in the picture and nothing else") {
  RunRecord run = some_run();
  run.model = "custom:<script>&\"x\"\n";
  const std::string svg = plot_svg(run, rounds_of(2)).value();
  CHECK_FALSE(has(svg, "<script>"));
  CHECK(has(svg, "custom:&lt;script&gt;&amp;&quot;x&quot;?"));
}

}  // namespace
}  // namespace fl::test
