// SPDX-License-Identifier: Apache-2.0
// Clients that lack a feature: the server does not use it with them, or refuses them by its name.
#include "tests/world/hand_client.hpp"
#include "tests/world/scenario.hpp"

#include <optional>
#include <string>

namespace fl::test {
namespace {

using namespace std::chrono_literals;

/// A trainer with held-out data that fails each task, and counts for what it is asked.
struct Played {
  std::optional<wire::Features> features;
  std::optional<Features> server_features;
  int evaluations_asked = 0;

  Awaitable<void> live(World& world) {
    co_await sleep_for(400ms);
    const auto link = world.connect(world.io().get_executor(), "by-hand");
    REQUIRE(link != nullptr);
    wire::Hello hello;
    if (features) *hello.mutable_features() = *features;
    wire::Ready ready;
    ready.set_train_examples(10);
    ready.set_holdout_examples(10);
    const auto welcome = co_await greet_as(link, std::move(hello), std::move(ready));
    REQUIRE(welcome);
    if (welcome->has_features()) server_features = Features::read(*welcome).value();
    for (;;) {
      const auto message = co_await link->receive();
      if (!message || message->header.has_bye()) break;
      evaluations_asked += message->header.has_evaluate() ? 1 : 0;
      if (!message->header.has_offer()) continue;
      wire::Header failed;
      failed.mutable_failed()->set_task(message->header.offer().task());
      failed.mutable_failed()->set_reason("it is played by hand");
      Message answer(std::move(failed));
      if (!co_await link->send(std::move(answer))) break;
    }
    link->close();
  }
};

void play(Played& played) {
  WorldOptions options = calm(2);
  options.settings.min_clients = 2;
  options.settings.deadline_s = 5;
  options.sessions_first = 3;
  World world(options);
  world.spawn(played.live(world));
  REQUIRE(world.run());
}

TEST_CASE("the server says what it can do, and renews no certificates where there are none") {
  Played played;
  play(played);
  REQUIRE(played.server_features);
  CHECK(*played.server_features == Features::of(End::server).without(Feature::renewal));
}

TEST_CASE(
    "a trainer is asked for an evaluation only if it can answer, or is older than the lists") {
  Played old;
  play(old);
  CHECK(old.evaluations_asked > 0);

  Played without;
  without.features = Features::of(End::client).without(Feature::evaluation).to_wire();
  play(without);
  CHECK(without.evaluations_asked == 0);
}

Awaitable<void> ask(World& world, bool is_evaluator, wire::Features features,
                    std::optional<Result<wire::Welcome>>& answer) {
  co_await sleep_for(400ms);
  const auto link = world.connect(world.io().get_executor(), "by-hand");
  REQUIRE(link != nullptr);
  wire::Hello hello;
  hello.set_evaluator(is_evaluator);
  if (!is_evaluator) hello.add_codecs("none");
  *hello.mutable_features() = std::move(features);
  wire::Ready ready;
  if (is_evaluator) ready.set_holdout_examples(10);
  if (!is_evaluator) ready.set_train_examples(10);
  answer = co_await greet_as(link, std::move(hello), std::move(ready));
  link->close();
}

TEST_CASE("an evaluator that can't evaluate is refused, and so is a list that is none") {
  struct Row {
    wire::Features features;
    std::string said;
  };
  Row lacks{.features = {}, .said = "an evaluator needs the feature 'evaluation'"};
  lacks.features.add_names("of-the-future");
  Row wrong{.features = {}, .said = "the name of a feature is not"};
  wrong.features.add_names("NO NAME");
  for (const Row& row : {lacks, wrong}) {
    World world(calm(2));
    std::optional<Result<wire::Welcome>> answer;
    world.spawn(ask(world, true, row.features, answer));
    REQUIRE(world.run());
    REQUIRE(answer);
    REQUIRE(!*answer);
    CHECK(answer->error().message().find(row.said) != std::string::npos);
  }
}

TEST_CASE("a run with --clip-norm refuses trainers that would not follow it, and no evaluators") {
  struct Asks {
    bool is_evaluator;
    double clip_norm;
  };
  for (const Asks& asks : {Asks{false, 0}, Asks{false, 0.5}, Asks{true, 0.5}}) {
    CAPTURE(asks.is_evaluator);
    CAPTURE(asks.clip_norm);
    WorldOptions options = calm(2);
    options.settings.clip_norm = asks.clip_norm;
    World world(options);
    double followed = -1;
    world.on_trained = [&](const std::string&, const TrainSettings& settings, std::span<float>) {
      followed = settings.clip_norm;
    };
    std::optional<Result<wire::Welcome>> answer;
    wire::Features lacks = Features::of(End::client).without(Feature::clip_norm).to_wire();
    world.spawn(ask(world, asks.is_evaluator, std::move(lacks), answer));
    REQUIRE(world.run());
    CHECK(followed == asks.clip_norm);
    REQUIRE(answer);
    const bool is_refused = !asks.is_evaluator && asks.clip_norm > 0;
    CHECK(answer->has_error() == is_refused);
    if (is_refused)
      CHECK(answer->error().message().find("needs the feature 'clip-norm'") != std::string::npos);
  }
}

}  // namespace
}  // namespace fl::test
