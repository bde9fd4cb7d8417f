// SPDX-License-Identifier: Apache-2.0
// What an agent says to its server, and what it makes of the answers. certificate_renewal_test.cpp
// tests the renewal of its certificate.
#include "client/agent/conversation.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/version.hpp"
#include "shared/codec/spec/table.hpp"
#include "tests/client/agent/conversation_world.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::client;
using namespace fl::codec;
namespace {

wire::Header offer(std::int64_t task) {
  wire::Header header;
  header.mutable_offer()->set_task(task);
  return header;
}

/// The tensors of the Bye that a client with this layout sends.
wire::Bye told_tensors(const Layout& layout) {
  ConversationWorld world;
  REQUIRE(world.begin({bye(wire::Bye::REFUSED)}));
  world.decline(run_key, Error(Errc::conflict, "other tensors"), &layout);
  REQUIRE(world.link->sent.size() == 1);
  return world.link->sent.front().header.bye();
}

Layout layout_of(std::size_t tensors) {
  std::vector<TensorSpec> specs;
  for (std::size_t i = 0; i < tensors; ++i) specs.push_back({fmt::format("{:0>200}", i), {2, 3}});
  return Layout::make(specs).value();
}

/// Takes a new connection and passes its messages to `to`.
Awaitable<void> go_on(client::Conversation& conversation, std::shared_ptr<Link> link,
                      client::AgentEvents& to) {
  const auto begun = co_await conversation.begin(std::move(link));
  CHECK(begun);
  wire::Ready ready;
  const auto sent = co_await conversation.ready(std::move(ready));
  CHECK(sent);
  co_await conversation.listen(to);
}

/// Takes so many events, and writes the connection and the message of each.
Awaitable<void> hear(client::AgentEvents& events, std::size_t count,
                     std::vector<std::string>& heard) {
  while (heard.size() < count) {
    const auto event = co_await events.pop();
    REQUIRE(event);
    const auto& [connection, message] = std::get<client::Arrival>(*event);
    heard.push_back(fmt::format("{}: {}", connection,
                                message ? fmt::format("task {}", message->header.offer().task())
                                        : message.error().message()));
  }
}

}  // namespace

TEST_CASE("Hello names protocol, program and all codecs, with the role and model that are given") {
  ConversationWorld world;
  REQUIRE(world.begin({welcome()}));
  wire::Hello given;
  given.set_evaluator(true);
  given.set_model("lenet");
  const auto answer = world.hello(given);
  REQUIRE(answer);
  CHECK(answer->run_key() == run_key);

  REQUIRE(world.link->sent.size() == 1);
  REQUIRE(world.link->sent.front().header.has_hello());
  const wire::Hello& hello = world.link->sent.front().header.hello();
  CHECK(hello.protocol() == protocol_version);
  CHECK(hello.software() == std::string("tributary ") + software_version);
  CHECK(hello.evaluator());
  CHECK(hello.model() == "lenet");
  std::vector<std::string> codecs;
  for (const CodecRow& row : codec_rows()) codecs.emplace_back(row.name);
  codecs.emplace_back("delta");
  CHECK(std::vector<std::string>(hello.codecs().begin(), hello.codecs().end()) == codecs);
  CHECK(Features::read(hello).value() ==
        Features::of(End::client).without(Feature::secure_aggregation));
}

TEST_CASE("Hello says for how long the client has been running, on each connection") {
  ConversationWorld world;
  for (const double uptime : {90.0, 180.0}) {
    world.simulation.wait(std::chrono::seconds(90));
    REQUIRE(world.begin({welcome()}));
    REQUIRE(world.hello());
    CHECK(world.link->sent.front().header.hello().uptime_s() == uptime);
  }
}

TEST_CASE("what the server can do is what its Welcome lists, and an older one has what it had") {
  wire::Header listed = welcome();
  listed.mutable_welcome()->mutable_features()->add_names("evaluation");
  listed.mutable_welcome()->mutable_features()->add_names("of-the-future");
  ConversationWorld world;
  REQUIRE(world.begin({listed}));
  REQUIRE(world.hello());
  CHECK(world.conversation.server_features().has(Feature::evaluation));
  CHECK(!world.conversation.server_features().has(Feature::renewal));

  REQUIRE(world.begin({welcome()}));
  REQUIRE(world.hello());
  CHECK(world.conversation.server_features() == Features::before_lists(End::server));
}

TEST_CASE("a Welcome whose list of features is wrong breaks the protocol") {
  wire::Header wrong = welcome();
  wrong.mutable_welcome()->mutable_features()->add_names("Not A Name");
  ConversationWorld world;
  REQUIRE(world.begin({wrong}));
  const auto answer = world.hello();
  REQUIRE(!answer);
  CHECK(answer.error().code() == Errc::protocol);
}

