// SPDX-License-Identifier: Apache-2.0
// A trainer that is a program of the user's: what it may do, and what happens when it exits, hangs,
// raises, floods or lies. The program is scripted_trainer.py.
#include "client/learn/process/process_trainer.hpp"

#include "client/learn/initial_file.hpp"
#include "client/learn/process/trainer_messages.hpp"
#include "shared/base/io/file.hpp"
#include "shared/params/model_table.hpp"
#include "tests/client/learn/temporary_state.hpp"
#include "tests/support/print_result.hpp"
#include "tests/support/train_settings.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

using namespace fl;
using fl::test::State;

namespace {

TrainerCommand command_of(const State& state, const std::string& mode) {
  TrainerCommand command;
  command.command = fmt::format("python3 {} {}", FL_SCRIPTED_TRAINER, mode);
  command.variables.emplace_back("STARTS", (state.path / "starts").string());
  command.silence_s = 20;
  return command;
}

/// A trainer with what it needs.
struct Running {
  explicit Running(const std::string& mode, int retries = 3) {
    auto command = command_of(state, mode);
    command.retries = retries;
    begin(command);
  }
  explicit Running(const std::function<void(TrainerCommand&)>& change, const std::string& mode) {
    auto command = command_of(state, mode);
    change(command);
    begin(command);
  }
  void begin(const TrainerCommand& command) {
    auto started = TrainerProgram::start(command, state.path, {});
    REQUIRE(started);
    program = *started;
    trainer = make_process_trainer(program, "custom:scripted").value();
  }
  Result<TrainReport> train(std::uint32_t round = 1, std::span<const float> correction = {},
                            std::stop_token stop = {}) {
    update.assign(8, -100.0F);
    std::vector<float> weights(8);
    std::iota(weights.begin(), weights.end(), 10.0F);
    return trainer->train(weights, {.round = round}, correction, update, std::move(stop));
  }
  State state;
  std::shared_ptr<TrainerProgram> program;
  std::unique_ptr<Trainer> trainer;
  std::vector<float> update;
};

const std::vector<float> ones(8, 1.0F);

Error start_error(const std::string& mode, double silence_s = 20) {
  const State state;
  auto command = command_of(state, mode);
  command.retries = 1;
  command.silence_s = silence_s;
  const auto started = TrainerProgram::start(command, state.path, {});
  REQUIRE_FALSE(started);
  return started.error();
}

bool says(const Error& error, std::string_view text) {
  return error.message().find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("a program is asked to train, measure, begin and take gradients") {
  Running running("-");
  Trainer& trainer = *running.trainer;
  CHECK(trainer.train_examples() == 40);
  CHECK(trainer.holdout_examples() == 10);
  // Sorted by name, without the whole number.
  REQUIRE(trainer.layout().tensors().size() == 2);
  CHECK(trainer.layout().tensors()[0].name == "b");
  CHECK(trainer.layout().tensors()[1].shape == std::vector<std::int64_t>{2, 3});
  REQUIRE(trainer.metrics().size() == 2);
  CHECK(trainer.metrics()[0].name == "accuracy");

  const auto report = running.train();
  REQUIRE(report);
  CHECK(report->steps == 3);
  CHECK(report->loss == 0.25);
  CHECK(report->examples == 40);
  CHECK(running.update == ones);

  const std::vector<float> correction{0, 0, 0.5F, 0, 0, 0, 0, 2};
  REQUIRE(running.train(2, correction));
  for (std::size_t i = 0; i < 8; ++i) CHECK(running.update[i] == 1 + correction[i]);

  const std::vector<float> weights{1, 2, 3.5F, 4, 5, 6, 7, 8};
  const auto measured = trainer.evaluate(weights, {});
  REQUIRE(measured);
  CHECK(measured->loss == 3.5);
  CHECK(measured->examples == 10);
  REQUIRE(find_metric(measured->metrics, "f1") != nullptr);
  CHECK(find_metric(measured->metrics, "f1")->weight == 7);
  CHECK(find_metric(measured->metrics, "accuracy")->value == 0.75);

  std::vector<float> gradient(8);
  REQUIRE(trainer.gradient(weights, {}, gradient, {}));
  CHECK(gradient == weights);
  CHECK(trainer.initial_weights(3).value() == std::vector<float>(8, 3.0F));
  CHECK(running.state.starts() == 1);
}

TEST_CASE("weights of another type are rounded both ways, and the rounding is no update") {
  for (const std::string type : {"F16", "F64"}) {
    CAPTURE(type);
    Running running([&](TrainerCommand& c) { c.variables.emplace_back("DTYPE", type); }, "-");
    std::vector<float> weights(8, 0.1F);  // Not a number of 16 bits.
    std::vector<float> update(8);
    REQUIRE(running.trainer->train(weights, {}, {}, update, {}));
    for (const float value : update) CHECK(value == doctest::Approx(1).epsilon(0.001));
    const auto measured = running.trainer->evaluate(weights, {});
    REQUIRE(measured);
    CHECK((static_cast<float>(measured->loss) == 0.1F) == (type == "F64"));
  }
}

TEST_CASE("a program trains a built-in model, whose tensors have another order than its own") {
  // Each tensor is given these values: 1 to 3, 4 and 5, 6 to 8, 9 to 14.
  const char* const shapes =
      R"({"input.running_var": [3], "fc.bias": [2], "input.running_mean": [3], "fc.weight": [2, 3]})";
  Running running(
      [&](TrainerCommand& c) {
        c.variables.emplace_back("TENSORS", shapes);
        c.variables.emplace_back("ADDS", "1 2 3 4 5 6 7 8 9 10 11 12 13 14");
      },
      "-");
  CHECK(running.trainer->layout().tensors()[0].name == "fc.bias");
  running.trainer = make_process_trainer(running.program, "logistic:3-2").value();
  const Layout layout = builtin_layout("logistic:3-2").value();
  REQUIRE(layout.tensors()[0].name == "fc.weight");
  CHECK(running.trainer->layout().digest() == layout.digest());
  const std::vector<float> weights(14, 20.0F);
  std::vector<float> update(14);
  REQUIRE(running.trainer->train(weights, {.round = 1}, {}, update, {}));
  CHECK(update == std::vector<float>{9, 10, 11, 12, 13, 14, 4, 5, 6, 7, 8, 1, 2, 3});
  CHECK(running.trainer->initial_weights(1).value() ==
        builtin_initial_weights("logistic:3-2", 1).value());
  // With another model the program's own order stays: the layouts differ, and the server says so.
  for (const char* other : {"logistic:2-3", "logistic:3-3", "mlp:3-2-2", "synthetic:14"}) {
    const auto mine = make_process_trainer(running.program, other).value();
    CHECK(mine->layout().digest() == running.program->hello().layout.digest());
  }
}

TEST_CASE("a program that can't start ends with its last words") {
  CHECK(says(start_error("exit-at-start"), "exit status 1: ModuleNotFoundError: No module"));
  // On a busy machine it may take longer than that to connect.
  const Error silent = start_error("silent-start", 2);
  const bool is_right = says(silent, "sent no message for 2 s before it said hello") ||
                        says(silent, "did not connect within 2 s");
  CHECK_MESSAGE(is_right, silent.message());
  CHECK(says(start_error("not-json"), "not a JSON object: hello"));
  CHECK(says(start_error("deep"), "a line that is not a JSON object: {\"type\":{\"type\":"));
  CHECK(says(start_error("other-type"), "first message is not hello"));
  CHECK(
      says(start_error("cannot-begin"), "the trainer can't begin: FileNotFoundError: part-1.npz"));
}

TEST_CASE("a start that fails is tried again, and the last error is final") {
  const State state;
  auto command = command_of(state, "exit-at-start");
  command.retries = 2;
  const auto started = TrainerProgram::start(command, state.path, {});
  REQUIRE_FALSE(started);
  CHECK(started.error().code() == Errc::internal);
  CHECK(says(started.error(), "failed 2 times in a row"));
  CHECK(state.starts() == 2);
}

TEST_CASE("a program whose hello is wrong is not started again, and hears why") {
  const State state;
  auto command = command_of(state, "-");
  command.command += fmt::format(" > {}", (state.path / "said").string());
  command.variables.emplace_back("METRICS", R"([{"name": "mae", "better": "higher"}])");
  const auto started = TrainerProgram::start(command, state.path, {});
  REQUIRE_FALSE(started);
  CHECK(started.error().code() == Errc::conflict);
  const std::string reason =
      "the trainer's 'metrics': of metric mae lower values are better, not higher ones";
  CHECK(started.error().message() == reason);
  CHECK(state.starts() == 1);
  CHECK(posix_files().read_all(state.path / "said", 1000).value() == "bye: " + reason + "\n");
}

TEST_CASE("a program's metrics have any names, and the known ones have their direction") {
  const auto kinds_of = [](const std::string& metrics) {
    Running running([&](TrainerCommand& c) { c.variables.emplace_back("METRICS", metrics); }, "-");
    return running.program->hello().metrics;
  };
  const MetricKind lower{.name = "mae", .lower_is_better = true};
  CHECK(kinds_of(R"(["mae"])") == std::vector{lower});
  CHECK(kinds_of(R"([{"name": "mae", "combine": "mean"}])") == std::vector{lower});
  CHECK(kinds_of(R"([{"name": "RMSE", "better": "lower"}])") == std::vector{known_metric("RMSE")});
  CHECK(kinds_of(R"x(["F1 (macro)", {"name": "Fläche", "better": "lower"}])x") ==
        std::vector{MetricKind{.name = "F1 (macro)"},
                    MetricKind{.name = "Fläche", .lower_is_better = true}});
}

TEST_CASE("a program that ends during a task fails it, and is started anew for the next") {
  Running running("exit-in-train");
  auto report = running.train();
  REQUIRE_FALSE(report);
  CHECK(report.error().code() == Errc::invalid_input);
  CHECK(says(report.error(), "ended during 'train': exit status 3: "));
  CHECK(says(report.error(), "FileNotFoundError: part-1.npz"));
  REQUIRE_FALSE(running.train());
  CHECK(running.state.starts() == 2);
  // A third failure in a row is final.
  report = running.train();
  REQUIRE_FALSE(report);
  CHECK(report.error().code() == Errc::internal);
}

TEST_CASE("a program that shows no life is ended, and the next start serves again") {
  Running running([](TrainerCommand& c) { c.silence_s = 8; }, "hang");
  const auto report = running.train();
  REQUIRE_FALSE(report);
  CHECK(says(report.error(), "sent no message for 8 s during 'train'"));
  REQUIRE(running.train(2));
  CHECK(running.update == ones);
  CHECK(running.state.starts() == 2);
}

TEST_CASE("a program hears all settings that the protocol has") {
  const TrainSettings settings = test::unusual_settings();
  const nlohmann::json expected{
      {"epochs", 3},
      {"steps", 21},
      {"seconds", 1.5},
      {"batch_size", 9},
      {"accumulate", 4},
      {"optimizer", {{"name", "adamw"}, {"beta1", 0.75}, {"beta2", 0.999}, {"epsilon", 1e-3}}},
      {"lr", 0.125},
      {"momentum", 0.875},
      {"weight_decay", 0.0625},
      {"clip_norm", 2.5},
      {"proximal_mu", 0.5},
      {"seed", ~std::uint64_t{0}}};
  CHECK(settings_json(settings) == expected);
  CHECK(settings_json(TrainSettings{}).at("optimizer") == nlohmann::json{{"name", "sgd"}});
}

TEST_CASE("the deadline of a round ends no training: a round that waits takes the late update") {
  Running running([](TrainerCommand& c) { c.variables.emplace_back("SECONDS", "0.3"); }, "-");
  std::vector<float> weights(8);
  std::vector<float> update(8);
  TrainSettings settings;
  settings.deadline_s = 0.01;
  CHECK(running.trainer->train(weights, settings, {}, update, {}));
  CHECK(running.state.starts() == 1);
}

TEST_CASE("an error of the program is told, and counts unless the weights are to blame") {
  Running running([](TrainerCommand& c) { c.variables.emplace_back("ALWAYS", "1"); }, "error");
  for (const Errc expected : {Errc::invalid_input, Errc::invalid_input, Errc::internal}) {
    const auto report = running.train();
    REQUIRE_FALSE(report);
    CHECK(report.error().code() == expected);
    CHECK(says(report.error(), "ValueError: odd labels"));
  }
  CHECK(running.state.starts() == 1);  // It runs on.

  Running other([](TrainerCommand& c) { c.variables.emplace_back("ALWAYS", "1"); }, "diverged");
  for (int i = 0; i < 5; ++i) {
    const auto report = other.train();
    REQUIRE_FALSE(report);
    CHECK(report.error().code() == Errc::invalid_input);
  }
}

TEST_CASE("files that are cut, misshapen, not finite or of the round before are refused") {
  const auto refusal = [](const std::string& mode, std::uint32_t round = 1) {
    Running running(mode);
    if (round > 1) REQUIRE(running.train(1));
    const auto report = running.train(round);
    REQUIRE_FALSE(report);
    CHECK(report.error().code() == Errc::invalid_input);
    return report.error();
  };
  CHECK(says(refusal("short"), "the tensors have 32 bytes, but the file has 28"));
  CHECK(says(refusal("misshapen"), "w has shape [3, 2], expected [2, 3]"));
  CHECK(says(refusal("not-finite"), "b[1] is not finite"));
  CHECK(says(refusal("stale", 2), "out.safetensors"));
}

TEST_CASE("a pipe in the place of a result is refused, and the next task goes on") {
  Running running("fifo");
  const auto report = running.train();
  REQUIRE_FALSE(report);
  CHECK(says(report.error(), "out.safetensors is a pipe (FIFO), not a file"));
  // Said of this task's result: the pipe before was taken away.
  CHECK(says(running.train(2).error(), "the trainer's out.safetensors: "));
  CHECK(running.state.starts() == 1);
}

TEST_CASE("a pipe in the place of an answer of a command is refused") {
  const State state;
  TrainerCommand command;
  command.once = "mkfifo hello.json";
  command.retries = 1;
  const auto started = TrainerProgram::start(command, state.path, {});
  REQUIRE_FALSE(started);
  CHECK(says(started.error(), "hello.json is a pipe (FIFO), not a file"));
}

TEST_CASE("a flood of output does not stop the program") {
  Running running("flood");
  REQUIRE(running.train());
  CHECK(running.update == ones);
}

TEST_CASE("a cancelled task ends soon, and the program stays if it answers") {
  Running running("cancellable");
  std::stop_source stop;
  std::jthread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    stop.request_stop();
  });
  const auto report = running.train(1, {}, stop.get_token());
  REQUIRE_FALSE(report);
  CHECK(report.error().code() == Errc::cancelled);
  CHECK(running.program->hello().examples.train == 40);
  const std::vector<float> weights(8);
  CHECK(running.trainer->evaluate(weights, {}));
  CHECK(running.state.starts() == 1);
}

