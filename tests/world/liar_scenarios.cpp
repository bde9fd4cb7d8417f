// SPDX-License-Identifier: Apache-2.0
// Members whose figures are lies: one evaluator of several neither ends a run, nor keeps it from
// its end, nor locks the others out; and one trainer does not make the round's mean loss.
#include "tests/support/sanitized.hpp"
#include "tests/world/ended.hpp"
#include "tests/world/scenario.hpp"

#include <cmath>
#include <limits>

namespace fl::test {

namespace {

constexpr double huge = 1.7e308;
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double infinite = std::numeric_limits<double>::infinity();

/// Three trainers with one optimum and `honest` evaluators, who measure how near it is; and "liar",
/// which measures the same unless a test makes it lie.
WorldOptions judged(std::size_t honest, Round rounds) {
  WorldOptions options = calm(2);
  options.settings.rounds = rounds;
  options.settings.lr = 0.1;
  options.members[1].part.client = 0;
  for (std::size_t i = 0; i <= honest; ++i) {
    WorldOptions::Member member{
        i < honest ? fmt::format("judge-{}", i + 1) : "liar", {0, 0, 50}, true};
    member.part.metrics = {"accuracy", "distance"};
    options.members.push_back(std::move(member));
  }
  return options;
}

using Lie = std::function<void(wire::Header&)>;

/// The liar's messages are changed, and it is the first to answer: the others' lines are slow.
void make_liar(World& world, Lie lie) {
  world.on_connect = [lie = std::move(lie)](const std::string& client, Line& up, Line& down) {
    if (client == "liar") up.edit = lie;
    if (client.starts_with("judge-")) down.bytes_per_s = 20e3;
    return true;
  };
}

Ended end_without_lies(const WorldOptions& options) {
  World world(options);
  make_liar(world, {});
  return end_of(world);
}

void set_all(wire::Evaluation& evaluation, double loss, double value, double weight) {
  evaluation.set_loss(loss);
  for (auto& metric : *evaluation.mutable_metrics()) {
    metric.set_value(value);
    metric.set_weight(weight);
  }
}

/// Lies of an evaluator, about each version.
std::vector<std::pair<std::string, Lie>> lies() {
  const auto all = [](double loss, double value, double weight) -> Lie {
    return [=](wire::Header& header) {
      if (header.has_evaluation()) set_all(*header.mutable_evaluation(), loss, value, weight);
    };
  };
  return {{"perfect, with a weight of 1e15", all(0, 1, 1e15)},
          {"worthless, with a weight of 1e15", all(huge, 0, 1e15)},
          {"NaN", all(not_a_number, not_a_number, 0)},
          {"one NaN loss", all(not_a_number, 0.5, 0)},
          {"infinite", all(infinite, infinite, 0)},
          {"nothing", [](wire::Header& header) {
             if (!header.has_evaluation()) return;
             header.mutable_evaluation()->set_examples(0);
           }}};
}

void check_lies_change_nothing(const WorldOptions& options, const Ended& expected) {
  const auto all = lies();
  for (std::size_t i = 0; i < all.size(); i += or_sanitized(1u, 3u)) {
    const auto& lie = all[i];
    CAPTURE(lie.first);
    World world(options);
    make_liar(world, lie.second);
    check_same_end(end_of(world), expected);
  }
}

}  // namespace

TEST_CASE("one lying evaluator of five or of three does not change when the target is met") {
  for (const std::size_t honest : {4u, 2u}) {
    CAPTURE(honest);
    WorldOptions options = judged(honest, 40);
    options.settings.target = "accuracy>=0.9";
    const Ended expected = end_without_lies(options);
    REQUIRE(expected.rounds < 40);
    REQUIRE(expected.rounds > 2);
    check_lies_change_nothing(options, expected);
  }
}

TEST_CASE("one lying evaluator of five or of three does not change which version is the best") {
  for (const std::size_t honest : {4u, 2u}) {
    CAPTURE(honest);
    WorldOptions options = judged(honest, 200);
    options.problem.noise = 0.1;
    options.settings.patience = 4;
    const Ended expected = end_without_lies(options);
    REQUIRE(expected.rounds < 200);
    check_lies_change_nothing(options, expected);
  }
}

TEST_CASE("an evaluator that declares a metric the wrong way round, first, is outvoted") {
  const auto wrong = [](wire::Header& header) {
    if (header.has_ready()) header.mutable_ready()->mutable_metrics(1)->set_lower_is_better(false);
  };
  for (const std::size_t honest : {4u, 2u}) {
    CAPTURE(honest);
    WorldOptions options = judged(honest, 200);
    options.problem.noise = 0.1;
    options.settings.patience = 4;
    options.settings.metric = "distance";
    const Ended expected = end_without_lies(options);
    REQUIRE(expected.rounds < 200);
    World world(options);
    bool has_answered = false;
    // The others come when its declaration is in the history already.
    world.on_connect = [&](const std::string& client, Line& up, Line&) {
      if (client == "liar") up.edit = wrong;
      return !client.starts_with("judge-") || has_answered;
    };
    world.on_frame = [&](const std::string& client, bool is_up, const wire::Header& header) {
      has_answered |= client == "client-1" && !is_up && header.offer().round() == 3;
    };
    const Ended ended = end_of(world);
    CHECK(ended.why == expected.why);
    for (std::size_t i = 0; i < honest; ++i)
      CHECK(world.clients().at(fmt::format("judge-{}", i + 1)).outcome);
  }
}

TEST_CASE("what a revoked evaluator declared and measured is forgotten, also after a restart") {
  for (const int way : {0, 1, 2, 3}) {
    const bool restarts = way % 2 == 1;
    const bool declares_wrong = way / 2 == 1;
    CAPTURE(restarts);
    CAPTURE(declares_wrong);
    WorldOptions options = judged(1, 200);
    options.problem.noise = 0.1;
    options.settings.patience = 8;
    options.settings.metric = "distance";
    World world(options);
    world.clients().at("liar").may_fail = true;
    bool is_revoked = false;
    world.on_connect = [&](const std::string& client, Line& up, Line&) {
      if (client == "liar") {
        if (is_revoked) return false;
        up.edit = [declares_wrong](wire::Header& header) {
          if (header.has_ready() && declares_wrong)
            header.mutable_ready()->mutable_metrics(1)->set_lower_is_better(false);
          if (header.has_evaluation())
            set_all(*header.mutable_evaluation(), 1, header.evaluation().version() == 1 ? 1 : 0,
                    1e15);
        };
      }
      return true;
    };
    world.on_frame = [&](const std::string& client, bool is_up, const wire::Header& header) {
      if (client != "client-1" || is_up || header.offer().round() != 4 || is_revoked) return;
      is_revoked = true;
      world.revoke("liar");
      if (restarts) world.stop_server();
    };
    const Ended ended = end_of(world);
    CHECK(is_revoked);
    // By the honest one's own figures: lower is better, and its best version counts.
    Version best = 0;
    double least = infinite;
    for (const EvaluationRecord& answer : ended.answers) {
      if (answer.client != "judge-1") continue;
      const double distance = find_metric(answer.metrics, "distance")->value;
      if (distance < least) best = answer.version;
      least = std::min(least, distance);
    }
    CHECK(ended.rounds < 200);
    CHECK(best > 1);
    CHECK(ended.why.starts_with(
        fmt::format("no version was better than version {}, with distance ", best)));
  }
}

TEST_CASE("of two evaluators one with a weight of 1e15 counts at most four times as much") {
  WorldOptions options = judged(1, 4);
  World world(options);
  make_liar(world, [](wire::Header& header) {
    if (header.has_evaluation()) set_all(*header.mutable_evaluation(), 1, 0, 1e15);
  });
  REQUIRE(world.run());
  const auto history = History::open(world);
  for (const auto& round : history->store->summaries().rounds(history->run.id).value()) {
    CAPTURE(round.round);
    double honest = 0;
    for (const auto& answer :
         history->store->measurements().evaluator_answers(history->run.id, 1).value()) {
      if (answer.version != round.round || answer.client != "judge-1") continue;
      honest = find_metric(answer.metrics, "accuracy")->value;
    }
    CHECK(honest > 0);
    CHECK(round.eval_accuracy.value() == doctest::Approx(honest / 5));
  }
}

TEST_CASE(
    "a training loss of 1.7e308 is bounded by the others', named, and stays as it was claimed") {
  for (const double lie : {huge, -huge}) {
    CAPTURE(lie);
    WorldOptions options = calm(5);
    options.settings.local_steps_schedule = "adaptive";
    World world(options);
    world.on_connect = [lie](const std::string& client, Line& up, Line&) {
      if (client == "client-3") {
        up.edit = [lie](wire::Header& header) {
          if (header.has_begin()) header.mutable_begin()->set_loss(lie);
        };
      }
      return true;
    };
    REQUIRE(world.run());
    const auto history = History::open(world);
    for (const auto& round : history->store->summaries().rounds(history->run.id).value()) {
      double honest = 0;  // The largest.
      for (const TaskRecord& task :
           history->store->rounds().tasks(history->run.id, round.round).value()) {
        CHECK(task.state == TaskState::accepted);
        if (task.client == "client-3") CHECK(task.loss == lie);
        if (task.client != "client-3") honest = std::max(honest, task.loss);
      }
      const double most = std::max(1.0, 100 * honest);
      CHECK(std::fabs(round.train_loss.value()) <= (most + 4 * honest) / 5);
      const auto events = history->store->events().all(history->run.id).value();
      CHECK(std::ranges::any_of(events, [&](const EventRecord& event) {
        return event.text.starts_with("client-3 says that its training loss is") &&
               event.text.find(fmt::format("in the mean of round {} it", round.round)) !=
                   std::string::npos;
      }));
    }
  }
}

}  // namespace fl::test