TEST_CASE("a Bye in place of Welcome is an error by its cause") {
  struct Row {
    wire::Bye::Cause cause;
    Errc code;
    const char* message;
  };
  for (const Row& row : {Row{wire::Bye::FINISHED, Errc::cancelled, "the reason"},
                         Row{wire::Bye::RESTARTING, Errc::unavailable, "the reason"},
                         Row{wire::Bye::BROKEN, Errc::unavailable, "the reason"},
                         Row{wire::Bye::LEAVING, Errc::unavailable, "the reason"},
                         Row{wire::Bye::REFUSED, Errc::unauthenticated,
                             "the server rejected this client: the reason"}}) {
    CAPTURE(row.cause);
    ConversationWorld world;
    REQUIRE(world.begin({bye(row.cause)}));
    const auto answer = world.hello();
    REQUIRE(!answer);
    CHECK(answer.error().code() == row.code);
    CHECK(answer.error().message() == row.message);
    CHECK(world.conversation.number() == 0);
  }
}

TEST_CASE("the server's reason is shortened and made safe to show") {
  for (const auto cause : {wire::Bye::FINISHED, wire::Bye::REFUSED, wire::Bye::RESTARTING}) {
    ConversationWorld world;
    REQUIRE(world.begin({bye(cause, "\x1b[2J" + std::string(5000, 'x'))}));
    const auto answer = world.hello();
    REQUIRE(!answer);
    CHECK(answer.error().message().find('\x1b') == std::string::npos);
    CHECK(answer.error().message().find("?[2J") != std::string::npos);
    CHECK(answer.error().message().size() < limits::reason_bytes_max + 50);
  }
}

TEST_CASE("another answer to Hello than Welcome or Bye breaks the protocol") {
  ConversationWorld world;
  REQUIRE(world.begin({offer(1)}));
  const auto answer = world.hello();
  REQUIRE(!answer);
  CHECK(answer.error().code() == Errc::protocol);
  CHECK(answer.error().message() == "the server answered Hello with Offer");
}

TEST_CASE("the end of the connection ends the handshake with its error") {
  ConversationWorld world;
  REQUIRE(world.begin());
  CHECK(world.hello().error().message() == "the script is over");
  world.link->is_broken = true;
  CHECK(world.hello().error().message() == "the connection broke");
}

TEST_CASE("a connection counts once Ready is sent") {
  ConversationWorld world;
  for (std::uint64_t number = 1; number <= 2; ++number) {
    REQUIRE(world.begin({welcome()}));
    REQUIRE(world.hello());
    CHECK(world.conversation.number() == number - 1);
    REQUIRE(world.ready());
    CHECK(world.conversation.number() == number);
    CHECK(world.link->sent.back().header.has_ready());
  }
  REQUIRE(world.begin());
  world.link->is_broken = true;
  CHECK(!world.ready());
  CHECK(world.conversation.number() == 2);
}

TEST_CASE("why a run is declined is told once for each run") {
  ConversationWorld world;
  const Error why(Errc::invalid_input, "this client has no data");
  CHECK(!world.conversation.has_declined(run_key));
  for (const bool is_first : {true, false}) {
    REQUIRE(world.begin());
    CHECK(world.decline(run_key, why).message() == why.message());
    CHECK(world.conversation.has_declined(run_key));
    CHECK(world.link->sent.size() == (is_first ? 1 : 0));
    if (!is_first) continue;
    const wire::Bye& told = world.link->sent.front().header.bye();
    CHECK(told.cause() == wire::Bye::LEAVING);
    CHECK(told.reason() == why.message());
    CHECK(told.tensors().empty());
    CHECK(!told.has_more_tensors());
  }
  REQUIRE(world.begin());
  world.decline("fedcba9876543210", why);
  CHECK(world.link->sent.size() == 1);
  CHECK(!world.conversation.has_declined(run_key));
}

TEST_CASE("a run that was taken part in may be declined again") {
  ConversationWorld world;
  REQUIRE(world.begin());
  world.decline(run_key, Error(Errc::invalid_input, "this client has no data"));
  REQUIRE(world.begin());
  REQUIRE(world.ready());
  CHECK(!world.conversation.has_declined(run_key));
}

TEST_CASE("a run without a key is never known to be declined") {
  ConversationWorld world;
  for (int times = 0; times < 2; ++times) {
    REQUIRE(world.begin());
    world.decline("", Error(Errc::protocol, "the run's key is empty"));
    CHECK(world.link->sent.size() == 1);
    CHECK(!world.conversation.has_declined(""));
  }
}

