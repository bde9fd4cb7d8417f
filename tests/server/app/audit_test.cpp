// SPDX-License-Identifier: Apache-2.0
// Every sub-command and every action of the control desk either changes nothing or has a row in the
// audit that says who did it; and so has what was refused.
#include "server/app/command_audit.hpp"
#include "server/app/commands.hpp"
#include "server/app/control.hpp"
#include "server/history/schema.hpp"
#include "server/history/sqlite.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/log.hpp"
#include "shared/secure/member_list.hpp"
#include "tests/server/history/records.hpp"
#include "tests/support/print_result.hpp"
#include "tests/support/temporary_folder.hpp"

#include <sqlite3.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>

#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::server;
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

/// The state of a server that is stopped: two runs that are over, one that is under way, a member.
struct State {
  TemporaryFolder temp;
  fs::path folder = temp / "state";
  std::unique_ptr<Store> store;

  State() {
    set_log_level(LogLevel::off);
    posix_files().make_folder(folder).value();
    store = Store::open({.path = folder / "history.sqlite"}).value();
    for (const char* key : {"aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb", "cccccccccccccccc"})
      store->rounds()
          .set_initial_model(store->runs().create(some_run(key), Runs::Others::stop).value().id,
                             some_checkpoint(0))
          .value();
    const double now = Clock::unix_seconds();
    static_cast<void>(Authority::open_or_create(posix_files(), folder / "identity", now).value());
    std::ofstream(folder / "address.json") << R"({"advertise": "127.0.0.1:8443"})";
    store->members().touch("site-1", false).value();
  }

  /// A member list that somebody has signed, outside the state.
  [[nodiscard]] std::string member_list() const {
    const auto path = temp / "members";
    const auto key = [](char digit) {
      secure::Secret secret;
      secret.bytes()[0] = static_cast<std::byte>(digit);
      return secret;
    };
    std::string text = "tributary-members 1\nepoch 1\nsmallest-cohort 3\nneeds 1\n";
    text += "signer s " + secure::key_text(secure::signing_key(key('s'))) + "\n";
    for (const char name : {'a', 'b', 'c'})
      text += std::string("member ") + name + " " +
              secure::key_text(secure::signing_key(key(name))) + "\n";
    const auto list = secure::parse_member_list(text).value();
    std::ofstream(path) << text << secure::signature_line(list, key('s')).value() << "\n";
    return path.string();
  }

  [[nodiscard]] std::vector<AuditRecord> audit() const { return store->audit().all().value(); }

  /// All that a command may change: the rows of the database without the audit, and the files.
  [[nodiscard]] std::string snapshot() const {
    std::string all;
    const auto add = [](void* to, int columns, char** values, char**) {
      auto& text = *static_cast<std::string*>(to);
      for (int i = 0; i < columns; ++i) text += std::string(values[i] ? values[i] : "-") + "|";
      return 0;
    };
    std::string tables;
    const auto read = [&](const std::string& sql, std::string& to) {
      REQUIRE(sqlite3_exec(store->raw(), sql.c_str(), add, &to, nullptr) == SQLITE_OK);
    };
    read(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> 'audit'"
        " AND name NOT LIKE 'sqlite%' ORDER BY name",
        tables);
    for (std::size_t at = 0, end = 0; (end = tables.find('|', at)) != tables.npos; at = end + 1)
      read("SELECT * FROM " + tables.substr(at, end - at), all);
    std::map<fs::path, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (!entry.is_regular_file() || entry.path().filename().string().starts_with("history."))
        continue;
      std::ifstream file(entry.path(), std::ios::binary);
      files[entry.path()].assign(std::istreambuf_iterator<char>(file), {});
    }
    for (const auto& [path, bytes] : files) all += path.string() + "=" + bytes;
    return all;
  }

  Result<int> run(Words words) {
    words.insert(words.begin(), "fl-server");
    words.insert(words.end(), {"--state", folder.string()});
    std::vector<const char*> arguments;
    for (const std::string& word : words) arguments.push_back(word.c_str());
    CommandLine line;
    REQUIRE(parse_options(static_cast<int>(arguments.size()), arguments.data(), server_commands(),
                          line) == -1);
    return run_command(line);
  }
};

