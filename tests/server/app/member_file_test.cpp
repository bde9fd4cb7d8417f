// SPDX-License-Identifier: Apache-2.0
// The member list of a server, and the runs that need it.
#include "server/app/member_file.hpp"
#include "server/app/run_queue.hpp"
#include "shared/base/log.hpp"
#include "tests/server/history/store_world.hpp"
#include "tests/support/mem_files.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>

namespace fl::test {

using namespace fl::server;
namespace {

secure::Secret key_number(int number) {
  std::array<std::byte, secure::key_bytes> bytes{};
  bytes[0] = static_cast<std::byte>(number);
  return secure::Secret(bytes);
}

std::string some_list(bool is_signed, std::uint32_t smallest = 3) {
  std::string text =
      fmt::format("tributary-members 1\nepoch 1\nsmallest-cohort {}\nneeds 1\n", smallest);
  int number = 1;
  const auto add = [&](const char* word, const char* name) {
    text += fmt::format("{} {} {}\n", word, name,
                        secure::key_text(secure::signing_key(key_number(number++))));
  };
  add("signer", "ada");
  for (const char* const name : {"north", "south", "east", "west"}) add("member", name);
  const auto list = secure::parse_member_list(text).value();
  if (is_signed) text += secure::signature_line(list, key_number(1)).value() + "\n";
  return text;
}

struct Lists {
  MemFiles files;

  Lists() { set_log_level(LogLevel::off); }
  ~Lists() { set_log_level(LogLevel::info); }

  Result<std::optional<MemberFile>> read(const std::string& text) {
    files.write_atomically("/list", bytes_of(text)).value();
    return read_served_members(files, "/list");
  }
};

TEST_CASE("a server hands out only a list that enough signers have signed") {
  Lists lists;
  CHECK_FALSE(read_served_members(lists.files, "").value().has_value());
  const std::string text = some_list(true);
  const auto read = lists.read(text).value();
  CHECK(read->text == text);
  CHECK(read->list.members.size() == 4);
  CHECK(lone_signer_warning(read->list).find("must not be a signer") != std::string::npos);
  CHECK(lists.read(some_list(false)).error().message() ==
        "--members: /list: 0 have signed, and 1 must; its signers sign it with 'fl-server members "
        "sign'");
  CHECK(lists.read("nonesuch").error().message().starts_with("--members: /list: line 1: "));
  CHECK(read_served_members(lists.files, "/none").error().message().starts_with("--members: "));
}

TEST_CASE("a masked run needs a member list whose smallest cohort it can have") {
  Lists lists;
  RunSettings settings;
  CHECK(check_members(settings, {}));
  settings.secure_aggregation = "on";
  settings.min_clients = 3;
  for (const auto& checked : {check_members(settings, {}), check_members_given(settings, {})}) {
    REQUIRE(checked.has_error());
    CHECK(checked.error().message().find("give --members FILE") != std::string::npos);
  }
  CHECK(check_members(settings, lists.read(some_list(true)).value()));
  const auto larger = lists.read(some_list(true, 4)).value();
  CHECK(check_members_given(settings, larger));
  CHECK(check_members(settings, larger).error().message() ==
        "--min-clients is 3, and the list of --members has smallest-cohort 4, so its members "
        "refuse smaller rounds: give --min-clients 4");
  settings.secure_aggregation = "perhaps";
  CHECK(check_members(settings, larger).error().message().starts_with("--secure-aggregation: "));
}

TEST_CASE("a run that is queued, or not begun, gets what suits masks; others are refused") {
  Lists lists;
  StoreWorld world;
  Runs& runs = world.store->runs();
  ServeOptions options;
  options.settings.model = "synthetic:10";
  options.given = {"model"};
  const ChosenRun clear = choose_run(*world.store, options).value();
  CHECK(clear.settings.codec == "ecuq:4");

  options.settings.secure_aggregation = "on";
  options.given = {"model", "secure-aggregation"};
  const auto check = [](const RunSettings& settings) {
    CHECK(settings.secure_aggregation == "on");
    CHECK(settings.codec == "lanes:8");
    CHECK(settings.weights == "equal");
    CHECK(settings.min_clients == 3);
  };
  check(settings_from_json(queue_run(runs, options).value().config_json).value());
  const ChosenRun masked = choose_run(*world.store, options).value();
  CHECK(masked.record.id == clear.record.id);
  check(masked.settings);
  std::string events;
  for (const auto& event : world.store->events().all(std::nullopt).value())
    events += event.text + "\n";
  CHECK(events.find(R"(--codec is "lanes:8" from here on, and was "ecuq:4")") != std::string::npos);

  options.given.insert("codec");
  const auto refused = queue_run(runs, options);
  REQUIRE(refused.has_error());
  CHECK(refused.error().message().starts_with("--codec ecuq:4 does not go with"));
}

}  // namespace
}  // namespace fl::test