TEST_CASE("the reason of a client that declines is short and safe to show") {
  ConversationWorld world;
  REQUIRE(world.begin());
  world.decline(run_key, Error(Errc::protocol, "\x1b" + std::string(5000, 'x')));
  const std::string& reason = world.link->sent.front().header.bye().reason();
  CHECK(reason.starts_with("?x"));
  CHECK(reason.size() <= limits::reason_bytes_max + 3);
}

TEST_CASE("a client with other tensors tells them and returns which ones differ") {
  const Layout own = Layout::make({{"w", {30, 40}}, {"b", {}}}).value();
  const Error why(Errc::conflict, "other tensors");
  ConversationWorld world;
  SUBCASE("the server says it") {
    REQUIRE(world.begin({bye(wire::Bye::REFUSED, "w has the shape [3]")}));
    const Error error = world.decline(run_key, why, &own);
    CHECK(error.code() == Errc::conflict);
    CHECK(error.message() == "w has the shape [3]");
  }
  SUBCASE("the server says something else") {
    REQUIRE(world.begin({bye(wire::Bye::RESTARTING, "restarting")}));
    CHECK(world.decline(run_key, why, &own).message() == "other tensors");
  }
  SUBCASE("the connection ends before the answer") {
    REQUIRE(world.begin());
    CHECK(world.decline(run_key, why, &own).message() == "other tensors");
  }
  REQUIRE(world.link->sent.size() == 1);
  const wire::Bye& told = world.link->sent.front().header.bye();
  REQUIRE(told.tensors_size() == 2);
  CHECK(told.tensors(0).name() == "w");
  REQUIRE(told.tensors(0).shape_size() == 2);
  CHECK(told.tensors(0).shape(0) == 30);
  CHECK(told.tensors(0).shape(1) == 40);
  CHECK(told.tensors(1).name() == "b");
  CHECK(told.tensors(1).shape().empty());
  CHECK(!told.has_more_tensors());
}

TEST_CASE("as many tensors are told as fit, and that there are more") {
  const wire::Bye all = told_tensors(layout_of(500));
  CHECK(all.tensors_size() == 500);
  CHECK(!all.has_more_tensors());

  const wire::Bye part = told_tensors(layout_of(1000));
  CHECK(part.has_more_tensors());
  CHECK(part.ByteSizeLong() <= limits::tensors_told_bytes_max);
  const std::size_t bytes_each = part.tensors(0).ByteSizeLong() + 8;
  CHECK(static_cast<std::size_t>(part.tensors_size()) ==
        limits::tensors_told_bytes_max / bytes_each);
}

// The queue of events has room for one, so the first connection is still read when the second one
// is ready.
TEST_CASE("listening passes the messages and the end of a connection with its number") {
  ConversationWorld world;
  client::AgentEvents events(world.simulation.io.get_executor(), 1);
  REQUIRE(world.begin({offer(1), offer(2)}));
  REQUIRE(world.ready());
  const auto second = std::make_shared<ScriptedLink>(world.simulation.io.get_executor());
  second->answers.push_back(offer(3));
  std::vector<std::string> heard;
  world.simulation.spawn(world.conversation.listen(events));
  world.simulation.spawn(go_on(world.conversation, second, events));
  world.simulation.spawn(hear(events, 5, heard));
  world.simulation.run();
  std::ranges::stable_sort(heard, {}, [](const std::string& line) { return line.front(); });
  CHECK(heard == std::vector<std::string>{"1: task 1", "1: task 2", "1: the script is over",
                                          "2: task 3", "2: the script is over"});
}

TEST_CASE("listening ends when nobody takes events any more") {
  ConversationWorld world;
  client::AgentEvents events(world.simulation.io.get_executor(), client::agent_events_max);
  REQUIRE(world.begin({offer(1), offer(2)}));
  REQUIRE(world.ready());
  events.close();
  world.simulation.spawn(world.conversation.listen(events));
  world.simulation.run();
  CHECK(events.empty());
  CHECK(world.link->answers.size() == 1);
}

TEST_CASE("a client that leaves says so") {
  ConversationWorld world;
  REQUIRE(world.begin());
  world.simulation.spawn(world.conversation.leave());
  world.simulation.run();
  REQUIRE(world.link->sent.size() == 1);
  CHECK(world.link->sent.front().header.bye().cause() == wire::Bye::LEAVING);
  world.conversation.close();
  CHECK(world.link->is_broken);
}

}  // namespace fl::test
