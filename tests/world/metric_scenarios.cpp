// SPDX-License-Identifier: Apache-2.0
// Metrics by name: what several evaluators measure together, and what ends a run early.
#include "tests/world/ended.hpp"
#include "tests/world/scenario.hpp"

#include "server/run/target.hpp"

#include <cmath>
#include <limits>
#include <utility>

namespace fl::test {

using namespace fl::server;

using namespace std::chrono_literals;

namespace {

/// An evaluator whose optimum is that of trainer `point`.
WorldOptions::Member judge(std::string name, std::uint32_t point, std::uint64_t examples,
                           std::vector<std::string> metrics) {
  WorldOptions::Member member{std::move(name), {point, 0, examples}, true};
  member.part.metrics = std::move(metrics);
  return member;
}

/// Two trainers with the same optimum, that of trainer 0.
WorldOptions agreed(Round rounds) {
  WorldOptions options = calm(2);
  options.settings.rounds = rounds;
  options.members[1].part.client = 0;
  return options;
}

constexpr std::uint32_t far_away = 77;  // A point that no trainer has.

/// Runs the world to its end and checks its history.
Ended checked_end_of(World& world) {
  const Ended ended = end_of(world);
  const auto right = check(world);
  CHECK(right);
  return ended;
}

}  // namespace

TEST_CASE("a small evaluator alone does not end a run whose large one measures something else") {
  for (const bool is_small_near : {true, false}) {
    CAPTURE(is_small_near);
    WorldOptions options = agreed(12);
    options.settings.target = "accuracy>=0.9";
    options.members.push_back(judge("judge-small", is_small_near ? 0 : far_away, 10, {"accuracy"}));
    options.members.push_back(
        judge("judge-large", is_small_near ? far_away : 0, 990, {"accuracy"}));
    World world(options);
    const Ended ended = checked_end_of(world);
    CHECK((ended.rounds == 12) == is_small_near);
    CHECK(ended.why.empty() == is_small_near);
  }
}

TEST_CASE("the run ends once its perplexity is low enough") {
  WorldOptions options = agreed(50);
  options.settings.target = "perplexity<=1.01";
  options.members.push_back(judge("judge", 0, 50, {"accuracy", "perplexity"}));
  World world(options);
  const Ended ended = checked_end_of(world);
  CHECK(ended.rounds < 50);
  CHECK(ended.rounds > 2);
  CHECK(ended.why.find(" has perplexity 1.0") != std::string::npos);
  CHECK(ended.why.ends_with(", the target is 1.01"));
}

TEST_CASE("patience follows the direction of the main metric") {
  WorldOptions options = calm(2);
  options.problem.noise = 0.1;
  options.settings.rounds = 200;
  options.settings.patience = 4;
  options.members.push_back(judge("judge", 0, 50, {"accuracy", "distance"}));
  for (const char* const metric : {"distance", "loss", ""}) {
    CAPTURE(std::string(metric));
    options.settings.metric = metric;
    World world(options);
    const Ended ended = checked_end_of(world);
    CHECK(ended.rounds < 200);
    const auto history = History::open(world);
    Version best = 0;
    double least = std::numeric_limits<double>::infinity();
    for (const EvaluationRecord& answer :
         history->store->measurements().evaluator_answers(history->run.id, 1).value()) {
      if (answer.loss < least) best = answer.version;
      least = std::min(least, answer.loss);
    }
    CHECK(best >= 3);  // The first versions are the worst.
    const std::string name = *metric == '\0' ? "accuracy" : metric;
    CHECK(ended.why.starts_with(
        fmt::format("no version was better than version {}, with {} ", best, name)));
    CHECK(ended.why.ends_with("in 4 rounds"));
  }
}

TEST_CASE("a restart comes to the same judgement of several evaluators") {
  WorldOptions options = calm(2);
  options.problem.noise = 0.1;
  options.settings.rounds = 200;
  options.settings.patience = 5;
  options.settings.metric = "distance";
  options.members.push_back(judge("judge-1", 0, 50, {"distance"}));
  options.members.push_back(judge("judge-2", 1, 200, {"distance"}));
  const Ended expected = [&] {
    World world(options);
    return checked_end_of(world);
  }();
  CHECK(expected.rounds < 200);
  const std::string reason = expected.why.substr(0, expected.why.find(','));
  for (const Round at : {3u, 8u, static_cast<Round>(expected.rounds)}) {
    CAPTURE(at);
    World world(options);
    bool is_killed = false;
    world.on_frame = [&](const std::string&, bool is_up, const wire::Header& header) {
      if (!is_up && header.has_offer() && header.offer().round() == at &&
          !std::exchange(is_killed, true))
        world.kill_server(true);
    };
    const Ended ended = checked_end_of(world);
    CHECK(is_killed);
    CHECK(ended.why.substr(0, ended.why.find(',')) == reason);
    // The answers for the version before may come while the next round is open already.
    CHECK(ended.rounds + 1 >= expected.rounds);
    CHECK(ended.rounds <= expected.rounds + 1);
  }
}

TEST_CASE("a run that has ended early stays so, whatever evaluators answer later") {
  for (const bool kills : {false, true}) {
    CAPTURE(kills);
    WorldOptions options = agreed(50);
    options.settings.target = "accuracy>=0.9";
    options.pause_max = 1ms;
    options.members.push_back(judge("judge-large", far_away, 990, {"accuracy"}));
    options.members.push_back(judge("judge-small", 0, 10, {"accuracy"}));
    World world(options);
    bool is_killed = false;
    bool has_ended = false;
    bool goes_on = false;
    world.on_connect = [](const std::string& client, Line&, Line& down) {
      if (client == "judge-large") down.bytes_per_s = 400;  // A version takes seconds.
      return true;
    };
    world.on_frame = [&](const std::string&, bool is_up, const wire::Header& header) {
      goes_on |= has_ended && !is_up && header.has_offer();
      // A client's answer to the server's Bye: by then all evaluations are durable.
      if (!is_up || !header.has_bye()) return;
      has_ended = true;
      if (kills && !std::exchange(is_killed, true)) world.kill_server(true);
    };
    const Ended ended = checked_end_of(world);
    CHECK(is_killed == kills);
    CHECK(!goes_on);
    CHECK(ended.rounds < 50);
    CHECK(ended.why.find(" has accuracy 9") != std::string::npos);
    const auto history = History::open(world);
    const auto rounds = history->store->summaries().rounds(history->run.id).value();
    CHECK(rounds.back().eval_accuracy.value() < 0.9);  // As both evaluators have it.
    CHECK(world.server_starts() == (kills ? 2 : 1));
  }
}

TEST_CASE("losses weigh predictions and updates weigh examples, also after a restart") {
  for (const bool kills : {false, true}) {
    CAPTURE(kills);
    WorldOptions options = calm(3);
    options.settings.rounds = 2;
    options.members[0].part.predictions = 7;
    options.members[1].part.predictions = 0;  // All its targets are masked.
    options.members.push_back(judge("judge-1", 0, 50, {"accuracy"}));
    options.members.push_back(judge("judge-2", 1, 50, {"accuracy"}));
    options.members.push_back(judge("judge-3", 1, 50, {"accuracy"}));
    options.members[4].part.predictions = 4;
    options.members[5].part.predictions = 0;
    World world(options);
    bool is_killed = false;
    world.on_frame = [&](const std::string&, bool is_up, const wire::Header& header) {
      // The evaluator's figures are durable now.
      if (kills && !is_up && header.has_verdict() && !std::exchange(is_killed, true))
        world.kill_server(true);
    };
    REQUIRE(world.run());
    CHECK(check(world));
    CHECK(is_killed == kills);
    const auto history = History::open(world);
    for (const TaskRecord& task : history->store->rounds().tasks(history->run.id, 1).value()) {
      const bool is_first = task.client == options.members[0].name;
      const bool is_second = task.client == options.members[1].name;
      CHECK(task.predictions.has_value() == (is_first || is_second));
      if (is_first) CHECK(task.predictions == 7.0 * static_cast<double>(task.examples));
    }
    // check() has compared the view and the rounds' losses with what each client has measured. One
    // evaluator has nothing to evaluate on.
    for (const EvaluationRecord& answer :
         history->store->measurements().evaluator_answers(history->run.id, 1).value()) {
      CHECK(answer.client != "judge-3");
      CHECK(answer.predictions == (answer.client == "judge-2" ? 200 : 0));
    }
  }
}

TEST_CASE("a client whose metrics are not right is refused, and the run goes on") {
  struct Case {
    std::function<void(wire::Ready&)> change;
    std::string reason;
    bool is_evaluator = false;
  };
  const std::vector<Case> cases{
      {[](wire::Ready& ready) {
         for (int i = 0; i < 1000; ++i) ready.add_metrics()->set_name(fmt::format("m{}", i));
       },
       "1001 metrics are declared, and the limit is 16"},
      {[](wire::Ready& ready) { ready.mutable_metrics(0)->set_name("a\nb"); },
       "'a?b' can't be the name of a metric"},
      {[](wire::Ready& ready) { ready.mutable_metrics(0)->set_lower_is_better(true); },
       "of metric accuracy higher values are better"},
      {[](wire::Ready& ready) { ready.mutable_metrics(0)->set_name("mine"); },
       "the client says that higher values of mine are better, and the run's target is mine<=3",
       true},
  };
  for (const Case& one : cases) {
    INFO(one.reason);
    WorldOptions options = calm(2);
    options.settings.target = "mine<=3";
    options.members.push_back(judge("judge", 0, 20, {"accuracy"}));
    options.members.push_back(one.is_evaluator ? judge("odd", 0, 20, {"accuracy"})
                                               : WorldOptions::Member{"odd", {2, 50, 10}, false});
    World world(options);
    world.clients().at("odd").may_fail = true;
    int evaluated = 0;
    world.on_connect = [&](const std::string& client, Line& up, Line&) {
      if (client != "odd") return true;
      up.edit = [&](wire::Header& header) {
        if (header.has_ready()) one.change(*header.mutable_ready());
      };
      return evaluated > 0;
    };
    world.on_frame = [&](const std::string& client, bool is_up, const wire::Header& header) {
      // The verdict of a round comes after the judge's answer is in the history.
      evaluated += client == "client-1" && !is_up && header.offer().round() == 2 ? 1 : 0;
    };
    REQUIRE(world.run());
    CHECK(check(world));
    const auto events = History::open(world)->store->events().all(std::nullopt).value();
    CHECK(std::ranges::count_if(events, [&](const EventRecord& event) {
            return event.text.find(one.reason) != std::string::npos;
          }) == 1);
    const auto& outcome = world.clients().at("odd").outcome;
    REQUIRE(!outcome);
    CHECK(outcome.error().message().find(one.reason) != std::string::npos);
  }
}

TEST_CASE("values that were not declared, or can't be, are ignored and reported") {
  const std::pair<std::function<void(wire::Evaluation&)>, std::string> cases[] = {
      {[](wire::Evaluation& e) { e.mutable_metrics(0)->set_name("top5"); },
       "metric 'top5' was not declared"},
      {[](wire::Evaluation& e) { e.mutable_metrics(0)->set_value(1.5); }, "accuracy is 1.5"},
      {[](wire::Evaluation& e) { e.mutable_metrics(0)->set_weight(-1); }, "has weight -1"},
      {[](wire::Evaluation& e) { *e.add_metrics() = e.metrics(0); },
       "it has 2 metrics, and 1 were"},
      {[](wire::Evaluation& e) {
         for (int i = 0; i < 1000; ++i) *e.add_metrics() = e.metrics(0);
       },
       "it has 1001 metrics, and 1 were"},
      {[](wire::Evaluation& e) { e.set_predictions(-3); },
       "the loss is a mean over -3 predictions"},
      {[](wire::Evaluation& e) { e.set_examples(1000); },
       "it has 1000 examples, and the client has"},
      {[](wire::Evaluation& e) { e.set_version(9); }, "there is no such version"},
  };
  for (const auto& one : cases) {
    INFO(one.second);
    WorldOptions options = calm(2);
    options.members.push_back(judge("judge", 0, 20, {"accuracy"}));
    World world(options);
    world.on_connect = [&](const std::string& client, Line& up, Line&) {
      if (client != "judge") return true;
      up.edit = [&](wire::Header& header) {
        if (header.has_evaluation() && header.evaluation().version() == 1)
          one.first(*header.mutable_evaluation());
      };
      return true;
    };
    REQUIRE(world.run());
    CHECK(check(world));
    const auto history = History::open(world);
    for (const auto& answer :
         history->store->measurements().evaluator_answers(history->run.id, 1).value())
      CHECK(answer.version != 1);
    const auto events = history->store->events().all(history->run.id).value();
    CHECK(std::ranges::any_of(events, [&](const EventRecord& event) {
      return event.text.starts_with("judge: ignored an invalid evaluation of version ") &&
             event.text.find(one.second) != std::string::npos;
    }));
  }
}

TEST_CASE("an evaluator that does not measure the run's metric is told of in the history") {
  WorldOptions options = calm(2);
  options.settings.metric = "auroc";
  options.settings.target = "perplexity<=0.5";
  options.settings.patience = 1;
  options.members.push_back(judge("judge", 0, 20, {"distance", "accuracy"}));
  World world(options);
  const Ended ended = checked_end_of(world);
  CHECK(ended.why.empty());  // A metric that nobody measures ends no run.
  const auto history = History::open(world);
  const auto events = history->store->events().all(history->run.id).value();
  for (const char* const flag : {"auroc, which --metric", "perplexity, which --target"}) {
    CHECK(std::ranges::any_of(events, [&](const EventRecord& event) {
      return event.text == fmt::format(
                               "judge does not measure {} names; it measures loss, "
                               "distance, accuracy",
                               flag);
    }));
  }
}

}  // namespace fl::test
