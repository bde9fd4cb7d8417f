// SPDX-License-Identifier: Apache-2.0
// Access to the admin pages, and the pages of the history.
#include "server/admin/access.hpp"
#include "server/admin/admin_door.hpp"
#include "server/admin/admin_history.hpp"
#include "shared/base/json.hpp"
#include "tests/server/history/records.hpp"
#include "tests/support/print_result.hpp"
#include "tests/support/temporary_folder.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace fl::test {

using namespace fl::server;
namespace {

namespace fs = std::filesystem;

/// A history on disk with two runs of `rounds` rounds each; in every round two clients are asked.
void fill(const fs::path& path, Round rounds) {
  const auto store = Store::open({.path = path}).value();
  for (const char* key : {"aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"}) {
    const RunId run = store->runs().create(some_run(key)).value().id;
    store->rounds().set_initial_model(run, some_checkpoint(0)).value();
    for (Round round = 1; round <= rounds; ++round) {
      store->rounds().open(run, some_round(round), {some_task("a"), some_task("b")}).value();
      store->rounds().commit(some_commit(run, round)).value();
    }
  }
}

Awaitable<void> ask(AdminHistory& history, const HistoryPage& page, AddressQuery query,
                    std::optional<Result<std::string>>& out) {
  out = co_await history.read(page, std::move(query), true);
}

/// The rounds of a page, as "run:round run:round …".
std::string rounds_of(AdminHistory& history, std::string_view path, std::string_view query) {
  const auto page = std::ranges::find(history_pages(), path, &HistoryPage::path);
  REQUIRE(page != history_pages().end());
  net::io_context io;
  std::optional<Result<std::string>> text;
  net::co_spawn(io, ask(history, *page, AddressQuery::parse(query, page->names).value(), text),
                net::detached);
  io.run();
  std::string found;
  for (const auto& row : parse_json(text.value().value()))
    found += row["run_id"].dump() + ":" + row["round"].dump() + " ";
  return found;
}

}  // namespace

TEST_CASE("only hosts that a foreign web page can't have are answered") {
  for (const char* host : {"127.0.0.1", "127.0.0.1:8080", "[::1]", "[::1]:8080", "192.0.2.7:80",
                           "localhost", "LocalHost:8080", "trainer.example", "TRAINER.example:9"}) {
    CAPTURE(host);
    CHECK(is_host_allowed(host, {"trainer.example"}));
  }
  for (const char* host : {"", ":80", "evil.example", "evil.example:8080", "localhost.evil.example",
                           "xtrainer.example", "trainer.example.evil", "127.0.0.1.evil.example",
                           "[", "[]", "[evil.example]:80"}) {
    CAPTURE(host);
    CHECK(!is_host_allowed(host, {"trainer.example"}));
  }
}

TEST_CASE("the history comes page by page, over a connection of its own") {
  const TemporaryFolder folder;
  const fs::path path = folder / "history.sqlite";
  fill(path, 5);
  const auto history = AdminHistory::open(path).value();
  for (const std::string_view page : {"/api/rounds", "/api/choices"}) {
    CAPTURE(page);
    const bool is_choices = page == "/api/choices";
    const std::string each = is_choices ? "2:1 2:1 2:2 2:2 " : "2:1 2:2 ";
    // The run under way, or the newest that has rounds, unless the query names one.
    CHECK(rounds_of(*history, page, "limit=2") == each);
    const std::string last = is_choices ? "1:5 1:5 " : "1:5 ";
    CHECK(rounds_of(*history, page, "run=1&after=4&limit=2") == last);
    CHECK(rounds_of(*history, page, "run=1&after=5&limit=2").empty());
    CHECK(rounds_of(*history, page, "run=7&limit=2").empty());
  }
  // Commits of another connection meanwhile are seen.
  const auto writer = Store::open({.path = path}).value();
  writer->rounds().open(2, some_round(6), {some_task("a")}).value();
  writer->rounds().commit(some_commit(2, 6)).value();
  CHECK(rounds_of(*history, "/api/rounds", "run=2&after=5&limit=9") == "2:6 ");
}

TEST_CASE("the door is a port or a Unix socket that only this user may open") {
  net::io_context io;
  const TemporaryFolder folder;
  const auto port = AdminDoor::open(io, "127.0.0.1:0");
  REQUIRE(port);
  CHECK(port->place().starts_with("127.0.0.1:"));
  CHECK(!port->place().ends_with(":0"));
  const auto taken = AdminDoor::open(io, port->place());
  REQUIRE(!taken);
  CHECK(taken.error().message().find("the port is taken") != std::string::npos);

  const fs::path path = folder / "admin.sock";
  const std::string place = "unix:" + path.string();
  {
    const auto door = AdminDoor::open(io, place);
    REQUIRE(door);
    CHECK(fs::is_socket(path));
    const auto others = fs::perms::group_all | fs::perms::others_all;
    CHECK((fs::status(path).permissions() & others) == fs::perms::none);
    // A server that was killed leaves its socket: the next one replaces it.
    CHECK(AdminDoor::open(io, place));
  }
  CHECK(!fs::exists(path));
  std::ofstream(path) << "not a socket";
  CHECK(!AdminDoor::open(io, place));
  CHECK(fs::file_size(path) > 0);
  CHECK(!AdminDoor::open(io, "unix:"));
  CHECK(!AdminDoor::open(io, "unix:/" + std::string(200, 'x')));
}

}  // namespace fl::test