/// The arguments with which each sub-command is tried, and words of its row; "": it only shows
/// things.
struct Tried {
  Words words;
  std::string row;
};
std::multimap<std::string, Tried> commands_tried(const State& state) {
  const std::string out = (state.temp / "out").string();
  return {
      {"queue",
       {{"--rounds", "7", "--codec", "none"}, "queues a run with --codec \"none\" --rounds 7"}},
      {"queue", {{"--drop", "4"}, "takes run 4 out of the queue"}},
      {"history", {{"--runs"}, ""}},
      {"compare", {{"1", "2"}, ""}},
      {"export", {{out + ".npz"}, "exports a model (of the run at hand, the newest) to " + out}},
      {"replay", {{"1"}, ""}},
      {"backup", {{out + "-backup"}, "makes a backup in " + out + "-backup"}},
      {"prune", {{"--keep-runs", "2", "--dry-run"}, ""}},
      {"prune", {{"--keep-runs", "2"}, "removes the runs that are over, but the newest 2"}},
      {"clients", {{}, ""}},
      {"audit", {{}, ""}},
      {"enroll",
       {{"--name", "x", "--role", "evaluator", "--max-examples", "5"},
        "makes a join token for the client, with the role evaluator and at most 5 examples"}},
      {"revoke", {{"site-1"}, "revokes the client"}},
      {"pardon", {{"site-1"}, "pardons the client"}},
      {"members", {{"check", state.member_list()}, ""}},
      {"privacy", {{"plan", "--clients", "9", "--parameters", "9"}, ""}},
      {"end-run", {{"3"}, "ends run 3"}},
      {"operator", {{"list"}, ""}},
      {"operator",
       {{"add", "eve", "--role", "admin"}, "names an operator 'eve' with the role admin"}},
      {"operator", {{"revoke", "eve"}, "revokes the operator eve"}},
      {"rotate-ca", {{}, "makes a new authority"}},
      {"rotate-ca", {{"--finish"}, "drops the old authority"}},
      {"rotate-ca", {{"--intermediate"}, "makes an intermediate authority"}},
      {"doctor", {{"--listen", "127.0.0.1:0", "--admin", "off"}, ""}},
      {"codecs", {{}, ""}},
      {"strategies", {{}, ""}},
  };
}

}  // namespace

TEST_CASE("each sub-command changes nothing, or the audit says who did what before it is done") {
  State state;
  const auto tried = commands_tried(state);
  for (const Command& command : server_commands()) {
    const std::string name(command.name);
    CAPTURE(name);
    REQUIRE(tried.contains(name));
    const auto [first, last] = tried.equal_range(name);
    for (auto it = first; it != last; ++it) {
      const std::string row = it->second.row;
      CAPTURE(row);
      Words words = it->second.words;
      words.insert(words.begin(), name);
      const std::string before = state.snapshot();
      const std::size_t rows = state.audit().size();
      static_cast<void>(state.run(words));  // Some are refused, as this state has no models.
      const bool is_changed = state.snapshot() != before;
      const auto audit = state.audit();
      if (row.empty()) {
        CHECK(!is_changed);
        CHECK(audit.size() == rows);
        continue;
      }
      REQUIRE(audit.size() > rows);
      CHECK(audit[rows].kind == AuditKind::control);
      CHECK(audit[rows].text.starts_with(row));
      for (std::size_t i = rows; i < audit.size(); ++i) CHECK(audit[i].who == command_line_user());
    }
  }
  for (const char* client : {"x", "site-1"})
    CHECK(!state.store->audit().all(client).value().empty());
}

TEST_CASE("a sub-command that fails has another row, and one without a history none") {
  State state;
  CHECK(!state.run({"end-run", "99"}));
  const auto rows = state.audit();
  REQUIRE(rows.size() == 2);
  CHECK(rows[1].text.find("'end-run' failed: there is no run 99") != std::string::npos);
  const fs::path other = state.temp / "other";
  state.folder = other;
  CHECK(state.run({"end-run", "99"}).error().code() == Errc::not_found);
  CHECK(!fs::exists(other));
}

TEST_CASE("no sub-command migrates a history, which an older server may be using") {
  State state;
  state.folder = state.temp / "older";
  posix_files().make_folder(state.folder).value();
  const fs::path file = state.folder / "history.sqlite";
  const auto before = history_migrations().first(history_migrations().size() - 1);
  REQUIRE(migrate(*Database::open({.path = file}).value(), before));
  const auto schema = [&file] {
    const auto db = Database::open({.path = file, .read_only = true}).value();
    return db->find("PRAGMA user_version", [](const Row& row) { return row.integer(0); }).value();
  };
  REQUIRE(schema() == before.size());
  const std::string out = (state.temp / "out").string();
  for (const Words& words :
       {Words{"backup", out}, {"export", out + ".npz"}, {"revoke", "site-1"}}) {
    CAPTURE(words.front());
    const auto done = state.run(words);
    REQUIRE(!done);
    CHECK(done.error().code() == Errc::conflict);
    CHECK(done.error().message().find("start fl-server once to migrate it") != std::string::npos);
    CHECK(schema() == before.size());
  }
  CHECK(!fs::exists(out));
}

TEST_CASE("where nothing can be written, what only reads goes on without a row") {
  State state;
  state.store.reset();
  // As on a disk that is mounted for reading: SQLite can't make its file, and says it is missing.
  const fs::path shared = state.folder / "history.sqlite-shm";
  fs::remove(shared);
  fs::create_symlink("/nowhere/history.sqlite-shm", shared);
  const auto exported = state.run({"export", (state.temp / "out.npz").string()});
  REQUIRE(!exported);  // It came as far as the model, of which this state has only a row.
  CHECK(exported.error().message().find("v0.safetensors") != std::string::npos);
  const auto revoked = state.run({"revoke", "site-1"});
  REQUIRE(!revoked);
  CHECK(revoked.error().code() == Errc::io);
}

