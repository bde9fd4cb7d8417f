// SPDX-License-Identifier: Apache-2.0
// The command line of fl-server: each row of its table becomes a sub-command.
#include "server/app/commands.hpp"
#include "shared/flags/flags.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <iostream>
#include <sstream>

namespace fl::test {
namespace {

/// A new sub-command as docs/design/adding-a-sub-command.md describes it: a function and one row.
Result<void> greet(const ServerOptions& options) {
  return Error(Errc::not_found, "nobody is called " + options.name);
}

constexpr Command toys[] = {
    {.name = "greet",
     .help = "Says hello",
     .declare =
         [](CLI::App& command, ServerOptions& options) {
           command.add_option("--whom", options.name, "Whom to greet")->required();
         },
     .run = greet},
    {.name = "plan",
     .help = "Uses the settings of a run",
     .run = greet,
     .uses_settings = [](const ServerOptions&) { return true; }},
};

struct Parsed {
  int code = 0;
  ServerOptions options;
  std::string printed;
};

Parsed parse(std::vector<const char*> words, std::span<const Command> commands = toys) {
  words.insert(words.begin(), "fl-server");
  Parsed parsed;
  std::ostringstream out;
  auto* const before_out = std::cout.rdbuf(out.rdbuf());
  auto* const before_err = std::cerr.rdbuf(out.rdbuf());
  parsed.code =
      parse_options(static_cast<int>(words.size()), words.data(), commands, parsed.options);
  std::cout.rdbuf(before_out);
  std::cerr.rdbuf(before_err);
  parsed.printed = out.str();
  return parsed;
}

bool contains(const std::string& text, std::string_view words) {
  return text.find(words) != std::string::npos;
}

TEST_CASE("a row of the table gives a sub-command its help, its flags and its function") {
  const Parsed all = parse({"--help"});
  CHECK(all.code == 0);
  CHECK(contains(all.printed, "greet"));
  CHECK(contains(all.printed, "Says hello"));
  const Parsed one = parse({"greet", "--help"});
  CHECK(one.code == 0);
  CHECK(contains(one.printed, "Whom to greet"));

  const Parsed given = parse({"greet", "--whom", "anna", "--state", "here"});
  CHECK(given.code == -1);
  REQUIRE(given.options.command != nullptr);
  CHECK(given.options.command->name == "greet");
  CHECK(given.options.state == "here");
  CHECK(given.options.command->run(given.options).error().message() == "nobody is called anna");

  CHECK(parse({"greet"}).code == wrong_usage);
  CHECK(parse({"greet", "--whom", "anna", "plan"}).code == wrong_usage);
  CHECK(parse({"nonesuch"}).code == wrong_usage);
}

TEST_CASE("without a sub-command the server serves") {
  const Parsed parsed = parse({"--rounds", "3"});
  CHECK(parsed.code == -1);
  CHECK(parsed.options.command == nullptr);
  CHECK(parsed.options.settings.rounds == 3);
  CHECK(parsed.options.given == std::set<std::string>{"rounds"});
}

TEST_CASE("a flag that a sub-command would ignore is refused") {
  const Parsed setting = parse({"greet", "--whom", "anna", "--rounds", "3"});
  CHECK(setting.code == wrong_usage);
  CHECK(contains(setting.printed, "--rounds is a setting of a run"));
  const Parsed listen = parse({"plan", "--listen=127.0.0.1:0"});
  CHECK(listen.code == wrong_usage);
  CHECK(contains(listen.printed, "--listen is for the server itself"));
  CHECK(parse({"plan", "--rounds", "3"}).code == -1);
  const Parsed dropping = parse({"queue", "--drop", "3", "--rounds", "3"}, server_commands());
  CHECK(dropping.code == wrong_usage);
  CHECK(parse({"queue", "--rounds", "3"}, server_commands()).code == -1);
  CHECK(parse({"--optimizer", "adam", "--momentum", "0.5"}).code == wrong_usage);
}

TEST_CASE("every sub-command has a unique name, help and a function") {
  std::set<std::string_view> names;
  for (const Command& command : server_commands()) {
    CAPTURE(command.name);
    CHECK(names.insert(command.name).second);
    CHECK_FALSE(command.help.empty());
    CHECK((command.run != nullptr) != (command.judge != nullptr));
    const std::string name(command.name);
    CHECK(parse({name.c_str(), "--help"}, server_commands()).code == 0);
  }
}

}  // namespace
}  // namespace fl::test
