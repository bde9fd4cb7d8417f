// SPDX-License-Identifier: Apache-2.0
// Which clients are asked, which updates count, and when a round or a run ends.
#include "shared/base/limits.hpp"
#include "tests/kernels/host_codec_device.hpp"
#include "tests/world/hand_client.hpp"
#include "tests/world/scenario.hpp"

namespace fl::test {
namespace {

using namespace std::chrono_literals;

/// Makes uploads so slow that all clients connect before the first update has arrived.
bool slow_lines(const std::string&, Line& up, Line&) {
  up.bytes_per_s = 2000;
  return true;
}

TEST_CASE("a client that claims very many examples counts as ten times the median, in any mode") {
  for (const char* const mode : {"sync", "async:buffer=2,late=3", "sync:late=1"}) {
    for (const char* const strategy : {"fedavg", "scaffold", "fedavg:weight=uniform"}) {
      if (std::string_view(mode) != "sync" && std::string_view(strategy) == "scaffold") continue;
      CAPTURE(std::string(mode));
      CAPTURE(std::string(strategy));
      WorldOptions options = calm(4);
      options.settings.mode = mode;
      options.settings.strategy = strategy;
      options.settings.rounds = 4;
      options.members[1].part.examples = 1'000'000'000;
      World world(options);
      world.kill_server_at(90, false);
      REQUIRE(world.run());
      CHECK(check(world));  // The exact mean, of weights with this limit.
      const auto history = History::open(world);
      REQUIRE(history);
      const auto events = history->store->events().all(std::nullopt).value();
      CHECK(
          std::ranges::count_if(events, [](const EventRecord& event) {
            return event.text ==
                   "client-2 says that it has 1000000000 examples, and counts with 1000: 10 times "
                   "the median (--weight-cap)";
          }) >= 1);
    }
  }
}

TEST_CASE("over-selection: the round closes at its target, and the other updates are late") {
  WorldOptions options = calm(4);
  options.settings.min_clients = 2;
  options.settings.clients_per_round = 2;
  options.settings.over_select = 2;
  options.settings.rounds = 1;
  options.sessions_first = 4;
  World world(options);
  std::set<std::string> stale;
  world.on_connect = slow_lines;
  world.on_frame = [&](const std::string& client, bool is_up, const wire::Header& header) {
    const bool is_slow = client == "client-1" || client == "client-3";
    if (!is_up && header.has_offer() && is_slow) world.link_of(client)->slow_down(100);
    if (header.has_verdict() && header.verdict().outcome() == wire::Verdict::STALE)
      stale.insert(client);
  };
  REQUIRE(world.run());
  CHECK(check(world));
  const auto tasks = tasks_of(world, 1);
  CHECK(tasks.size() == 4);
  CHECK(count(tasks, TaskState::accepted) == 2);
  for (const auto& task : tasks) {
    const bool is_slow = task.client == "client-1" || task.client == "client-3";
    CHECK(task.state == (is_slow ? TaskState::late : TaskState::accepted));
  }
}

TEST_CASE("a client that loads for longer than the server waits for Ready comes back when it has") {
  WorldOptions options = calm(2);
  options.settings.rounds = 1;
  options.pause_max = 4 * limits::ready_max;  // Before each job of a client's worker.
  World world(options);
  int hellos = 0;
  world.on_frame = [&](const std::string&, bool is_up, const wire::Header& header) {
    hellos += is_up && header.has_hello() ? 1 : 0;
  };
  REQUIRE(world.run());
  CHECK(check(world));
  CHECK(hellos > 2);  // At least one was too slow for its first session.
  CHECK(world.server_starts() == 1);
}

/// Cuts the client off at its first offer and lets it never connect again.
void lose(World& world, const std::string& name, bool& is_away) {
  world.on_frame = [&world, &is_away, name](const std::string& client, bool is_up,
                                            const wire::Header& header) {
    if (client != name || is_up || !header.has_offer()) return;
    is_away = true;
    world.link_of(client)->cut();
  };
  world.on_connect = [&is_away, name](const std::string& client, Line& up, Line&) {
    up.bytes_per_s = 2000;
    return client != name || !is_away;
  };
}

TEST_CASE("at its deadline a round that has its quorum closes without the missing updates") {
  WorldOptions options = calm(3);
  options.settings.min_clients = 2;
  options.settings.deadline_s = 30;
  options.settings.rounds = 1;
  World world(options);
  bool is_away = false;
  lose(world, "client-2", is_away);
  REQUIRE(world.run());
  CHECK(check(world));
  CHECK(is_away);
  const auto tasks = tasks_of(world, 1);
  CHECK(count(tasks, TaskState::accepted) == 2);
  CHECK(count(tasks, TaskState::late) == 1);
  const auto history = History::open(world);
  CHECK(history->store->summaries().rounds(history->run.id).value().at(0).seconds ==
        doctest::Approx(30).epsilon(0.05));
}

TEST_CASE("at its deadline a round without its quorum asks other clients and waits for them") {
  WorldOptions options = calm(3);
  options.settings.min_clients = 2;
  options.settings.clients_per_round = 2;
  options.settings.deadline_s = 10;
  options.settings.rounds = 1;
  World world(options);
  bool is_away = false;
  std::string chosen;
  world.on_connect = [&](const std::string& client, Line& up, Line&) {
    up.bytes_per_s = 2000;
    return client != chosen;
  };
  world.on_frame = [&](const std::string& client, bool is_up, const wire::Header& header) {
    if (is_away || is_up || !header.has_offer()) return;
    is_away = true;
    chosen = client;  // The client that is asked first.
    world.link_of(client)->cut();
  };
  REQUIRE(world.run());
  CHECK(check(world));
  const auto tasks = tasks_of(world, 1);
  CHECK(tasks.size() == 3);
  CHECK(count(tasks, TaskState::accepted) == 2);
  for (const auto& task : tasks) CHECK((task.state == TaskState::late) == (task.client == chosen));
  const auto history = History::open(world);
  const double took = history->store->summaries().rounds(history->run.id).value().at(0).seconds;
  CHECK(took > 10);
  CHECK(took < 20);
}

TEST_CASE("a round's seconds are right when the wall clock is set meanwhile") {
  for (const double by : {-86400.0, 86400.0}) {
    WorldOptions options = calm(2);
    World world(options);
    bool is_set = false;
    world.on_frame = [&](const std::string&, bool is_up, const wire::Header& header) {
      if (is_up && header.has_begin() && !std::exchange(is_set, true)) world.set_wall_clock(by);
    };
    REQUIRE(world.run());
    CHECK(check(world));
    const auto history = History::open(world);
    for (const auto& round : history->store->summaries().rounds(history->run.id).value()) {
      CHECK(round.seconds > 0);
      CHECK(round.seconds < 60);
    }
  }
}

TEST_CASE("an evaluator measures every version and is never asked to train") {
  WorldOptions options = calm(2);
  options.settings.rounds = 4;
  options.members.push_back({"judge", {9, 0, 50}, true});
  World world(options);
  REQUIRE(world.run());
  CHECK(check(world));
  const auto history = History::open(world);
  for (const auto& round : history->store->summaries().rounds(history->run.id).value()) {
    CHECK(round.clients_offered == 2);
    REQUIRE(round.eval_accuracy);
    CHECK(*round.eval_accuracy > 0);
  }
}

TEST_CASE("a model that diverged is no better than any other, and costs no time at the end") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const bool is_killed_once : {false, true}) {
    WorldOptions options = calm(2);
    options.settings.rounds = 20;
    options.settings.patience = 3;
    for (auto& member : options.members) member.part.client = 0;  // All have the judge's optimum.
    options.members.push_back({"judge", {0, 0, 50}, true});
    World world(options);
    world.on_connect = [nan](const std::string& client, Line& up, Line&) {
      if (client != "judge") return true;
      up.edit = [nan](wire::Header& header) {
        if (header.evaluation().version() >= 5) header.mutable_evaluation()->set_loss(nan);
      };
      return true;
    };
    bool is_killed = !is_killed_once;
    world.on_frame = [&](const std::string&, bool is_up, const wire::Header& header) {
      if (is_up && header.evaluation().version() >= 6 && !std::exchange(is_killed, true))
        world.kill_server(false);
    };
    REQUIRE(world.run());
    CHECK(check(world));
    CHECK(world.elapsed() < limits::last_evaluations_max);
    const auto history = History::open(world);
    const auto rounds = history->store->summaries().rounds(history->run.id).value();
    CHECK(rounds.size() >= 7);
    CHECK(rounds.size() < 12);
    CHECK(rounds.at(3).eval_loss.has_value());
    CHECK_FALSE(rounds.at(5).eval_loss.has_value());
  }
}

