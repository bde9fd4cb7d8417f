// SPDX-License-Identifier: Apache-2.0
// The admin pages as a browser gets them: types of content, logins, streams of events, downloads.
#include "server/admin/web_files.hpp"
#include "shared/base/json.hpp"
#include "shared/base/limits.hpp"
#include "tests/server/admin/admin_world.hpp"
#include "tests/wire/simulation.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::server;
namespace {

constexpr const char* token = "a-token-of-20-letters";

Admin::Options with_token() {
  Admin::Options options;
  options.access.token = token;
  return options;
}

std::string cookie_of(const std::string& answer) {
  const std::string set = header_of(answer, "Set-Cookie");
  return "Cookie: " + set.substr(0, set.find(';')) + "\r\n";
}

}  // namespace

TEST_CASE("the dashboard's files have their types, and a browser asks for them once") {
  AdminWorld world;
  const std::string page = world.get("/");
  CHECK(status_of_answer(page) == 200);
  CHECK(header_of(page, "Content-Type") == "text/html; charset=utf-8");
  CHECK(body_of(page) == find_web_file("/index.html")->bytes);
  CHECK(header_of(world.get("/app.js"), "Content-Type") == "text/javascript; charset=utf-8");
  CHECK(header_of(world.get("/style.css"), "Content-Type") == "text/css; charset=utf-8");
  CHECK(header_of(world.get("/icon.svg"), "Content-Type") == "image/svg+xml");
  const std::string tag = header_of(page, "ETag");
  const std::string again = world.get("/", "If-None-Match: " + tag + "\r\n");
  CHECK(status_of_answer(again) == 304);
  CHECK(body_of(again).empty());
  CHECK(status_of_answer(world.get("/app.js", "If-None-Match: " + tag + "\r\n")) == 200);
  const std::string head = world.ask("HEAD / HTTP/1.1");
  CHECK(header_of(head, "Content-Length") == std::to_string(body_of(page).size()));
  CHECK(body_of(head).empty());
}

TEST_CASE("no answer lets a browser run or show what is not from here") {
  AdminWorld world;
  for (const char* target : {"/", "/api/status", "/nothing", "/metrics"}) {
    CAPTURE(target);
    const std::string answer = world.get(target);
    CHECK(header_of(answer, "Content-Security-Policy").starts_with("default-src 'self';"));
    CHECK(header_of(answer, "Content-Security-Policy").find("unsafe") == std::string::npos);
    CHECK(header_of(answer, "X-Content-Type-Options") == "nosniff");
  }
  CHECK(header_of(world.get("/api/status"), "Cache-Control") == "no-store");
}

TEST_CASE("every page of /api answers, with JSON") {
  AdminWorld world;
  std::vector<std::string> targets{"/api/status", "/api/fleet",  "/api/session",
                                   "/healthz",    "/api/rounds", "/api/choices"};
  for (const HistoryPage& page : history_pages()) targets.emplace_back(page.path);
  for (const std::string& target : targets) {
    CAPTURE(target);
    const std::string answer = world.get(target);
    CHECK(status_of_answer(answer) == 200);
    CHECK(header_of(answer, "Content-Type") == "application/json");
    CHECK(parse_json(body_of(answer)).is_structured());
    CHECK(status_of_answer(world.get(target, "Host: evil.example\r\n")) == 421);
  }
  CHECK(header_of(world.get("/metrics"), "Content-Type").starts_with("text/plain; version=0.0.4"));
  CHECK(status_of_answer(world.get("/api/nothing")) == 404);
  CHECK(status_of_answer(world.get("/api/runs?nothing=1")) == 400);
  CHECK(status_of_answer(world.get("/api/updates?run=7")) == 404);
  CHECK(status_of_answer(world.ask("DELETE /api/runs HTTP/1.1")) == 405);
  CHECK(status_of_answer(world.post("/api/runs", "{}")) == 405);
}

TEST_CASE("the probes need no token, and say what is in the way") {
  AdminWorld world(with_token());
  CHECK(status_of_answer(world.get("/livez", "Host: pod-7.example\r\n")) == 200);
  CHECK(status_of_answer(world.get("/readyz")) == 503);
  CHECK(body_of(world.get("/readyz")).find("the server is starting") != std::string::npos);
  world.probes().set_trouble("");
  CHECK(status_of_answer(world.get("/readyz")) == 200);
}

