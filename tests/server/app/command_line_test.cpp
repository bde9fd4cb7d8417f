// SPDX-License-Identifier: Apache-2.0
// The command line of fl-server: each row of its table becomes a sub-command.
#include "server/app/command_line.hpp"
#include "server/app/commands.hpp"
#include "shared/flags/flags.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <iostream>
#include <sstream>

namespace fl::test {

using namespace fl::server;
namespace {

// New sub-commands as docs/design/adding-a-sub-command.md describes them: options, functions, a
// row.

struct GreetOptions : SharedOptions {
  std::string whom;
};

void declare_greet(CLI::App& command, GreetOptions& options) {
  command.add_option("--whom", options.whom, "Whom to greet")->required();
}

Result<void> greet(const GreetOptions& options) {
  return Error(Errc::not_found, fmt::format("nobody is called {} {}", options.whom, options.state));
}

Result<void> plan(const RunOptions& options) {
  return Error(Errc::not_found, fmt::format("no plan for {} rounds", options.settings.rounds));
}

const Command toys[] = {
    make_command<GreetOptions>("greet", "Says hello", {.declare = declare_greet, .run = greet}),
    make_command<RunOptions>("plan", "Uses the settings of a run", {.run = plan}),
};

struct Parsed {
  int code = 0;
  CommandLine line;
  std::string printed;
};

Parsed parse(std::vector<const char*> words, std::span<const Command> commands = toys) {
  words.insert(words.begin(), "fl-server");
  Parsed parsed;
  std::ostringstream out;
  auto* const before_out = std::cout.rdbuf(out.rdbuf());
  auto* const before_err = std::cerr.rdbuf(out.rdbuf());
  parsed.code = parse_options(static_cast<int>(words.size()), words.data(), commands, parsed.line);
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
  REQUIRE(given.line.command != nullptr);
  CHECK(given.line.command->name == "greet");
  CHECK(given.line.call->run().error().message() == "nobody is called anna here");

  CHECK(parse({"greet"}).code == wrong_usage);
  CHECK(parse({"greet", "--whom", "anna", "plan"}).code == wrong_usage);
  CHECK(parse({"nonesuch"}).code == wrong_usage);
}

TEST_CASE("without a sub-command the server serves") {
  const Parsed parsed = parse({"--rounds", "3"});
  CHECK(parsed.code == -1);
  CHECK(parsed.line.command == nullptr);
  CHECK(parsed.line.call == nullptr);
  CHECK(parsed.line.program.settings.rounds == 3);
  CHECK(parsed.line.program.given == std::set<std::string>{"rounds"});
}

TEST_CASE("a flag that a sub-command would ignore is refused") {
  const Parsed setting = parse({"greet", "--whom", "anna", "--rounds", "3"});
  CHECK(setting.code == wrong_usage);
  CHECK(contains(setting.printed, "--rounds is a setting of a run"));
  const Parsed listen = parse({"plan", "--listen=127.0.0.1:0"});
  CHECK(listen.code == wrong_usage);
  CHECK(contains(listen.printed, "--listen is for the server itself"));
  const Parsed planned = parse({"plan", "--rounds", "3"});
  CHECK(planned.code == -1);
  CHECK(planned.line.call->run().error().message() == "no plan for 3 rounds");
  const Parsed dropping = parse({"queue", "--drop", "3", "--rounds", "3"}, server_commands());
  CHECK(dropping.code == wrong_usage);
  CHECK(parse({"queue", "--rounds", "3"}, server_commands()).code == -1);
  CHECK(parse({"--optimizer", "adam", "--momentum", "0.5"}).code == wrong_usage);
}

TEST_CASE("a sub-command takes the program's flags that all have, and refuses the server's") {
  const std::set<std::string> shared{"--state", "--accept-fixed-modes", "--ca-passphrase-file",
                                     "--log-json", "--verbose"};
  const std::string help = parse({"--help"}).printed;
  const std::string flags = help.substr(0, help.find("The run (stored with it"));
  const auto known = parse({}).line.serve_flags;
  std::size_t refused = 0;
  for (std::size_t at = flags.find("\n  --"); at != flags.npos; at = flags.find("\n  --", at + 1)) {
    const std::size_t begin = at + 3;
    const std::string name = flags.substr(begin, flags.find_first_of(" ,\n", begin) - begin);
    CAPTURE(name);
    if (name == "--version" || name == "--config") continue;
    const std::string word = name + "=1";
    const Parsed parsed = parse({"greet", "--whom", "anna", word.c_str()});
    const bool is_refused = contains(parsed.printed, name + " is for the server itself");
    CHECK(known.contains(name) != shared.contains(name));
    if (name == "--log-json" || name == "--verbose") CHECK(parsed.code == -1);
    refused += is_refused ? 1 : 0;
  }
  CHECK(refused >= 10);  // Some refuse "1" as a value.
  CHECK(known.size() >= refused);
}

TEST_CASE("every sub-command has a unique name, and help") {
  std::set<std::string_view> names;
  for (const Command& command : server_commands()) {
    CAPTURE(command.name);
    CHECK(names.insert(command.name).second);
    CHECK_FALSE(command.help.empty());
    const std::string name(command.name);
    CHECK(parse({name.c_str(), "--help"}, server_commands()).code == 0);
  }
}

}  // namespace
}  // namespace fl::test