TEST_CASE("an evaluator that was away measures the versions that it has missed") {
  WorldOptions options = calm(2);
  for (auto& member : options.members) member.part.holdout = 10;
  // More versions than the server asks for at a time.
  options.settings.rounds = limits::evaluations_asked_max + 15;
  options.members.push_back({"judge", {9, 0, 50}, true});
  World world(options);
  std::uint32_t newest = 0;
  int cuts = 0;
  bool is_killed = false;
  world.on_frame = [&](const std::string& client, bool is_up, const wire::Header& header) {
    if (!is_up && header.has_offer()) newest = std::max(newest, header.offer().round());
    // Cut the line whenever the evaluator is asked for version 2 or later, until shortly before the
    // end.
    const bool is_asked = client == "judge" && !is_up && header.has_evaluate();
    if (!is_asked || header.evaluate().version() < 2) return;
    if (newest < options.settings.rounds - 2) {
      ++cuts;
      world.link_of(client)->cut();
    } else if (header.evaluate().version() == 10 && !std::exchange(is_killed, true)) {
      world.kill_client(client, false);  // The client forgets what it was asked,
      world.kill_server(false);          // and the server what it has asked for.
    }
  };
  REQUIRE(world.run());
  CHECK(check(world));
  CHECK(cuts > 0);
  CHECK(is_killed);
  const auto history = History::open(world);
  for (const auto& round : history->store->summaries().rounds(history->run.id).value()) {
    CAPTURE(round.round);
    CHECK(round.eval_accuracy);
  }
}