TEST_CASE("a program that comes back with another model is refused for good") {
  Running running("other-layout-later");
  running.program->end();
  const auto report = running.train();
  REQUIRE_FALSE(report);
  CHECK(report.error().code() == Errc::conflict);
}

TEST_CASE("a command for each request answers by files") {
  Running running(
      [](TrainerCommand& c) {
        c.once = std::exchange(c.command, "");
        c.once = fmt::format("python3 {} once", FL_SCRIPTED_TRAINER);
      },
      "-");
  REQUIRE(running.train());
  CHECK(running.update == ones);
  const std::vector<float> weights(8, 2.0F);
  const auto measured = running.trainer->evaluate(weights, {});
  REQUIRE(measured);
  CHECK(measured->loss == 2);
  CHECK(running.trainer->initial_weights(3).value() == std::vector<float>(8, 3.0F));

  Running failing(
      [](TrainerCommand& c) {
        c.once = fmt::format("python3 {} once exit-in-train", FL_SCRIPTED_TRAINER);
        c.command.clear();
      },
      "-");
  const auto report = failing.train();
  REQUIRE_FALSE(report);
  CHECK(says(report.error(), "exit status 3"));
}

TEST_CASE("a program plays clients, each with its number, examples and folder") {
  Running running([](TrainerCommand& c) { c.variables.emplace_back("CLIENTS", "30"); }, "-");
  REQUIRE(running.program->hello().plays_clients);
  PlayedClient client{.number = 2, .clients = 5, .state = running.state.path / "two"};
  client.examples = ask_for_examples(*running.program, client, {}).value();
  CHECK(client.examples == ExampleCounts{.train = 42, .holdout = 0});
  running.trainer = make_process_trainer(running.program, "custom:scripted", client).value();
  const auto report = running.train(7);
  REQUIRE(report);
  CHECK(report->examples == 42);
  CHECK(running.update == std::vector<float>(8, 3.0F));
  std::ifstream file(client.state / "trained");
  std::string line;
  REQUIRE(std::getline(file, line));
  CHECK(line == "7 2 5");
}

TEST_CASE("programs with the same work count their failures together, and for each client") {
  TrainerFailures failures;
  CHECK(failures.add({"'train'", "'train' for client 1"}) == 1);
  CHECK(failures.add({"'train'", "'train' for client 2"}) == 2);
  // Another client's success does not make this one's failure undone.
  failures.forget({"'train'", "'train' for client 2"});
  CHECK(failures.worst() == 1);
  CHECK(failures.add({"'train'", "'train' for client 1"}) == 2);
  failures.forget({"'train'", "'train' for client 1"});
  CHECK(failures.worst() == 0);
}

TEST_CASE("initial weights are written as the server's file") {
  Running running("-");
  const auto path = running.state.path / "initial.safetensors";
  REQUIRE(write_initial_weights(*running.trainer, 5, path));
  const auto file = posix_files().open(path, OpenMode::read).value();
  std::vector<float> values(8);
  REQUIRE(read_safetensors(*file, running.trainer->layout(), values));
  CHECK(values == std::vector<float>(8, 5.0F));
}