TEST_CASE("a server that starts says so in the audit, with what it changes") {
  State state;
  ServeOptions options;
  options.new_run = true;
  options.given = {"rounds"};
  options.settings.rounds = 12;
  note_start(state.store->audit(), options).value();
  CHECK(state.audit().back().text == "starts the server with a new run, with --rounds 12");
  CHECK(state.audit().back().who == command_line_user());
}

namespace {

struct Asked {
  std::string body;
  std::string row;
};

HttpRequest request_for(const std::string& action, const std::string& body) {
  HttpRequest request(http::verb::post, "/api/control/" + action, 11);
  request.set(http::field::content_type, "application/json");
  request.set(http::field::host, "127.0.0.1");
  request.body() = body;
  return request;
}

Awaitable<void> ask(ControlDesk& desk, HttpRequest request, std::optional<Visitor> who,
                    unsigned& status) {
  Caller caller{1, "192.0.2.7"};
  const PageAnswer made = co_await desk.answer(std::move(request), std::move(who), caller);
  status = made.status;
}

unsigned answer_of(ControlDesk& desk, const HttpRequest& request, std::optional<Visitor> who) {
  net::io_context io;
  unsigned status = 0;
  net::co_spawn(io, ask(desk, request, std::move(who), status), rethrow);
  io.run();
  return status;
}

}  // namespace

TEST_CASE("each action of the control desk has a row, done or refused") {
  State state;
  RunOptions options;
  options.state = state.folder.string();
  const std::map<std::string, Asked> tried{
      {"queue", {R"({"settings": {"rounds": 7}})", "queues a run with {\"rounds\":7}"}},
      {"drop", {R"({"run": 4})", "takes run 4 out of the queue"}},
      {"stop", {R"({"run": 3})", "ends run 3"}},
      {"revoke", {R"({"client": "site-1"})", "revokes the client"}},
      {"pardon", {R"({"client": "site-1"})", "pardons the client"}},
      {"enroll",
       {R"({"client": "x", "role": "trainer", "examples_max": 9})",
        "makes a join token for the client, with the role trainer and at most 9 examples"}},
      {"add-operator",
       {R"({"name": "bob", "role": "viewer"})", "names an operator 'bob' with the role viewer"}},
      {"revoke-operator", {R"({"name": "bob"})", "revokes the operator bob"}},
  };
  const auto store = ControlStore::open(state.folder / "history.sqlite").value();
  const auto actions = control_actions(options);
  ControlDesk desk(*store, actions);
  for (const ControlAction& action : actions) {
    const std::string name = action.name;
    CAPTURE(name);
    REQUIRE(tried.contains(name));
    const auto& [body, row] = tried.at(name);
    const HttpRequest request = request_for(name, body);
    const Visitor viewer{AdminRole::viewer, "vic", false, true};
    const Visitor admin{AdminRole::admin, "ada", false, true};
    HttpRequest foreign = request;
    foreign.set(http::field::origin, "https://evil.example");

    const std::string before = state.snapshot();
    CHECK(answer_of(desk, request, std::nullopt) == 401);
    CHECK(state.audit().back().text ==
          "'" + name + "' was refused: it needs an operator's token, from 192.0.2.7");
    CHECK(state.audit().back().who == "a stranger");
    CHECK(answer_of(desk, request, viewer) == 403);
    CHECK(state.audit().back().text.starts_with("'" + name + "' was refused: it needs the role "));
    CHECK(state.audit().back().who == "operator 'vic'");
    CHECK(answer_of(desk, foreign, admin) == 403);
    CHECK(state.audit().back().text.starts_with("'" + name + "' was refused: "));
    CHECK(state.audit().back().who == "operator 'ada'");
    CHECK(state.audit().back().kind == AuditKind::refusal);
    CHECK(state.snapshot() == before);

    const std::size_t rows = state.audit().size();
    CHECK(answer_of(desk, request, admin) == 200);
    const auto audit = state.audit();
    REQUIRE(audit.size() > rows);
    CHECK(audit[rows].kind == AuditKind::control);
    CHECK(audit[rows].text == row);
    for (std::size_t i = rows; i < audit.size(); ++i) CHECK(audit[i].who == "operator 'ada'");
    CHECK(state.snapshot() != before);
  }
}

TEST_CASE("an operator's refusals are counted apart from strangers', and both are few rows") {
  State state;
  const auto store = ControlStore::open(state.folder / "history.sqlite").value();
  RunOptions options;
  ControlDesk desk(*store, control_actions(options));
  const HttpRequest request = request_for("revoke", R"({"client": "site-1"})");
  for (int i = 0; i < 3 * limits::lines_of_kind_max; ++i)
    CHECK(answer_of(desk, request, std::nullopt) == 401);
  CHECK(state.audit().size() == limits::lines_of_kind_max);
  CHECK(answer_of(desk, request, Visitor{AdminRole::viewer, "vic", false, true}) == 403);
  CHECK(state.audit().size() == limits::lines_of_kind_max + 1);
}

}  // namespace fl::test