TEST_CASE("trainers with holdout data evaluate every version if there is no evaluator") {
  WorldOptions options = calm(2);
  for (auto& member : options.members) member.part.holdout = 10;
  World world(options);
  REQUIRE(world.run());
  CHECK(check(world));
  const auto history = History::open(world);
  for (const auto& round : history->store->summaries().rounds(history->run.id).value())
    CHECK(round.eval_loss.has_value());
}

TEST_CASE(
    "a straggler that still uploads when the last version is evaluated does not delay the end") {
  WorldOptions options = calm(2, large);
  options.settings.min_clients = 1;
  options.settings.deadline_s = 3;
  options.settings.rounds = 1;
  for (auto& member : options.members) member.part.holdout = 10;
  World world(options);
  world.on_frame = [&](const std::string& client, bool is_up, const wire::Header& header) {
    if (client == "client-2" && !is_up && header.has_offer())
      world.link_of(client)->slow_down(100e3);
  };
  REQUIRE(world.run());
  CHECK(check(world));
  CHECK(world.elapsed() < 3min);
}

TEST_CASE("updates are coded on the device if the codec supports it, with the same result") {
  struct Case {
    const char* strategy;
    const char* codec;
    bool is_on_device;
  };
  for (const Case& of :
       {Case{"fedavg", "ecuq:4", true}, Case{"fedprox:mu=0.1", "qsgd:7", true},
        Case{"fedadam", "kbit:4", true}, Case{"fedavg", "ecuq:4+ef", true},
        Case{"fedavg", "topk:0.1+qsgd:7", true}, Case{"fedavg", "topk:0.1+dgc:0.5", true},
        Case{"fedavg", "delta+ecuq:4", true}, Case{"scaffold", "ecuq:4", true},
        Case{"fedavg:personal=scale", "ecuq:4", true}, Case{"fedavg", "none", false},
        Case{"fedavg", "randk:0.1", false}, Case{"fedavg", "sign+ef", false}}) {
    CAPTURE(std::string(of.strategy));
    CAPTURE(std::string(of.codec));
    WorldOptions options = calm(2, 150'000);
    options.problem.noise = 0.1;
    options.settings.strategy = of.strategy;
    options.settings.codec = of.codec;
    const Digest expected = calm_digest(options);
    std::size_t results = 0;
    for (auto& member : options.members) {
      member.part.make_device = [&results] {
        auto device = std::make_unique<twins::HostCodecDevice>();
        device->results = &results;
        return device;
      };
    }
    CHECK(calm_digest(options) == expected);
    CHECK((results > 0) == of.is_on_device);
  }
}

TEST_CASE("the run ends early at its target accuracy") {
  WorldOptions options = calm(2);
  options.settings.rounds = 50;
  options.settings.target_accuracy = 0.9;
  options.members.push_back({"judge", {0, 0, 50}, true});
  // Both clients have the judge's optimum.
  options.members[1].part.client = 0;
  World world(options);
  REQUIRE(world.run());
  CHECK(check(world));
  const auto history = History::open(world);
  const auto rounds = history->store->summaries().rounds(history->run.id).value();
  CHECK(rounds.size() < 50);
  CHECK(rounds.size() >= 2);
  double best = 0;
  for (const auto& round : rounds) best = std::max(best, round.eval_accuracy.value_or(0));
  CHECK(best >= 0.9);
  const auto events = history->store->events().all(history->run.id).value();
  CHECK(std::ranges::any_of(events, [&](const EventRecord& event) {
    return event.text.starts_with(
        fmt::format("the run ends after {} of 50 rounds: version", rounds.size()));
  }));
}

TEST_CASE("what was measured on too few examples does not end the run, also after a restart") {
  for (const std::uint64_t examples : {9u, 10u}) {
    WorldOptions options = calm(2);
    options.settings.rounds = 20;
    options.settings.target_accuracy = 0.5;
    options.members.push_back({"judge", {0, 0, examples}, true});
    options.members[1].part.client = 0;
    World world(options);
    world.kill_server_at(150, false);
    REQUIRE(world.run());
    CHECK(check(world));
    const auto history = History::open(world);
    const auto rounds = history->store->summaries().rounds(history->run.id).value();
    CHECK((rounds.size() < 20) == (examples >= options.settings.target_examples));
  }
}

TEST_CASE("the run ends early after `patience` rounds without a better version") {
  WorldOptions options = calm(2);
  options.problem.noise = 0.1;
  options.settings.rounds = 200;
  options.settings.patience = 4;
  options.members.push_back({"judge", {0, 0, 50}, true});
  World world(options);
  REQUIRE(world.run());
  CHECK(check(world));
  const auto history = History::open(world);
  const auto rounds = history->store->summaries().rounds(history->run.id).value();
  CHECK(rounds.size() < 200);
  std::size_t best = 0;
  for (std::size_t i = 0; i < rounds.size(); ++i) {
    REQUIRE(rounds[i].eval_accuracy);
    if (*rounds[i].eval_accuracy > *rounds[best].eval_accuracy) best = i;
    // A version is evaluated while the next round is open, and that round still completes.
    CHECK(i - best <= 4 + 1);
  }
  CHECK(rounds.size() - 1 - best >= 4);
  const auto events = history->store->events().all(history->run.id).value();
  CHECK(std::ranges::any_of(events, [&](const EventRecord& event) {
    return event.text.starts_with(fmt::format(
               "the run ends after {} of 200 rounds: no version was better than version "
               "{}, with",
               rounds.size(), best + 1)) &&
           event.text.ends_with("in 4 rounds");
  }));
}

TEST_CASE("a client with the wrong protocol, model or codecs is rejected, and the run goes on") {
  struct Case {
    std::function<void(wire::Hello&)> change;
    std::string reason;
  };
  const std::vector<Case> cases{
      {[](wire::Hello& h) { h.set_protocol(99); }, "the client speaks protocol 99, this server 5"},
      {[](wire::Hello& h) { h.set_model("lenet"); },
       "the client trains 'lenet', this run trains 'toy'"},
      {[](wire::Hello& h) { h.clear_codecs(); }, "the client does not know the run's codec 'none'"},
  };
  for (const Case& one : cases) {
    INFO(one.reason);
    WorldOptions options = calm(3);
    options.settings.min_clients = 2;
    World world(options);
    world.clients().at("client-3").may_fail = true;
    Talk talk;
    talk.listen(world, "client-3");
    world.on_connect = [&](const std::string& client, Line& up, Line&) {
      if (client == "client-3") {
        up.edit = [&](wire::Header& header) {
          if (header.has_hello()) one.change(*header.mutable_hello());
        };
      }
      return true;
    };
    REQUIRE(world.run());
    CHECK(check(world));
    const auto& outcome = world.clients().at("client-3").outcome;
    REQUIRE(!outcome);
    CHECK(outcome.error().code() == Errc::unauthenticated);
    REQUIRE(!talk.byes().empty());
    CHECK(talk.byes()[0].bye().cause() == wire::Bye::REFUSED);
    CHECK(talk.byes()[0].bye().reason().starts_with(one.reason));
    const auto has_reason = [&](const EventRecord& event) {
      return event.text.find(one.reason) != std::string::npos;
    };
    CHECK(std::ranges::count_if(History::open(world)->store->events().all(std::nullopt).value(),
                                has_reason) == 1);
  }
}

TEST_CASE("a run whose clients all fail for one reason ends and says why and what to try") {
  WorldOptions options = calm(3);
  options.settings.min_clients = 2;
  options.settings.rounds = 5;
  World world(options);
  world.on_trained = [](const std::string&, const TrainSettings& settings,
                        std::span<float> update) {
    if (settings.round >= 3) update[15] = std::numeric_limits<float>::quiet_NaN();
  };
  REQUIRE(world.run());
  {
    const auto history = History::open(world);
    const RunRecord run = history->store->runs().find(1).value().value();
    CHECK(run.state == RunState::finished);
    CHECK(run.early_end.find("each client that is here has failed 5 times in a row: ") == 0);
    CHECK(run.early_end.find("body.weight[15]") != std::string::npos);
    CHECK(run.early_end.ends_with("try a lower --lr"));
    CHECK(history->store->summaries().rounds(1).value().size() == 2);
  }
  for (const auto& task : tasks_of(world, 3)) CHECK(task.state == TaskState::lost);
}

TEST_CASE("a run goes on while one of its clients trains, or they fail for different reasons") {
  for (const bool is_one_well : {true, false}) {
    CAPTURE(is_one_well);
    WorldOptions options = calm(3);
    options.settings.min_clients = 2;
    options.settings.rounds = 3;
    World world(options);
    std::map<std::string, int> failures;
    world.on_trained = [&](const std::string& client, const TrainSettings&,
                           std::span<float> update) {
      const bool is_well = is_one_well ? client == "client-3" : failures[client] >= 8;
      if (is_well || (is_one_well && failures[client] >= 8)) return;
      ++failures[client];
      update[client == "client-1" ? 15 : 16] = std::numeric_limits<float>::quiet_NaN();
    };
    REQUIRE(world.run());
    CHECK(check(world));
    CHECK(History::open(world)->store->summaries().rounds(1).value().size() == 3);
  }
}

TEST_CASE("a client whose model has other tensors learns which, and so does the history") {
  WorldOptions options = calm(3);
  options.settings.min_clients = 2;
  World world(options);
  world.clients().at("client-3").may_fail = true;
  world.on_connect = [&](const std::string& client, Line& up, Line& down) {
    if (client != "client-3") return true;
    down.edit = [](wire::Header& header) {
      if (header.has_welcome()) header.mutable_welcome()->set_layout_digest(std::string(16, 'x'));
    };
    up.edit = [](wire::Header& header) {
      if (header.bye().tensors_size() < 2) return;
      header.mutable_bye()->mutable_tensors(0)->set_shape(0, 7);
      header.mutable_bye()->mutable_tensors(1)->set_name("who\x1b[2J");
      // As many as a client tells at most.
      while (header.ByteSizeLong() + 1024 < limits::tensors_told_bytes_max)
        header.mutable_bye()->add_tensors()->set_name(std::string(500, 'n'));
    };
    return true;
  };
  REQUIRE(world.run());
  CHECK(check(world));
  const auto& outcome = world.clients().at("client-3").outcome;
  REQUIRE(!outcome);
  const std::string why = outcome.error().message();
  CAPTURE(why);
  const auto& tensors = options.problem.layout.tensors();
  CHECK(why.find(fmt::format("{} has shape", tensors[0].name)) != std::string::npos);
  CHECK(why.find(fmt::format("the client has no {}", tensors[1].name)) != std::string::npos);
  CHECK(why.find("the run has no who?[2J") != std::string::npos);
  const auto events = History::open(world)->store->events().all(std::nullopt).value();
  CHECK(std::ranges::any_of(events, [&](const EventRecord& event) {
    return event.text.find("the run has no who?[2J") != std::string::npos;
  }));
}

/// Connects as a client that is already connected, and leaves after 5 s.
Awaitable<void> impersonate(World& world, std::string name) {
  co_await sleep_for(400ms);
  const auto link = world.connect(world.io().get_executor(), name);
  REQUIRE(link != nullptr);
  const auto joined = co_await greet(link, 100);
  CHECK(joined);
  co_await sleep_for(5s);
  link->close();
}

TEST_CASE(
    "a second session of a client replaces the first, and the run continues to the same model") {
  const WorldOptions options = calm(2);
  const Digest expected = calm_digest(options);
  World world(options);
  Talk talk;
  talk.listen(world, "client-1");
  world.spawn(impersonate(world, "client-1"));
  REQUIRE(world.run());
  CHECK(check(world));
  REQUIRE(!talk.byes().empty());
  CHECK(talk.byes()[0].bye().reason() == "the same client has connected again");
  CHECK(final_digest(world).value() == expected);
}

}  // namespace
}  // namespace fl::test
