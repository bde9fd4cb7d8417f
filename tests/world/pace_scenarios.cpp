// SPDX-License-Identifier: Apache-2.0
// Members that are silent, slow, failing or leaving: the others' rounds go on.
#include "shared/base/limits.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/world/hand_client.hpp"
#include "tests/world/scenario.hpp"

#include <chrono>
#include <string>
#include <string_view>

namespace fl::test {
namespace {

using namespace std::chrono_literals;

/// The tasks of one client in all rounds.
std::vector<TaskRecord> tasks_of_client(World& world, const std::string& client) {
  std::vector<TaskRecord> found;
  for (Round round = 1; round <= world.options().settings.rounds; ++round) {
    for (const auto& task : tasks_of(world, round)) {
      if (task.client == client) found.push_back(task);
    }
  }
  return found;
}

std::size_t count_events(World& world, std::string_view text) {
  const auto history = History::open(world);
  REQUIRE(history);
  const auto events = history->store->events().all(std::nullopt).value();
  return static_cast<std::size_t>(std::ranges::count_if(events, [&](const EventRecord& event) {
    return event.text.find(text) != std::string::npos;
  }));
}

bool has_event(World& world, std::string_view text) { return count_events(world, text) > 0; }

/// client-3's line almost stops whenever it gets an offer.
void silence(World& world, double bytes_per_s = 0.01) {
  world.on_frame = [&world, bytes_per_s](const std::string& client, bool is_up,
                                         const wire::Header& header) {
    if (client == "client-3" && !is_up && header.has_offer())
      world.link_of(client)->slow_down(bytes_per_s);
  };
}

/// Many rounds of three clients, of which two are enough.
WorldOptions three_for_many_rounds(const char* mode) {
  WorldOptions options = calm(3);
  options.settings.mode = mode;
  options.settings.min_clients = 2;
  options.settings.rounds = or_sanitized(400u, 100u);
  options.settings.deadline_s = 5;
  options.sessions_first = 3;
  return options;
}

TEST_CASE("a client that never answers is asked less and less often, and costs little time") {
  for (const char* const mode : {"sync", "async:buffer=2"}) {
    CAPTURE(std::string(mode));
    World world(three_for_many_rounds(mode));
    silence(world);
    REQUIRE(world.run());
    CHECK(check(world));
    const auto asked = tasks_of_client(world, "client-3");
    CHECK(asked.size() >= 3);
    CHECK(asked.size() <= 12);
    CHECK(has_event(world, "client-3 was asked 3 times in a row without an update that counts"));
    // 400 rounds without it take about as long; with it in each, 2000 s.
    CHECK(world.elapsed() < 1s * or_sanitized(400, 100));
  }
}

TEST_CASE("a client that never answers is not asked more often because the server restarts") {
  class Restarts {
   public:
    static Awaitable<void> run(World& world) {
      for (int i = 0; i < 20; ++i) {
        co_await sleep_for(20s);
        world.kill_server(false);
      }
    }
  };
  for (const char* const mode : {"sync", "async:buffer=2"}) {
    CAPTURE(std::string(mode));
    World world(three_for_many_rounds(mode));
    silence(world);
    world.spawn(Restarts::run(world));
    REQUIRE(world.run());
    CHECK(check(world));
    CHECK(world.server_starts() > or_sanitized(5, 2));
    const auto asked = tasks_of_client(world, "client-3");
    CHECK(asked.size() >= 3);
    CHECK(asked.size() <= 12);
  }
}

TEST_CASE("a client that answers again is asked as before") {
  WorldOptions options = calm(3);
  options.settings.min_clients = 2;
  options.settings.rounds = 200;
  options.settings.deadline_s = 5;
  options.sessions_first = 3;
  World world(options);
  class Recovery {
   public:
    static Awaitable<void> run(World& world) {
      co_await sleep_for(7s);
      if (auto* const link = world.link_of("client-3")) link->cut();
    }
  };
  int offers = 0;
  world.on_frame = [&](const std::string& client, bool is_up, const wire::Header& header) {
    if (client != "client-3" || is_up || !header.has_offer() || ++offers > 3) return;
    world.link_of(client)->slow_down(0.01);
    if (offers == 3) world.spawn(Recovery::run(world));
  };
  REQUIRE(world.run());
  CHECK(check(world));
  CHECK(has_event(world, "client-3 was asked 3 times in a row without an update that counts"));
  CHECK(count(tasks_of_client(world, "client-3"), TaskState::accepted) > 50);
}

TEST_CASE(
    "a client that is not asked any more is asked at once when it is started anew or pardoned") {
  enum class End { none, start, pardon };
  for (const End end : {End::none, End::start, End::pardon}) {
    CAPTURE(static_cast<int>(end));
    WorldOptions options = calm(3);
    options.settings.min_clients = 2;
    options.settings.rounds = 60;
    options.settings.deadline_s = 100;  // Then it is not asked for 200 s: longer than the run.
    options.sessions_first = 3;
    World world(options);
    class Mend {
     public:
      static Awaitable<void> run(World& world, End end) {
        co_await sleep_for(101s);  // The third round has closed without client-3.
        if (end == End::start) world.restart_client("client-3");
        if (auto* const link = world.link_of("client-3")) link->cut();
        co_await sleep_for(3s);
        if (end == End::pardon) world.pardon("client-3");
      }
    };
    int offers = 0;
    std::string notice;
    world.on_frame = [&](const std::string& client, bool is_up, const wire::Header& header) {
      if (client != "client-3" || is_up) return;
      if (header.has_notice()) notice = header.notice().text();
      if (!header.has_offer() || ++offers > 3) return;
      world.link_of(client)->slow_down(0.01);
      if (offers == 3) world.spawn(Mend::run(world, end));
    };
    REQUIRE(world.run());
    CHECK(check(world));
    CHECK(has_event(world, "client-3 was asked 3 times in a row without an update that counts"));
    CHECK(notice.starts_with("client-3 was asked 3 times in a row without an update that counts"));
    const auto counted = count(tasks_of_client(world, "client-3"), TaskState::accepted);
    if (end == End::none) CHECK(counted == 0);
    if (end != End::none) CHECK(counted > 10);
  }
}

TEST_CASE("a task that is late, and then fails, is one miss") {
  WorldOptions options = calm(2);
  options.settings.rounds = 1;
  options.settings.deadline_s = 5;
  options.sessions_first = 2;
  World world(options);
  class Fail {
   public:
    static Awaitable<void> run(World& world, int& most) {
      co_await sleep_for(12s);  // The round has waited for two more deadlines.
      if (auto* const link = world.link_of("client-2")) link->cut();
      for (int i = 0; i < 60; ++i) {
        co_await sleep_for(100ms);
        if (world.engine() == nullptr) co_return;
        net::post(world.engine()->executor(), [&] {
          most = std::max(most, world.engine()->view().members({"client-2"}).front().misses);
        });
      }
    }
  };
  bool has_failed = false;
  world.on_connect = [&](const std::string& client, Line& up, Line&) {
    if (client != "client-2") return true;
    up.edit = [&](wire::Header& header) {
      if (!header.has_begin() || std::exchange(has_failed, true)) return;
      const auto task = header.begin().task();
      header.mutable_failed()->set_task(task);
      header.mutable_failed()->set_reason("CUDA out of memory");
    };
    return true;
  };
  int most = 0;
  int offers = 0;
  world.on_frame = [&](const std::string& client, bool is_up, const wire::Header& header) {
    if (client != "client-2" || is_up || !header.has_offer() || ++offers > 1) return;
    world.link_of(client)->slow_down(0.01);
    world.spawn(Fail::run(world, most));
  };
  REQUIRE(world.run());
  CHECK(check(world));
  CHECK(has_failed);
  CHECK(most == 1);
}

TEST_CASE("events of a client that were left out are counted when their minute is over") {
  WorldOptions options = calm(3);
  options.settings.rounds = 1;
  World world(options);
  class Cuts {
   public:
    static Awaitable<void> run(World& world) {
      for (int i = 0; i < 40; ++i) {
        co_await sleep_for(1s);
        if (auto* const link = world.link_of("client-2")) link->cut();
      }
    }
  };
  world.on_connect = [&](const std::string& client, Line&, Line&) {
    return client != "client-3" || world.elapsed() > 200s;
  };
  world.spawn(Cuts::run(world));
  REQUIRE(world.run());
  CHECK(check(world));
  const auto history = History::open(world);
  const auto events = history->store->events().all(std::nullopt).value();
  const auto told = [&](std::string_view text) {
    return std::ranges::find_if(events, [&](const EventRecord& event) {
      return event.text.find(text) != std::string::npos;
    });
  };
  REQUIRE(told("events of client-2: ") != events.end());
  CHECK(told("events of client-2: ") < told("client-3 is here"));
}

TEST_CASE("nobody waits for a member whose updates never count, also where updates are in pace") {
  WorldOptions options = calm(3);
  options.settings.mode = "async:buffer=2,ahead=2";
  options.settings.min_clients = 2;
  options.settings.rounds = 100;
  options.settings.deadline_s = 5;
  options.sessions_first = 3;
  World world(options);
  world.on_connect = [&](const std::string& client, Line& up, Line&) {
    if (client != "client-3") return true;
    up.edit = [](wire::Header& header) {
      if (header.has_begin()) header.mutable_begin()->set_examples(1u << 30);
    };
    return true;
  };
  REQUIRE(world.run());
  CHECK(check(world));
  CHECK(count(tasks_of_client(world, "client-3"), TaskState::accepted) == 0);
  CHECK(world.elapsed() < 300s);
}

TEST_CASE(
    "another client is asked at once in place of one that leaves, ends, fails or is refused") {
  enum class End { leaves, ends, fails, is_refused };
  for (const End end : {End::leaves, End::ends, End::fails, End::is_refused}) {
    CAPTURE(static_cast<int>(end));
    WorldOptions options = calm(3);
    options.settings.min_clients = 1;
    options.settings.clients_per_round = 2;
    options.settings.sampling = "round-robin";  // client-1 and client-2.
    options.settings.rounds = 1;
    options.settings.deadline_s = 600;
    options.sessions_first = 3;
    World world(options);
    world.on_connect = [&](const std::string& client, Line& up, Line&) {
      if (client == "client-2") up.bytes_per_s = 200;  // So the round is open for a while.
      if (client == "client-1" && (end == End::fails || end == End::is_refused)) {
        up.edit = [end](wire::Header& header) {
          if (!header.has_begin()) return;
          const auto task = header.begin().task();
          if (end == End::is_refused) return header.mutable_begin()->set_examples(1u << 30);
          header.mutable_failed()->set_task(task);
          header.mutable_failed()->set_reason("CUDA out of memory");
        };
      }
      return true;
    };
    world.on_frame = [&](const std::string& client, bool is_up, const wire::Header& header) {
      if (client != "client-1" || is_up || !header.has_offer()) return;
      if (end == End::leaves) world.restart_client(client);
      if (end == End::ends) world.clients().at(client).disk.fail_at(1);
    };
    if (end == End::ends) world.clients().at("client-1").may_fail = true;
    REQUIRE(world.run());
    // The task says why, so no event says it again.
    if (end == End::ends) CHECK_FALSE(has_event(world, "client-1 ended with an error: "));
    const auto tasks = tasks_of(world, 1);
    REQUIRE(tasks.size() == 3);
    for (const auto& task : tasks) {
      const bool is_ended = task.client == "client-1";
      const TaskState ended = end == End::is_refused ? TaskState::refused : TaskState::lost;
      CHECK(task.state == (is_ended ? ended : TaskState::accepted));
      if (is_ended && end == End::leaves) CHECK(task.reason == "the client left");
      if (is_ended && end == End::ends)
        CHECK(task.reason.find("update-1: a fault was injected") != std::string::npos);
      if (is_ended && end == End::fails) CHECK(task.reason == "CUDA out of memory");
    }
    CHECK(world.elapsed() < 60s);
  }
}

/// One round without a deadline. client-3's upload, which may come in one chunk, comes at this
/// pace.
WorldOptions three_without_deadline() {
  WorldOptions options = calm(3, 100'000);
  options.settings.min_clients = 2;
  options.settings.rounds = 1;
  options.settings.deadline_s = 0;
  options.sessions_first = 3;
  return options;
}

/// Returns how many sessions of client-3 ended because its upload was too slow.
std::size_t run_with_upload_at(World& world, double bytes_per_s) {
  world.on_frame = [&](const std::string& client, bool is_up, const wire::Header& header) {
    if (client == "client-3" && is_up && header.has_begin())
      world.link_of(client)->slow_down(bytes_per_s);
  };
  REQUIRE(world.run());
  CHECK(check(world));
  return count_events(world, "client-3: its upload sends");
}

TEST_CASE("without a deadline an upload that trickles in is given up, and the round closes") {
  World world(three_without_deadline());
  CHECK(run_with_upload_at(world, 10) == 1);
  const auto tasks = tasks_of_client(world, "client-3");
  REQUIRE(tasks.size() == 1);
  CHECK(tasks[0].state == TaskState::lost);
  CHECK(tasks[0].reason.find("the least is") != std::string::npos);
  CHECK(world.elapsed() < 2 * limits::upload_window);  // However large its chunk is.
}

TEST_CASE("without a deadline a slow upload gets some attempts before it is given up") {
  World world(three_without_deadline());
  CHECK(run_with_upload_at(world, 500) == limits::slow_uploads_max);
  const auto tasks = tasks_of_client(world, "client-3");
  REQUIRE(tasks.size() == 1);
  CHECK(tasks[0].state == TaskState::lost);
}

TEST_CASE("without a deadline an upload that is fast enough counts, however long its chunk takes") {
  World world(three_without_deadline());
  CHECK(run_with_upload_at(world, 1200) == 0);
  const auto tasks = tasks_of_client(world, "client-3");
  REQUIRE(tasks.size() == 1);
  CHECK(tasks[0].state == TaskState::accepted);
}

TEST_CASE("an upload whose bytes are not those announced is refused after three attempts") {
  WorldOptions options = calm(3);
  options.settings.min_clients = 2;
  options.settings.rounds = 1;
  options.settings.deadline_s = 600;
  options.sessions_first = 3;
  World world(options);
  int begun = 0;
  world.on_connect = [&](const std::string& client, Line& up, Line&) {
    if (client != "client-3") return true;
    up.edit = [&begun](wire::Header& header) {
      if (!header.has_begin()) return;
      ++begun;
      header.mutable_begin()->set_digest(std::string(16, static_cast<char>('a' + begun)));
    };
    return true;
  };
  REQUIRE(world.run());
  CHECK(begun == limits::wrong_digests_max);
  const auto tasks = tasks_of_client(world, "client-3");
  REQUIRE(tasks.size() == 1);
  CHECK(tasks[0].state == TaskState::refused);
}

TEST_CASE("a member that floods the server with messages is cut off, and the others go on") {
  WorldOptions options = calm(2);
  options.settings.rounds = 200;
  options.settings.deadline_s = 5;  // The member that floods is asked, too.
  World world(options);
  class Flood {
   public:
    static Awaitable<void> run(World& world, int& sent, std::string& answer) {
      co_await sleep_for(1s);
      const auto link = world.connect(net::make_strand(world.io()), "client-9");
      if (!link) co_return;
      [[maybe_unused]] const auto greeted = co_await greet(link, 100);
      [[maybe_unused]] const auto offer = co_await await_offer(link);
      while (!link->is_down() && sent < 1000) {
        wire::Header failed;
        failed.mutable_failed()->set_reason("noise");
        Message message(std::move(failed));
        const auto is_sent = co_await link->send(std::move(message));
        if (!is_sent) break;
        if (++sent % 50 == 0) co_await sleep_for(50ms);
      }
      for (;;) {
        const auto received = co_await link->receive();
        if (!received) break;
        if (received->header.has_bye()) answer = received->header.bye().reason();
      }
      link->close();
    }
  };
  int sent = 0;
  std::string answer;
  world.spawn(Flood::run(world, sent, answer));
  REQUIRE(world.run());
  CHECK(check(world));
  CHECK(answer.find("too many messages") != std::string::npos);
  // The client's round did not wait for it until the deadline.
  const auto tasks = tasks_of_client(world, "client-9");
  REQUIRE(!tasks.empty());
  for (const auto& task : tasks) {
    CHECK(task.state == TaskState::lost);
    CHECK(task.reason.find("too many messages") != std::string::npos);
  }
  const auto history = History::open(world);
  REQUIRE(history);
  const auto events = history->store->events().all(std::nullopt).value();
  CHECK(std::ranges::count(events, std::string("client-9 says: noise"), &EventRecord::text) <
        limits::lines_of_kind_max);
}

}  // namespace
}  // namespace fl::test
