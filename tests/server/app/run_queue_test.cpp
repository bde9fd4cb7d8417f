// SPDX-License-Identifier: Apache-2.0
// Which run a server continues or begins, with which settings, and which changes are refused.
#include "server/app/run_queue.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/params/safetensors.hpp"
#include "tests/server/history/store_world.hpp"
#include "tests/support/temporary_folder.hpp"

#include <fmt/format.h>

#include <set>

namespace fl::test {

using namespace fl::server;
namespace {

struct Queue {
  StoreWorld world;
  Store& store = *world.store;

  Queue() { set_log_level(LogLevel::off); }
  ~Queue() { set_log_level(LogLevel::info); }

  /// The options of a server that starts with these flags. `set` gives them their values.
  static ServeOptions flags(std::set<std::string> given = {},
                            const std::function<void(RunSettings&)>& set = nullptr) {
    ServeOptions options;
    options.state = "here";
    options.settings.model = "synthetic:10";
    options.given = std::move(given);
    if (set) set(options.settings);
    return options;
  }
  /// Begins a run and gives it an initial model.
  ChosenRun begin(const ServeOptions& options = flags({"model"})) {
    ChosenRun run = choose_run(store, options).value();
    store.rounds().set_initial_model(run.record.id, some_checkpoint(0)).value();
    return run;
  }
  std::string refusal(const ServeOptions& options) {
    const auto chosen = choose_run(store, options);
    REQUIRE(chosen.has_error());
    CHECK(chosen.error().code() == Errc::conflict);
    return chosen.error().message();
  }
};

TEST_CASE("a first start begins a run, and the next one goes on with it and its settings") {
  Queue queue;
  const ChosenRun first = queue.begin(queue.flags({"lr"}, [](RunSettings& s) { s.lr = 0.25; }));
  CHECK(first.record.model == "synthetic:10");
  CHECK(first.record.key.size() == 16);
  const ChosenRun again = choose_run(queue.store, queue.flags()).value();
  CHECK(again.record.id == first.record.id);
  CHECK(again.record.key == first.record.key);
  CHECK(again.settings.lr == 0.25);
}

TEST_CASE("flags change the settings of a run permanently, and the history records it") {
  Queue queue;
  queue.begin();
  const auto changed = queue.flags({"lr", "rounds", "codec"}, [](RunSettings& s) {
    s.lr = 0.5;
    s.rounds = 30;
  });
  CHECK(choose_run(queue.store, changed).value().settings.lr == 0.5);
  const ChosenRun later = choose_run(queue.store, queue.flags()).value();
  CHECK(later.settings.lr == 0.5);
  CHECK(later.record.rounds_total == 30);
  std::vector<std::string> events;
  for (const auto& event : queue.store.events().all(std::nullopt).value())
    events.push_back(event.text);
  CHECK(events == std::vector<std::string>{"--lr is 0.5 from here on, and was 0.01",
                                           "--rounds is 30 from here on, and was 10"});
}

TEST_CASE("a run's model never changes, and its method only before the initial model exists") {
  Queue queue;
  const RunId waiting = choose_run(queue.store, queue.flags({"model"})).value().record.id;
  const auto method = queue.flags({"strategy"}, [](RunSettings& s) { s.strategy = "fedavgm"; });
  CHECK(choose_run(queue.store, method).value().settings.strategy == "fedavgm");
  queue.store.rounds().set_initial_model(waiting, some_checkpoint(0)).value();
  CHECK(choose_run(queue.store, method).value().record.id == waiting);  // It has this method.

  const auto refused = [&](const char* flag, const std::function<void(RunSettings&)>& set) {
    return queue.refusal(queue.flags({flag}, set));
  };
  CHECK(refused("strategy", [](RunSettings& s) { s.strategy = "fedadam"; }) ==
        R"(the run in here has --strategy "fedavgm", which can't become "fedadam" any more; )"
        "'fl-server queue' adds another run behind it, --new-run gives it up and begins another");
  CHECK(refused("model", [](RunSettings& s) {
          s.model = "mlp";
        }).find(R"(--model "synthetic:10")") != std::string::npos);
  const auto seed = queue.store.runs().find(waiting).value()->seed;
  CHECK(refused("seed", [seed](RunSettings& s) {
          s.seed = seed + 1;
        }).find(fmt::format("--seed {}, which", seed)) != std::string::npos);
  CHECK(refused("mode", [](RunSettings& s) { s.mode = "async"; }).find(R"(--mode "sync")") !=
        std::string::npos);
  CHECK(refused("initial-weights", [](RunSettings& s) {
          s.initial_weights = "/w";
        }).find(R"(--initial-weights "")") != std::string::npos);
}

TEST_CASE("a wrong setting is refused and changes nothing") {
  Queue queue;
  queue.begin();
  const auto bad = queue.flags({"fraction"}, [](RunSettings& s) { s.fraction = 2; });
  CHECK(choose_run(queue.store, bad).error().message().starts_with("--fraction: "));
  CHECK(choose_run(queue.store, queue.flags()).value().settings.fraction == 1);
}

TEST_CASE("--new-run stops the runs before it and takes the model of the last one") {
  Queue queue;
  const RunId first = queue.begin().record.id;
  ServeOptions options = queue.flags();
  options.new_run = true;
  options.settings.model = "lenet";  // The default, and not given.
  const ChosenRun second = choose_run(queue.store, options).value();
  CHECK(second.record.id != first);
  CHECK(second.settings.model == "synthetic:10");
  CHECK(queue.store.runs().find(first).value()->state == RunState::stopped);
}

TEST_CASE(
    "a run without --model takes the newest model that was trained, and says what it leaves") {
  Queue queue;
  Runs& runs = queue.store.runs();
  CHECK(others_of_newest(runs, queue.flags({"lr"})).value().empty());
  const auto first =
      queue.flags({"model", "min-clients"}, [](RunSettings& s) { s.min_clients = 3; });
  queue.begin(first);
  const auto mistaken = queue.flags({"model"}, [](RunSettings& s) { s.model = "synthetic:99"; });
  CHECK(others_of_newest(runs, mistaken).value().empty());
  queue_run(runs, mistaken).value();  // It never began.
  const auto next = queue.flags({"lr"}, [](RunSettings& s) { s.model = "lenet"; });
  CHECK(others_of_newest(runs, next).value() ==
        "the model is that of run 1, as no --model was given; its other settings are not taken "
        "over, and it had --min-clients 3 (here 2)");
  CHECK(queue_run(runs, next).value().model == "synthetic:10");
}

TEST_CASE("a run without --model takes a custom model with its file of initial weights") {
  Queue queue;
  const test::TemporaryFolder folder;
  const auto file = (folder.path() / "weights.safetensors").string();
  const Layout layout = Layout::make({{"w", {2}}}).value();
  const std::vector<float> weights{1, 2};
  const std::vector<ElementType> types{ElementType::f32};
  {
    const auto to = posix_files().open(file, OpenMode::create).value();
    REQUIRE(write_safetensors(*to, layout, weights, types));
  }
  const auto custom = queue.flags({"model", "initial-weights"}, [&](RunSettings& s) {
    s.model = "custom:own";
    s.initial_weights = file;
  });
  queue.begin(custom);
  const RunRecord next = queue_run(queue.store.runs(), queue.flags({"rounds"})).value();
  CHECK(next.model == "custom:own");
  const auto settings = settings_from_json(next.config_json).value();
  CHECK(settings.initial_weights == file);
  CHECK(settings.tensors.size() == 1);
}

TEST_CASE("after a finished run, the server needs more rounds or waits for the next run") {
  Queue queue;
  const RunId id = queue.begin().record.id;
  queue.store.runs().set_state(id, RunState::finished).value();
  CHECK(queue.refusal(queue.flags()).find("is finished after 0 rounds of 10") != std::string::npos);
  ServeOptions stay = queue.flags();
  stay.stay = true;
  CHECK(choose_run(queue.store, stay).value().record.state == RunState::finished);
  const auto longer = queue.flags({"rounds"}, [](RunSettings& s) { s.rounds = 20; });
  const ChosenRun run = choose_run(queue.store, longer).value();
  CHECK(run.record.id == id);
  CHECK(run.record.state == RunState::running);
  CHECK(run.settings.rounds == 20);
}

TEST_CASE("after a run that was given up, the server needs another or waits for it") {
  Queue queue;
  const RunId id = choose_run(queue.store, queue.flags({"model"})).value().record.id;
  REQUIRE(queue.store.runs().give_up(id, "").value());
  CHECK(queue.refusal(queue.flags()).find("was given up: --new-run begins another") !=
        std::string::npos);
  ServeOptions stay = queue.flags();
  stay.stay = true;
  CHECK(choose_run(queue.store, stay).value().record.state == RunState::stopped);
}

TEST_CASE("a queued run waits for its turn and keeps its own settings") {
  Queue queue;
  const RunId first = queue.begin().record.id;
  const auto slow = queue.flags({"lr"}, [](RunSettings& s) { s.lr = 0.125; });
  const RunId queued = queue_run(queue.store.runs(), slow).value().id;
  CHECK(next_run(queue.store.runs()).value()->record.id == first);
  queue.store.runs().set_state(first, RunState::finished).value();
  const auto told = queue.flags({"lr"}, [](RunSettings& s) { s.lr = 0.5; });
  const ChosenRun run = choose_run(queue.store, told).value();
  CHECK(run.record.id == queued);
  CHECK(run.settings.lr == 0.125);
  queue.store.runs().set_state(queued, RunState::finished).value();
  CHECK_FALSE(next_run(queue.store.runs()).value());
}

TEST_CASE("a queued run that was dropped or given up before it began is never the newest run") {
  Queue queue;
  const RunId first = queue.begin().record.id;
  const RunId dropped = queue_run(queue.store.runs(), queue.flags({"model"})).value().id;
  const RunId given_up = queue_run(queue.store.runs(), queue.flags({"model"})).value().id;
  REQUIRE(queue.store.runs().give_up(dropped, "").value());
  queue.store.runs().set_state(first, RunState::finished).value();
  queue.store.runs().set_state(given_up, RunState::stopped).value();
  CHECK(queue.store.runs().latest().value()->id == first);
  CHECK(queue.refusal(queue.flags()).find("A larger --rounds goes on with it") !=
        std::string::npos);
  const auto longer = queue.flags({"rounds"}, [](RunSettings& s) { s.rounds = 20; });
  CHECK(choose_run(queue.store, longer).value().record.id == first);
}

TEST_CASE("each run has a random seed of its own, which a restart keeps, unless one is given") {
  Queue queue;
  const ChosenRun first = queue.begin();
  CHECK(first.settings.seed == first.record.seed);
  CHECK(first.settings.seed < std::uint64_t{1} << 53);  // JavaScript shows it as it is.
  CHECK(choose_run(queue.store, queue.flags()).value().settings.seed == first.settings.seed);
  std::set<std::uint64_t> seeds = {first.settings.seed};
  for (int i = 0; i < 3; ++i)
    seeds.insert(queue_run(queue.store.runs(), queue.flags({"model"})).value().seed);
  ServeOptions another = queue.flags();
  another.new_run = true;
  seeds.insert(choose_run(queue.store, another).value().record.seed);
  CHECK(seeds.size() == 5);
  CHECK_FALSE(seeds.contains(0));

  const auto given = queue.flags({"seed"}, [](RunSettings& s) { s.seed = 0; });
  CHECK(queue_run(queue.store.runs(), given).value().seed == 0);
}

TEST_CASE("a first run whose settings the server has read already has a random seed, too") {
  Queue queue;
  const auto first = choose_run(queue.store, queue.flags(), queue.flags().settings).value();
  CHECK(first.record.seed != 0);
  CHECK(first.settings.seed == first.record.seed);
}

TEST_CASE("a full queue refuses another run") {
  Queue queue;
  for (std::size_t i = 0; i < limits::runs_queued_max; ++i)
    REQUIRE(queue_run(queue.store.runs(), queue.flags({"model"})));
  CHECK(code_of(queue_run(queue.store.runs(), queue.flags({"model"}))) == Errc::conflict);
}

TEST_CASE("each run has its own folder of checkpoints") {
  Queue queue;
  const RunRecord first = queue_run(queue.store.runs(), queue.flags({"model"})).value();
  const RunRecord second = queue_run(queue.store.runs(), queue.flags({"model"})).value();
  CHECK(checkpoints_of("/state", first) == "/state/checkpoints");
  CHECK(checkpoints_of("/state", second) == "/state/checkpoints/run-2");
}

}  // namespace
}  // namespace fl::test
