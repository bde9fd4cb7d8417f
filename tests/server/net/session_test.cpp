// SPDX-License-Identifier: Apache-2.0
// A session and its host, without an engine: what the host is asked for each thing that a client
// says, and what the client is told.
#include "server/net/session.hpp"
#include "shared/base/log.hpp"
#include "tests/server/net/fake_host.hpp"
#include "tests/support/mem_files.hpp"
#include "tests/support/memory_link.hpp"
#include "tests/support/print_result.hpp"
#include "tests/wire/simulation.hpp"

#include <doctest/doctest.h>

#include <algorithm>

#include <functional>

namespace fl::test {

using namespace fl::server;
namespace {

using Calls = std::vector<std::string>;

constexpr std::size_t chunk_bytes = 1 << 16;
const std::string model_bytes(100'000, 'm');
const std::string update_bytes = "an update";

wire::Header hello_header() {
  wire::Header header;
  header.mutable_hello()->set_protocol(protocol_version);
  header.mutable_hello()->set_software("test 1.0");
  return header;
}

wire::Header begin_header(std::int64_t task) {
  wire::Header header;
  header.mutable_begin()->set_task(task);
  header.mutable_begin()->set_bytes(update_bytes.size());
  header.mutable_begin()->set_digest(Digest::of(bytes_of(update_bytes)).raw());
  return header;
}

Message chunk(std::int64_t transfer, std::uint64_t offset, std::string bytes) {
  wire::Header header;
  header.mutable_chunk()->set_transfer(static_cast<std::uint64_t>(transfer));
  header.mutable_chunk()->set_offset(offset);
  const auto owner = std::make_shared<std::string>(std::move(bytes));
  return Message(std::move(header), Payload(owner, bytes_of(*owner)));
}

/// A session with a client that the test plays at the other end of the link.
struct SessionWorld {
  Simulation simulation;
  MemFiles disk;
  std::shared_ptr<FakeHost> host = std::make_shared<FakeHost>(simulation.io.get_executor());
  std::shared_ptr<MemoryLink> link;  // The client's end.
  std::shared_ptr<Session> session;
  std::vector<wire::Header> heard;  // All messages that the client has got, in their order.

  SessionWorld() {
    set_log_level(LogLevel::off);
    const auto executor = simulation.io.get_executor();
    auto [ours, theirs] =
        MemoryLink::make({executor, "server", {}}, {executor, "client", {}}, nullptr);
    link = ours;
    session = std::make_shared<Session>(theirs, "alice", host);
  }

  std::shared_ptr<File> file(const std::string& bytes) {
    std::shared_ptr<File> made = disk.open("/file", OpenMode::create).value();
    REQUIRE(made->write_at(0, bytes_of(bytes)));
    return made;
  }

  Awaitable<void> say(Message message) {
    const auto sent = co_await link->send(std::move(message));
    CHECK(sent);
  }
  Awaitable<Message> hear() {
    auto message = co_await link->receive();
    REQUIRE(message);
    heard.push_back(message->header);
    co_return std::move(*message);
  }
  /// The handshake of a trainer with 100 examples.
  Awaitable<void> come() {
    Message hello(hello_header());
    co_await say(std::move(hello));
    const Message welcome = co_await hear();
    REQUIRE(welcome.header.has_welcome());
    wire::Header ready;
    ready.mutable_ready()->set_train_examples(100);
    Message answer(std::move(ready));
    co_await say(std::move(answer));
  }
  Awaitable<void> go() {
    wire::Header header;
    header.mutable_bye()->set_cause(wire::Bye::FINISHED);
    Message bye(std::move(header));
    co_await say(std::move(bye));
  }

  /// Runs the session against this client to the end of both. Returns what the host was asked.
  Calls run(Awaitable<void> client) {
    simulation.spawn(session->run());
    simulation.spawn(std::move(client));
    simulation.run();
    CHECK(session.use_count() == 1);
    return host->calls;
  }
};

Awaitable<void> come_and_go(SessionWorld& world) {
  co_await world.come();
  co_await world.go();
}

Awaitable<void> come_and_fail(SessionWorld& world) {
  co_await world.come();
  wire::Header header;
  header.mutable_bye()->set_cause(wire::Bye::LEAVING);
  header.mutable_bye()->set_reason("the trainer has failed 3 times");
  Message bye(std::move(header));
  co_await world.say(std::move(bye));
}

TEST_CASE("a client that says what ends it leaves for good, and its host hears why") {
  SessionWorld world;
  CHECK(world.run(come_and_fail(world)) ==
        Calls{"alice joins",
              "alice leaves for good: the client left: the trainer has failed 3 times",
              "alice ended with an error: the trainer has failed 3 times"});
}

Awaitable<void> come_and_tell_twice(SessionWorld& world) {
  co_await world.come();
  wire::Header failed;
  failed.mutable_failed()->set_reason("round 1: no memory");
  Message first(std::move(failed));
  co_await world.say(std::move(first));
  wire::Header header;
  header.mutable_bye()->set_cause(wire::Bye::LEAVING);
  header.mutable_bye()->set_reason("round 1: no memory");
  Message bye(std::move(header));
  co_await world.say(std::move(bye));
}

TEST_CASE("a failure that also ends its client is told once") {
  SessionWorld world;
  const Calls calls = world.run(come_and_tell_twice(world));
  CHECK(std::ranges::count(calls, "alice ended with an error: round 1: no memory") == 0);
  CHECK(calls.back() == "alice leaves for good: the client left: round 1: no memory");
}

TEST_CASE("a session asks its host for the welcome, joins it and leaves it") {
  SessionWorld world;
  world.host->greeting->set_run_key("run-7");
  CHECK(world.run(come_and_go(world)) ==
        Calls{"alice joins", "alice leaves for good: the client left"});
  CHECK(world.heard.at(0).welcome().run_key() == "run-7");
  CHECK(world.heard.at(0).welcome().name() == "alice");
  CHECK(world.session->facts().train_examples == 100);
  CHECK(world.session->facts().software == "test 1.0");
  CHECK(!world.session->is_at_fault());
  CHECK(world.host->joined.empty());
}

Awaitable<void> be_refused(SessionWorld& world) {
  Message hello(hello_header());
  co_await world.say(std::move(hello));
  co_await world.hear();
}

TEST_CASE("a client that the host does not welcome is told why") {
  SessionWorld world;
  world.host->greeting = Error(Errc::invalid_input, "this run trains another model");
  CHECK(world.run(be_refused(world)) == Calls{"alice refused: this run trains another model"});
  const wire::Bye& bye = world.heard.at(0).bye();
  CHECK(bye.cause() == wire::Bye::REFUSED);
  CHECK(bye.reason() == "this run trains another model");
}

Awaitable<void> fetch(SessionWorld& world, std::string& got) {
  co_await world.come();
  wire::Header header;
  header.mutable_fetch()->set_version(3);
  Message request(std::move(header));
  co_await world.say(std::move(request));
  const Message answer = co_await world.hear();
  while (answer.header.has_model() && got.size() < answer.header.model().bytes()) {
    const Message part = co_await world.hear();
    CHECK(part.header.chunk().transfer() == 9);
    CHECK(part.header.chunk().offset() == got.size());
    got += text_of(part.payload.bytes());
  }
  co_await world.go();
}

TEST_CASE("a session sends what the host gives it for a Fetch, and says when it has ended") {
  SessionWorld world;
  Download download;
  download.model.set_transfer(9);
  download.model.set_bytes(model_bytes.size());
  download.source = SegmentSource({Segment{world.file(model_bytes), 0, model_bytes.size()}});
  download.chunk_bytes_max = chunk_bytes;
  world.host->model = std::move(download);
  std::string got;
  CHECK(world.run(fetch(world, got)) ==
        Calls{"alice joins", "download 3", fmt::format("download ends: chunks of {}", chunk_bytes),
              "alice leaves for good: the client left"});
  CHECK(got == model_bytes);
}

TEST_CASE("a version that the host does not give is answered with its reason") {
  SessionWorld world;
  std::string got;
  CHECK(world.run(fetch(world, got)) ==
        Calls{"alice joins", "download 3", "alice leaves for good: the client left"});
  CHECK(world.heard.at(1).failed().version() == 3);
  CHECK(world.heard.at(1).failed().reason() == "there is no such version");
}

/// Announces the update of task 5 and sends the first `bytes` of it; then waits for the verdict, or
/// breaks the connection if that is not all.
Awaitable<void> upload(SessionWorld& world, std::size_t bytes) {
  co_await world.come();
  Message begin(begin_header(5));
  co_await world.say(std::move(begin));
  const Message answer = co_await world.hear();
  if (answer.header.has_resume()) {
    for (std::size_t at = answer.header.resume().offset(); at < bytes; at += 3) {
      Message part = chunk(5, at, update_bytes.substr(at, 3));
      co_await world.say(std::move(part));
    }
    if (bytes < update_bytes.size()) {
      co_await sleep_for(std::chrono::seconds(1));
      world.link->cut();
      co_return;
    }
    co_await world.hear();
  }
  co_await world.go();
}

/// The host grants the upload of task 5.
void grant_upload(SessionWorld& world) {
  world.host->grant.upload = std::make_shared<Upload>(
      TaskId{5}, "task-5", world.file(""), update_bytes.size(), Digest::of(bytes_of(update_bytes)));
  world.host->grant.chunk_bytes_max = chunk_bytes;
  world.host->grant.bytes_per_s_min = 1;
  world.host->verdict.set_task(5);
  world.host->verdict.set_outcome(wire::Verdict::ACCEPTED);
}

TEST_CASE("an upload goes into the file of its grant, and the host's verdict to the client") {
  SessionWorld world;
  grant_upload(world);
  CHECK(world.run(upload(world, update_bytes.size())) ==
        Calls{"alice joins", "upload begins: task 5", "upload is here: 9 bytes",
              fmt::format("upload ends: chunks of {}", chunk_bytes),
              "alice leaves for good: the client left"});
  CHECK(world.host->grant.upload->finish());
  CHECK(world.heard.at(1).resume().task() == 5);
  CHECK(world.heard.at(1).resume().chunk_bytes() == chunk_bytes);
  CHECK(world.heard.at(2).verdict().outcome() == wire::Verdict::ACCEPTED);
}

TEST_CASE("an upload that breaks off ends once, and its bytes stay") {
  SessionWorld world;
  grant_upload(world);
  CHECK(world.run(upload(world, 6)) == Calls{"alice joins", "upload begins: task 5",
                                             fmt::format("upload ends: chunks of {}", chunk_bytes),
                                             "alice leaves: the client left"});
  CHECK(world.host->grant.upload->next_offset() == 6);
}

TEST_CASE("an upload that the host does not want has its verdict at once") {
  SessionWorld world;
  world.host->grant = answer_at_once(begin_header(5).begin(), wire::Verdict::STALE, "too late");
  CHECK(world.run(upload(world, update_bytes.size())) ==
        Calls{"alice joins", "upload begins: task 5", "alice leaves for good: the client left"});
  CHECK(world.heard.at(1).verdict().outcome() == wire::Verdict::STALE);
}

}  // namespace
}  // namespace fl::test
