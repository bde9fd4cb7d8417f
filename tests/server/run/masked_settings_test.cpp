// SPDX-License-Identifier: Apache-2.0
// The settings of masked runs: how they are read, what is refused beside them and why, and which
// defaults change.
#include "server/run/masked_settings.hpp"
#include "server/run/run_plan.hpp"
#include "shared/params/model_table.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::server;
namespace {

/// Settings that fit a masked run.
RunSettings masked_run() {
  RunSettings settings;
  settings.secure_aggregation = "on";
  CHECK(set_masked_defaults(settings, {}) ==
        "masked run: --codec lanes:8, --weights equal, --min-clients 3, no --norm-limit");
  return settings;
}

TEST_CASE("--secure-aggregation is off, or on with options") {
  CHECK_FALSE(parse_secure_aggregation("off").value().has_value());
  const MaskedSettings usual = parse_secure_aggregation("on").value().value();
  CHECK(usual.attempts == 3);
  CHECK(usual.step_seconds == 60);
  const MaskedSettings most =
      parse_secure_aggregation("on:attempts=100,step-seconds=86400").value().value();
  CHECK(most.attempts == 100);
  CHECK(most.step_seconds == 86'400);
  CHECK(parse_secure_aggregation("on:step-seconds=1.5").value()->step_seconds == 1.5);
  for (const char* const wrong :
       {"", "yes", "On", "on:attempts=0", "on:attempts=101", "on:attempts=1.5",
        "on:step-seconds=0.5", "on:step-seconds=86401", "on:tries=3", "off:attempts=3"}) {
    CAPTURE(wrong);
    const auto parsed = parse_secure_aggregation(wrong);
    REQUIRE(parsed.has_error());
    CHECK(parsed.error().code() == Errc::invalid_input);
  }
}

TEST_CASE("defaults that don't fit a masked run are set, unless a flag was given") {
  RunSettings settings = masked_run();
  CHECK(settings.codec == "lanes:8");
  CHECK(settings.weights == "equal");
  CHECK(settings.min_clients == 3);
  CHECK(check_settings(settings));
  // Once more, as at a restart: all are set already.
  CHECK(set_masked_defaults(settings, {"secure-aggregation"}) == "masked run: no --norm-limit");

  RunSettings given;
  given.secure_aggregation = "on:attempts=2";
  given.codec = "randk:0.1+lanes:6+ef";
  CHECK(set_masked_defaults(given, {"codec", "min-clients"}) ==
        "masked run: --weights equal, no --norm-limit");
  CHECK(given.codec == "randk:0.1+lanes:6+ef");
  CHECK(given.min_clients == 2);  // check_masked() refuses it.

  RunSettings clear;
  const std::string before = to_json(clear);
  CHECK(set_masked_defaults(clear, {}).empty());
  CHECK(to_json(clear) == before);
  clear.secure_aggregation = "nonesuch";
  CHECK(set_masked_defaults(clear, {}).empty());
}

TEST_CASE("what the server would have to read is refused in a masked run, with what to use") {
  struct Case {
    std::function<void(RunSettings&)> change;
    const char* begins;
    const char* why;
    const char* instead;
  };
  const std::vector<Case> cases{
      {[](RunSettings& s) { s.mode = "async"; }, "--mode async", "comes late", "--mode sync"},
      {[](RunSettings& s) { s.mode = "sync:late=1"; }, "--mode sync:late=1", "comes late",
       "use --mode sync"},
      {[](RunSettings& s) { s.aggregate = "median"; }, "--aggregate median",
       "compares single updates", "use --aggregate mean"},
      {[](RunSettings& s) { s.sampling = "oort:alpha=1"; }, "--sampling oort:alpha=1",
       "each would have to tell", "use --sampling uniform or round-robin"},
      {[](RunSettings& s) { s.sampling = "power-of-choice"; }, "--sampling power-of-choice",
       "each would have to tell", "use --sampling uniform or round-robin"},
      {[](RunSettings& s) { s.sampling = "examples"; }, "--sampling examples",
       "numbers of examples", "use --sampling uniform or round-robin"},
      {[](RunSettings& s) { s.weights = "examples"; }, "--weights examples", "how many examples",
       "use --weights equal"},
      {[](RunSettings& s) { s.min_clients = 2; }, "--min-clients 2",
       "each would learn the other's update", "use --min-clients 3 or more"},
      {[](RunSettings& s) { s.min_clients = 129; }, "--min-clients 129", "128 at most",
       "use --min-clients 128 or less"},
      {[](RunSettings& s) { s.clients_per_round = 129; }, "--clients-per-round 129", "128 at most",
       "use --clients-per-round 128 or less"},
      {[](RunSettings& s) { s.strategy = "fednova"; }, "--strategy fednova", "how many steps",
       "use another one (fedavg"},
      {[](RunSettings& s) {
         s.strategy = "signvote:lr=0.1";
         s.codec = "sign";
       },
       "--strategy signvote:lr=0.1", "the signs of single updates", "use another one (fedavg"},
      {[](RunSettings& s) { s.model = "mlp:5-4-2"; }, "--model mlp:5-4-2",
       "mean and variance of their columns", "use scale=none"},
      {[](RunSettings& s) { s.model = "resnet8"; }, "--model resnet8",
       "is a statistic, which is sent exactly", "a model without BatchNorm"},
      {[](RunSettings& s) { s.codec = "auto"; }, "--codec auto", "different codecs",
       "use --codec lanes:8"},
      {[](RunSettings& s) { s.codec = "auto:lanes:8|lanes:4"; },
       "--codec auto:", "different codecs", "use --codec lanes:8"},
      {[](RunSettings& s) { s.codec = "delta+lanes:8"; }, "--codec delta+lanes:8",
       "the client's update before", "use --codec lanes:8"},
      {[](RunSettings& s) { s.codec = "ecuq:4"; }, "--codec ecuq:4", "is not coded by lanes",
       "use --codec lanes:8"},
      {[](RunSettings& s) { s.codec = "topk:0.01+lanes:8+ef"; }, "--codec topk:0.01",
       "is not coded by lanes", "randk:F+lanes:B, each also with +ef"},
      {[](RunSettings& s) { s.norm_limit = 10; }, "--norm-limit 10", "the norms of single updates",
       "leave it out"},
      {[](RunSettings& s) { s.keep_updates = "3"; }, "--keep-updates 3", "can't be replayed yet",
       "use --keep-updates none"},
      {[](RunSettings& s) { s.keep_updates = "all"; }, "--keep-updates all",
       "can't be replayed yet", "use --keep-updates none"},
  };
  for (const Case& one : cases) {
    CAPTURE(one.begins);
    RunSettings settings = masked_run();
    one.change(settings);
    const auto checked = check_settings(settings);
    REQUIRE(checked.has_error());
    const std::string said = checked.error().message();
    CAPTURE(said);
    CHECK(checked.error().code() == Errc::invalid_input);
    CHECK(said.starts_with(one.begins));
    CHECK(said.find(" does not go with --secure-aggregation: ") != std::string::npos);
    CHECK(said.find(one.why) != std::string::npos);
    CHECK(said.find(one.instead) != std::string::npos);
    CHECK(said.find('\n') == std::string::npos);
    settings.secure_aggregation = "off";
    if (settings.codec == "lanes:8") CHECK(check_settings(settings));  // Nothing else is wrong.
  }
}

TEST_CASE("what needs only the sum of the updates goes with masks") {
  const std::vector<std::function<void(RunSettings&)>> fitting{
      [](RunSettings& s) { s.codec = "lanes:4"; },
      [](RunSettings& s) { s.codec = "lanes:8+ef"; },
      [](RunSettings& s) { s.codec = "randk:0.1+lanes:8"; },
      [](RunSettings& s) { s.strategy = "scaffold"; },
      [](RunSettings& s) { s.strategy = "feddyn:alpha=0.1"; },
      [](RunSettings& s) { s.strategy = "fedadam"; },
      [](RunSettings& s) { s.sampling = "round-robin"; },
      [](RunSettings& s) { s.weights.clear(); },
      [](RunSettings& s) { s.norm_limit = 0; },
      [](RunSettings& s) { s.clients_per_round = 128; },
      [](RunSettings& s) { s.over_select = 0; },
      [](RunSettings& s) { s.target = "accuracy>=0.9"; },
      [](RunSettings& s) { s.model = "mlp:5-4-2,scale=none"; },
      [](RunSettings& s) {
        s.local_steps = 10;
        s.local_steps_schedule = "adaptive";
      },
  };
  for (std::size_t i = 0; i < fitting.size(); ++i) {
    CAPTURE(i);
    RunSettings settings = masked_run();
    fitting[i](settings);
    CHECK(check_settings(settings));
  }
}

TEST_CASE("clients count by their examples, or equally") {
  const auto weight = [](const char* weights, const char* masks) {
    RunSettings settings;
    settings.weights = weights;
    settings.secure_aggregation = masks;
    const RunPlan plan(settings, RunRecord(), builtin_layout(settings.model).value());
    CHECK(plan.masked.has_value() == (masks == std::string("on")));
    RoundRecord round;
    round.examples_max = 100;
    CHECK(plan.weight_of(0, round) == (plan.has_equal_weights ? 1 : 0));
    CHECK(plan.weight_of(1000, round) == (plan.has_equal_weights ? 1 : 100));
    return plan.weight_of(20, round);
  };
  CHECK(weight("", "off") == 20);
  CHECK(weight("examples", "off") == 20);
  CHECK(weight("equal", "off") == 1);
  CHECK(weight("", "on") == 1);
  CHECK(weight("equal", "on") == 1);

  RunSettings settings;
  settings.weights = "equel";
  CHECK(check_settings(settings).error().message() ==
        "--weights: it must be examples or equal, not 'equel'");
  settings.weights = "equal";
  CHECK(check_settings(settings));
}

TEST_CASE("a masked round wants no more clients than a cohort may have") {
  RunSettings settings = masked_run();
  const RunPlan plan(settings, RunRecord(), builtin_layout(settings.model).value());
  CHECK(plan.target_clients(1000) == 128);
  CHECK(plan.target_clients(100) == 100);
}

}  // namespace
}  // namespace fl::test