TEST_CASE("another token lets in, and ends the logins with the one before") {
  AdminWorld world(with_token());
  const std::string cookie =
      cookie_of(world.post("/api/login", R"({"token": "a-token-of-20-letters"})"));
  CHECK(status_of_answer(world.get("/api/status", cookie)) == 200);
  world.admin().change(with_token().access);
  CHECK(status_of_answer(world.get("/api/status", cookie)) == 200);  // It is the same.
  world.admin().change({.hosts = {"fl.example"}, .token = "another-token-of-28-letters"});
  CHECK(status_of_answer(world.get("/api/status", cookie)) == 401);
  CHECK(status_of_answer(world.get("/api/status", "Host: fl.example\r\n")) == 401);
  CHECK(status_of_answer(world.get(
            "/api/status", "Authorization: Bearer another-token-of-28-letters\r\n")) == 200);
  const auto is_noted = [&world] {
    return std::ranges::any_of(world.store().audit().all().value(), [](const AuditRecord& row) {
      return row.text.find("have another token") != std::string::npos && row.who == "the server";
    });
  };
  for (int i = 0; i < 100 && !is_noted(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(is_noted());
}

TEST_CASE("figures of single clients are shown where the operator says so") {
  Admin::Options options;
  for (const bool is_shown : {false, true}) {
    options.show_clients = is_shown;
    AdminWorld world(options, [](Store& store, RunId run) {
      store.rounds().set_initial_model(run, some_checkpoint(0)).value();
      store.rounds().open(run, some_round(1), {some_task("a")}).value();
    });
    const auto page = parse_json(body_of(world.get("/api/updates")));
    CHECK(page["shows_clients"] == is_shown);
    REQUIRE(page["updates"].size() == 1);
    CHECK(page["updates"][0].contains("examples") == is_shown);
  }
}

TEST_CASE("with a token, all but the files and the login need it or a session's cookie") {
  AdminWorld world(with_token());
  const std::string bearer = std::string("Authorization: Bearer ") + token + "\r\n";
  for (const char* target : {"/", "/app.js", "/api/session"})
    CHECK(status_of_answer(world.get(target)) == 200);
  std::vector<std::string> targets{"/api/status", "/api/events", "/api/fleet",  "/api/model/file",
                                   "/metrics",    "/healthz",    "/api/rounds", "/api/choices"};
  for (const HistoryPage& page : history_pages()) targets.emplace_back(page.path);
  for (const std::string& target : targets) {
    CAPTURE(target);
    CHECK(status_of_answer(world.get(target)) == 401);
    CHECK(status_of_answer(world.get(target, "Authorization: Bearer x\r\n")) == 401);
    CHECK(status_of_answer(world.get(target, "Cookie: tributary_session=x\r\n")) == 401);
  }
  CHECK(status_of_answer(world.get("/api/runs", bearer)) == 200);
  CHECK(parse_json(body_of(world.get("/api/session")))["role"].is_null());

  CHECK(status_of_answer(world.post("/api/login", "{\"token\": \"another one of 20\"}")) == 401);
  CHECK(status_of_answer(world.post("/api/login", "[]")) == 400);
  const std::string right = std::string("{\"token\": \"") + token + "\"}";
  const std::string in = world.post("/api/login", right);
  CHECK(status_of_answer(in) == 200);
  const std::string set = header_of(in, "Set-Cookie");
  CHECK(set.find("; HttpOnly; SameSite=Strict") != std::string::npos);
  CHECK(set.find("Secure") == std::string::npos);
  const std::string cookie = cookie_of(in);
  CHECK(status_of_answer(world.get("/api/runs", cookie)) == 200);
  const auto session = parse_json(body_of(world.get("/api/session", cookie)));
  CHECK(session["role"] == "viewer");
  CHECK(session["is_logged_in"] == true);
  CHECK(status_of_answer(world.post("/api/logout", "{}", cookie)) == 200);
  CHECK(status_of_answer(world.get("/api/runs", cookie)) == 401);
  CHECK(header_of(world.post("/api/login", right, "X-Forwarded-Proto: https\r\n"), "Set-Cookie")
            .ends_with("; Secure"));
}

TEST_CASE("another web page can't post, and a body has its limit") {
  AdminWorld world(with_token());
  const std::string right = std::string("{\"token\": \"") + token + "\"}";
  CHECK(status_of_answer(world.post("/api/login", right, "Origin: http://evil.example\r\n")) ==
        403);
  CHECK(status_of_answer(world.post("/api/login", right, "Origin: null\r\n")) == 403);
  CHECK(status_of_answer(
            world.post("/api/login", right, "Origin: http://" + world.host + "\r\n")) == 200);
  CHECK(status_of_answer(
            world.ask("POST /api/login HTTP/1.1", "Content-Type: text/plain\r\n", right)) == 415);
  CHECK(status_of_answer(
            world.post("/api/login", std::string(limits::admin_body_bytes_max + 1, ' '))) == 413);
}

TEST_CASE("a stream begins with the state, and then says only what is new") {
  AdminWorld world;
  auto socket = world.connect();
  world.send(socket, "GET /api/events HTTP/1.1");
  const std::string first = AdminWorld::read_until(socket, "}\n\n");
  CHECK(header_of(first, "Content-Type") == "text/event-stream");
  const auto data = first.find("data: ");
  REQUIRE(data != std::string::npos);
  const auto status = parse_json(first.substr(data + 6, first.find('\n', data) - data - 6));
  CHECK(status["round"] == 0);
  const auto newest = status["newest_event"].get<std::int64_t>();
  // For some beats nothing is new: the next message is what comes then.
  std::this_thread::sleep_for(3 * limits::admin_stream_beat);
  world.store().events().add(1, EventLevel::warning, "something went wrong").value();
  const std::string second = AdminWorld::read_until(socket, "}\n\n");
  CHECK(second.starts_with("event: status\nid: 2\n"));
  CHECK(second.find("\"newest_event\":" + std::to_string(newest + 1)) != std::string::npos);
}

namespace {

/// The header of a new operator.
std::string bearer_of(AdminWorld& world, const std::string& name) {
  world.store()
      .operators()
      .add({name, "viewer", operator_token_hash(name), 1, 0}, "a test")
      .value();
  return "Authorization: Bearer " + name + "\r\n";
}

/// Streams of events, as many as one address may have.
std::vector<AdminWorld::tcp::socket> all_streams(AdminWorld& world) {
  std::vector<AdminWorld::tcp::socket> sockets;
  for (std::size_t i = 0; i < limits::admin_streams_of_one_max; ++i) {
    sockets.push_back(world.connect());
    world.send(sockets.back(), "GET /api/events HTTP/1.1");
    REQUIRE(!AdminWorld::read_until(sockets.back(), "retry: ").empty());
  }
  return sockets;
}

}  // namespace

TEST_CASE("an address has so many streams and no more, and each that ends makes room") {
  AdminWorld world;
  auto sockets = all_streams(world);
  CHECK(status_of_answer(world.get("/api/events")) == 503);
  CHECK(status_of_answer(world.get("/api/status")) == 200);
  // Another address has places of its own, and so has an operator at this one.
  auto other = world.connect("127.0.0.2");
  world.send(other, "GET /api/events HTTP/1.1");
  CHECK(!AdminWorld::read_until(other, "retry: ").empty());
  auto operators = world.connect();
  world.send(operators, "GET /api/events HTTP/1.1", bearer_of(world, "eve"));
  CHECK(!AdminWorld::read_until(operators, "retry: ").empty());
  sockets.pop_back();
  // The server notices at its next message.
  world.store().events().add(1, EventLevel::info, "an event").value();
  bool has_room = false;
  for (int i = 0; i < 100 && !has_room; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    world.store().events().add(1, EventLevel::info, "an event").value();
    auto socket = world.connect();
    world.send(socket, "GET /api/events HTTP/1.1");
    has_room = AdminWorld::read_until(socket, "\r\n").find(" 200 ") != std::string::npos;
  }
  CHECK(has_room);
}

TEST_CASE("probes and operators are answered while one address holds all that it can") {
  AdminWorld world;
  const std::string eve = bearer_of(world, "eve");
  const auto streams = all_streams(world);
  std::vector<AdminWorld::tcp::socket> held;
  for (int i = 0; i < 70; ++i) held.push_back(world.connect());  // They say nothing.
  for (int i = 0; i < 30; ++i) {
    held.push_back(world.connect());
    const std::string begin = "GET /livez HTTP/1.1\r\n";  // And no more.
    net::write(held.back(), net::buffer(begin));
  }
  for (int i = 0; i < 3; ++i) {
    CHECK(status_of_answer(world.get("/livez")) == 200);
    CHECK(status_of_answer(world.get("/readyz")) == 503);  // The server is starting, in this test.
    CHECK(status_of_answer(world.get("/api/status", eve)) == 200);
  }
}

TEST_CASE("requests have places by who makes them, and some are for those with a token") {
  const auto places = std::make_shared<VisitorPlaces>(
      VisitorPlaces::Limits{.all = 4, .viewers = 4, .open = 3, .of_one = 2});
  const PlaceHolder one{"address 1", false};
  const PlaceHolder two{"address 2", false};
  const PlaceHolder eve{"operator eve", true, true};
  auto first = places->take(one);
  const auto second = places->take(one);
  CHECK((first && second));
  CHECK(!places->take(one));  // It has two.
  const auto third = places->take(two);
  CHECK(third);
  CHECK(!places->take(two));  // Visitors without a token have three places.
  const auto fourth = places->take(eve);
  CHECK(fourth);
  CHECK(!places->take(eve));  // All have four.
  first.reset();
  CHECK(places->take(two));
}

TEST_CASE("some places are for operators alone, however many viewers have the pages' token") {
  const auto places = std::make_shared<VisitorPlaces>(
      VisitorPlaces::Limits{.all = 4, .viewers = 3, .open = 3, .of_one = 2});
  const Visitor viewer{AdminRole::viewer, "", false, true};
  const Visitor eve{AdminRole::viewer, "eve", false, true};
  std::vector<std::unique_ptr<VisitorPlaces::Place>> taken;
  for (const Address machine : {1, 1, 2}) {
    taken.push_back(places->take(holder_of(viewer, {machine, ""})));
    CHECK(taken.back());
  }
  CHECK(!places->take(holder_of(viewer, {2, ""})));
  auto of_operator = places->take(holder_of(eve, {1, ""}));
  CHECK(of_operator);
  CHECK(!places->take(holder_of(eve, {1, ""})));  // All have four.
  taken.pop_back();
  CHECK(places->take(holder_of(viewer, {2, ""})));
  static_assert(limits::admin_requests_viewers_max < limits::admin_requests_max);
  static_assert(limits::admin_streams_viewers_max < limits::admin_streams_max);
}

TEST_CASE("an operator has a stream while viewers at two addresses hold all that they can") {
  AdminWorld world(with_token());
  const std::string bearer = std::string("Authorization: Bearer ") + token + "\r\n";
  std::vector<AdminWorld::tcp::socket> held;
  std::size_t streams = 0;
  for (const char* from : {"127.0.0.1", "127.0.0.2"}) {
    for (std::size_t i = 0; i < limits::admin_streams_of_one_max; ++i) {
      held.push_back(world.connect(from));
      world.send(held.back(), "GET /api/events HTTP/1.1", bearer);
      if (!AdminWorld::read_until(held.back(), "retry: ").empty()) ++streams;
    }
  }
  CHECK(streams == limits::admin_streams_viewers_max);
  auto of_operator = world.connect();
  world.send(of_operator, "GET /api/events HTTP/1.1", bearer_of(world, "eve"));
  CHECK(!AdminWorld::read_until(of_operator, "retry: ").empty());
}

TEST_CASE("a right token is let in while wrong ones flood the login, also from its own address") {
  AdminWorld world;
  bearer_of(world, "eve");
  const std::string right = R"({"token": "eve"})";
  int told = 0;
  for (int i = 0; i < 3 * limits::wrong_tokens_max; ++i) {
    const auto status = status_of_answer(world.post("/api/login", R"({"token": "x"})"));
    CHECK((status == 401 || status == 429));
    if (status == 401) ++told;
  }
  CHECK(told == limits::wrong_tokens_max);
  CHECK(status_of_answer(world.post("/api/login", right)) == 200);
  CHECK(status_of_answer(world.get("/api/session", "Authorization: Bearer eve\r\n")) == 200);
  // Wrong ones of another address are counted apart.
  auto other = world.connect("127.0.0.2");
  world.send(other, "POST /api/login HTTP/1.1", "Content-Type: application/json\r\n",
             R"({"token": "x"})");
  CHECK(status_of_answer(AdminWorld::read_until(other, "\r\n")) == 401);
  // The audit has few of the wrong ones, and the right one by its name.
  const auto rows = world.store().audit().all().value();
  const auto wrong = std::ranges::count(rows, AuditKind::refusal, &AuditRecord::kind);
  CHECK((wrong >= 1 && wrong <= limits::lines_of_kind_max));
  const auto in = std::ranges::find(rows, AuditKind::login, &AuditRecord::kind);
  REQUIRE(in != rows.end());
  CHECK(in->text == "logs in, from 127.0.0.1");
  CHECK(in->who == "operator 'eve'");
  CHECK(std::ranges::find(rows, AuditKind::refusal, &AuditRecord::kind)->who == "a stranger");
}

TEST_CASE("a wrong token in a header is in the audit, and a request without any is not") {
  AdminWorld world(with_token());
  CHECK(status_of_answer(world.get("/api/runs")) == 401);
  CHECK(world.store().audit().all().value().empty());
  CHECK(status_of_answer(world.get("/api/runs", "Authorization: Bearer x\r\n")) == 401);
  CHECK(world.store().audit().all().value().back().text ==
        "a request with a token of no operator, from 127.0.0.1");
}

TEST_CASE("a wrong token is in the audit where the pages need none, and in the question who asks") {
  for (const bool has_token : {false, true}) {
    AdminWorld world(has_token ? with_token() : Admin::Options());
    const auto rows = [&world] { return world.store().audit().all().value().size(); };
    const auto session = world.get("/api/session", "Authorization: Bearer x\r\n");
    CHECK(parse_json(body_of(session))["role"].is_null() == has_token);
    CHECK(rows() == 1);
    CHECK(status_of_answer(world.get("/api/runs", "Authorization: Bearer y\r\n")) ==
          (has_token ? 401 : 200));
    CHECK(rows() == 2);
    world.get("/api/session");
    world.get("/api/session", bearer_of(world, "eve"));
    const std::string cookie = cookie_of(world.post("/api/login", R"({"token": "eve"})"));
    const auto before = rows();
    world.get("/api/session", "Authorization: Bearer of-a-proxy\r\n" + cookie);
    CHECK(rows() == before);
  }
}

namespace {

Awaitable<void> show_wrong_tokens(AdminAccess& access, int times) {
  HttpRequest request(http::verb::get, "/api/session", 11);
  request.set(http::field::authorization, "Bearer x");
  for (int i = 0; i < times; ++i) {
    Caller caller{1, "192.0.2.7"};
    co_await access.visitor_of(request, std::move(caller));
  }
}

Awaitable<void> count(AdminAccess& access) {
  const auto counted = co_await access.count_left_out();
  CHECK(counted);
}

/// The store's thread is a real one, also over simulated time.
void run(Awaitable<void> task) {
  net::io_context io;
  net::co_spawn(io, std::move(task), rethrow);
  io.run();
}

}  // namespace

TEST_CASE("wrong tokens beyond the limit are a number in the audit, once in a window") {
  Simulation simulation;
  const TemporaryFolder temp;
  const auto history = Store::open({.path = temp / "history.sqlite"}).value();
  const auto store = ControlStore::open(temp / "history.sqlite").value();
  AdminAccess access({}, *store);
  run(show_wrong_tokens(access, limits::wrong_tokens_max + 30));
  simulation.spawn(sleep_for(limits::login_window));
  simulation.run();
  for (int i = 0; i < 2; ++i) run(count(access));
  const auto rows = history->audit().all().value();
  CHECK(std::ranges::count(rows, AuditKind::repeats, &AuditRecord::kind) == 1);
  CHECK(rows.back().text == "wrong tokens: 30 more");
  CHECK(rows.back().who == "the server");
}

namespace {

/// In a world with so large a state that no buffer of the kernel's takes it as a whole: a reader
/// that never reads.
struct StalledReader {
  explicit StalledReader(Duration stall_max)
      : world(options_with(stall_max), nullptr, std::string(4 << 20, 'm')),
        socket(world.connect()) {
    socket.set_option(net::socket_base::receive_buffer_size(4096));
    world.send(socket, "GET /api/events HTTP/1.1");
  }
  static Admin::Options options_with(Duration stall_max) {
    Admin::Options options;
    options.stall_max = stall_max;
    return options;
  }
  AdminWorld world;
  AdminWorld::tcp::socket socket;
};

}  // namespace

TEST_CASE("a reader that stops reading holds nobody up") {
  const auto stall_max = std::chrono::seconds(60);
  StalledReader stalled(stall_max);
  const auto begin = std::chrono::steady_clock::now();
  CHECK(status_of_answer(stalled.world.get("/healthz")) == 200);
  CHECK(std::chrono::steady_clock::now() - begin < stall_max);
}

TEST_CASE("a reader that stops reading is dropped") {
  StalledReader stalled(std::chrono::milliseconds(300));
  std::this_thread::sleep_for(std::chrono::seconds(2));
  // The bytes in the kernel are read, then the connection ends, far from the message's end.
  std::string come;
  boost::system::error_code ec;
  net::read(stalled.socket, net::dynamic_buffer(come), ec);
  CHECK(come.size() < (4U << 20));
}

TEST_CASE("a stream ends when its reader logs out") {
  AdminWorld world(with_token());
  const std::string cookie =
      cookie_of(world.post("/api/login", std::string("{\"token\": \"") + token + "\"}"));
  auto socket = world.connect();
  world.send(socket, "GET /api/events HTTP/1.1", cookie);
  REQUIRE(!AdminWorld::read_until(socket, "event: status").empty());
  world.post("/api/logout", "{}", cookie);
  CHECK(AdminWorld::read_until(socket, "never said").empty());
}

TEST_CASE("a checkpoint is sent as its file has it, to those with a token") {
  std::string bytes(3 * limits::admin_file_chunk + 17, 'x');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31 + i / 256);
  CheckpointRecord checkpoint = some_checkpoint(0);
  checkpoint.bytes = bytes.size();
  AdminWorld world({}, [&](Store& store, RunId run) {
    store.rounds().set_initial_model(run, checkpoint).value();
  });
  const std::string eve = bearer_of(world, "eve");
  CHECK(status_of_answer(world.get("/api/model/file?version=0", eve)) == 404);  // It is missing.
  std::filesystem::create_directories(world.temp / "checkpoints");
  std::ofstream(world.temp / "checkpoints" / checkpoint.file, std::ios::binary) << bytes;
  for (const char* target : {"/api/model/file", "/api/model/file?run=1&version=0"}) {
    const std::string answer = world.get(target, eve);
    CHECK(header_of(answer, "Content-Disposition") ==
          "attachment; filename=\"run-1-version-0.safetensors\"");
    CHECK(header_of(answer, "Content-Length") == std::to_string(bytes.size()));
    CHECK((body_of(answer) == bytes));
    // Without a token the pages may be open, the model is not.
    const std::string refused = world.get(target);
    CHECK(status_of_answer(refused) == 401);
    CHECK(refused.find(bytes.substr(0, 100)) == std::string::npos);
    CHECK(status_of_answer(world.get(target, "Authorization: Bearer x\r\n")) == 401);
  }
  const auto rows = world.store().audit().all().value();
  CHECK(std::ranges::count_if(rows, [](const AuditRecord& row) {
          return row.who == "operator 'eve'" &&
                 row.text == "downloads run-1-version-0.safetensors, from 127.0.0.1";
        }) == 2);
  CHECK(status_of_answer(world.get("/api/model/file?version=1", eve)) == 404);
  CHECK(status_of_answer(world.get("/api/model/file?run=9", eve)) == 404);
  CHECK(status_of_answer(world.get("/api/model/file?version=x", eve)) == 400);
}

}  // namespace fl::test
