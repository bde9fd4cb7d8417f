// SPDX-License-Identifier: Apache-2.0
// What a run is judged by: --metric, --target, --target-accuracy.
#include "server/run/target.hpp"
#include "server/run/settings.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

namespace fl::test {

using namespace fl::server;
namespace {

TEST_CASE("a target is a metric, a sign and a number") {
  const std::pair<const char*, Target> cases[] = {
      {"accuracy>=0.86", {"accuracy", false, 0.86}},
      {"perplexity<=20", {"perplexity", true, 20}},
      {" loss <= 1e-3 ", {"loss", true, 0.001}},
      {"my.score/a-b>=-4", {"my.score/a-b", false, -4}},
      {"mine<=-0.5", {"mine", true, -0.5}},
      {"F1 (macro) >= 0.8", {"F1 (macro)", false, 0.8}},
      {"share of p<=0.05>=0.9", {"share of p<=0.05", false, 0.9}},
      {"a >= b <= 2", {"a >= b", true, 2}},
  };
  for (const auto& one : cases) {
    CAPTURE(std::string(one.first));
    const auto target = parse_target(one.first);
    REQUIRE(target);
    CHECK((*target == one.second));
  }
  CHECK(parse_target("f1>=0.5")->is_met(0.5));
  CHECK(!parse_target("f1>=0.5")->is_met(0.4999));
  CHECK(parse_target("mae<=0.5")->is_met(0.5));
  CHECK(!parse_target("mae<=0.5")->is_met(0.5001));
}

TEST_CASE("the error for a wrong target says what to write") {
  const std::pair<const char*, const char*> cases[] = {
      {"0.86", "write 'NAME>=NUMBER'"},
      {"accuracy", "write 'NAME>=NUMBER'"},
      {"accuracy>0.86", "write 'NAME>=NUMBER'"},
      {"accuracy=0.86", "write 'NAME>=NUMBER'"},
      {"accuracy>=", "write 'NAME>=NUMBER'"},
      {"accuracy>=high", "write 'NAME>=NUMBER'"},
      {"accuracy>=86%", "write 'NAME>=NUMBER'"},
      {"accuracy>=nan", "write 'NAME>=NUMBER'"},
      {"accuracy>=inf", "write 'NAME>=NUMBER'"},
      {"accuracy>=0.8 0.9", "write 'NAME>=NUMBER'"},
      {">=0.8", "the name of a metric is missing before the sign"},
      {"a\tb>=0.8", "'a?b' can't be the name of a metric"},
      {"RMSE>=0.8", "lower values are better: write 'RMSE<=0.8'"},
      {"own_accuracy>=0.8", "reserved"},
      {"accuracy<=0.86", "higher values are better: write 'accuracy>=0.86'"},
      {"perplexity>=20", "lower values are better: write 'perplexity<=20'"},
      {"loss>=1", "lower values are better: write 'loss<=1'"},
      {"accuracy>=86", "accuracy is from 0 to 1 (0.86 for 86%), not 86"},
  };
  for (const auto& one : cases) {
    CAPTURE(std::string(one.first));
    const auto target = parse_target(one.first);
    REQUIRE(target.has_error());
    CAPTURE(target.error().message());
    CHECK(target.error().code() == Errc::invalid_input);
    CHECK(target.error().message().find(one.second) != std::string::npos);
  }
}

TEST_CASE("settings have one target, also in the short form") {
  RunSettings settings;
  CHECK(!target_of(settings));
  settings.target_accuracy = 0.5;
  CHECK((target_of(settings).value() == Target{"accuracy", false, 0.5}));
  CHECK(check_settings(settings));
  settings.target = "perplexity<=20";
  const auto both = check_settings(settings);
  REQUIRE(both.has_error());
  CHECK(both.error().message().starts_with("--target-accuracy 0.5 is short for --target"));
  settings.target_accuracy = 0;
  CHECK(check_settings(settings));
  CHECK((target_of(settings).value() == Target{"perplexity", true, 20}));
  settings.target = "perplexity";
  CHECK(check_settings(settings).error().message().starts_with("--target: write"));
  settings.target.clear();
  settings.metric = "top5 ";
  CHECK(check_settings(settings).error().message().starts_with("--metric: 'top5 ' can't be"));
  for (const char* const name : {"", "loss", "top5", "Top 5"}) {
    settings.metric = name;
    CHECK(check_settings(settings));
  }
}

TEST_CASE("the direction is the target's, or the known one, or what was declared") {
  const std::vector<MetricKind> declared{{.name = "mine", .lower_is_better = true},
                                         {.name = "f1", .combine = Combine::none}};
  CHECK(judged_kind("mine", std::nullopt, declared).lower_is_better);
  CHECK(!judged_kind("mine", Target{"mine", false, 1}, {}).lower_is_better);
  CHECK(!judged_kind("other", std::nullopt, declared).lower_is_better);
  CHECK((judged_kind("perplexity", std::nullopt, {}) == known_metric("perplexity")));
  CHECK((judged_kind("loss", std::nullopt, declared) == known_metric("loss")));
  CHECK(judged_kind("f1", std::nullopt, declared).combine == Combine::none);
  CHECK(check_direction(declared, std::nullopt));
  CHECK(check_direction(declared, Target{"mine", true, 3}));
  CHECK(check_direction(declared, Target{"other", false, 3}));
  const auto wrong = check_direction(declared, Target{"mine", false, 3});
  REQUIRE(wrong.has_error());
  CHECK(wrong.error().message() ==
        "the client says that lower values of mine are better, and the run's target is mine>=3: "
        "correct --target, or the client's trainer");
}

}  // namespace
}  // namespace fl::test
