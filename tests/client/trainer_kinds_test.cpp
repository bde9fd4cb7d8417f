// SPDX-License-Identifier: Apache-2.0
// The table of what may train in a client: which flags choose each kind, and what it starts.
#include "client/trainer_kinds.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::client;
namespace {

/// What these arguments of fl-client, or of a program with a trainer of its own, say.
ClientOptions options_of(std::vector<std::string> arguments, const TrainerFactory& own) {
  ClientProgram program;
  program.make_trainer = own;
  std::vector<char*> argv{program.name.data()};
  for (std::string& argument : arguments) argv.push_back(argument.data());
  ClientOptions options;
  REQUIRE(parse_options(static_cast<int>(argv.size()), argv.data(), program, options) == -1);
  return options;
}

Result<std::unique_ptr<Trainer>> make_none(const std::string& model) {
  return Error(Errc::invalid_input, "asked for " + model);
}

TEST_CASE("flags choose each kind of trainer") {
  struct Choice {
    std::string_view kind;
    std::vector<std::string> arguments;
    TrainerFactory own;
  };
  const Choice choices[] = {
      {"own", {}, make_none},
      {"own", {"--model", "custom:x"}, make_none},
      {"site", {"--ranks", "2"}, {}},
      {"site", {"--site", "--site-secret-file", "secret"}, {}},
      {"program", {"--trainer", "cat"}, {}},
      {"program", {"--trainer-once", "cat"}, {}},
      {"program", {"--trainer-socket", "socket"}, {}},
      {"built-in", {}, {}},
      {"built-in", {"--data", "mnist", "--model", "mlp"}, {}},
  };
  std::set<std::string_view> seen;
  for (const Choice& choice : choices) {
    const ClientOptions options = options_of(choice.arguments, choice.own);
    CHECK(chosen_trainer_kind(options, choice.own).name == choice.kind);
    seen.insert(choice.kind);
  }
  std::set<std::string_view> names;
  for (const TrainerKind& kind : trainer_kinds()) {
    CAPTURE(kind.name);
    CHECK(names.insert(kind.name).second);
    CHECK(seen.contains(kind.name));
    CHECK((kind.start != nullptr));
  }
}

TEST_CASE("a program's own trainer is asked for the model, a built-in one is made by its name") {
  const TrainerFactory own = make_none;
  const ClientOptions of_own = options_of({}, own);
  const auto started =
      chosen_trainer_kind(of_own, own).start({of_own, of_own.learn, own, std::nullopt});
  REQUIRE(started);
  CHECK(started->make("custom:x").error().message().find("asked for custom:x") !=
        std::string::npos);
  CHECK((started->end == nullptr));

  const ClientOptions builtin = options_of({}, {});
  const auto synthetic =
      chosen_trainer_kind(builtin, {}).start({builtin, builtin.learn, {}, std::nullopt});
  REQUIRE(synthetic);
  for (int again = 0; again < 2; ++again) {
    const auto trainer = synthetic->make("synthetic:1000");
    REQUIRE(trainer);
    CHECK((*trainer)->layout().elements() == 1000);
  }
}

TEST_CASE("doctor looks at what the kind knows") {
  const TrainerFactory own = make_none;
  CHECK((chosen_trainer_kind(options_of({}, own), own).check == nullptr));
  const ClientOptions options = options_of({}, {});
  DoctorLines lines;
  chosen_trainer_kind(options, {}).check(options, lines);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].subject == "data");
  CHECK(lines[1].subject == "GPU");
}

}  // namespace
}  // namespace fl::test
