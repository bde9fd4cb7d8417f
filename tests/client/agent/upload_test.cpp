// SPDX-License-Identifier: Apache-2.0
// An upload over the real state of a client, on a disk in memory, to a server that is scripted.
#include "client/agent/upload.hpp"

#include "shared/base/limits.hpp"
#include "shared/codec/spec/parser.hpp"
#include "tests/support/mem_files.hpp"
#include "tests/support/print_result.hpp"
#include "tests/support/run_of.hpp"
#include "tests/support/scripted_link.hpp"
#include "tests/support/stored.hpp"
#include "tests/wire/simulation.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::client;
using namespace fl::codec;
namespace {

using client::Upload;
using wire::Verdict;

const std::filesystem::path state_folder = "/state";

/// A client with an upload, on one connection.
struct UploadWorld {
  Simulation simulation;
  Offload offload;
  TaskGroup group{simulation.io.get_executor()};
  client::AgentEvents events{simulation.io.get_executor(), client::agent_events_max};
  client::Worker worker{offload, group, events};
  MemFiles files;
  ClientState state{files, state_folder};
  RunLayout layout = run_of(Layout::make({{"w", {200, 200}}}).value());
  Upload upload{worker, state, nullptr};
  std::shared_ptr<ScriptedLink> link = std::make_shared<ScriptedLink>(simulation.io.get_executor());
  client::Conversation conversation{nullptr};

  UploadWorld() {
    REQUIRE(state.load());
    REQUIRE(simulation.result_of(conversation.begin(link)));
  }

  /// The update of a task; each task has another one.
  [[nodiscard]] std::vector<float> update_of(std::int64_t task) const {
    std::vector<float> update(layout.all.elements());
    for (std::size_t i = 0; i < update.size(); ++i)
      update[i] = 0.01F * static_cast<float>(i % 101) + static_cast<float>(task);
    return update;
  }
  /// Saves a trained update and prepares its upload.
  void train(std::int64_t task, const char* codec = "none") {
    auto update = update_of(task);
    wire::UploadBegin begin;
    begin.set_task(task);
    begin.set_round(static_cast<std::uint32_t>(task));
    begin.set_codec(codec);
    REQUIRE(save(state, layout, update, *parse_codec(codec).value(), 1, begin));
    REQUIRE(prepare());
  }
  Result<void> prepare() { return simulation.result_of(upload.prepare()); }
  Result<void> announce() { return simulation.result_of(upload.announce(conversation)); }
  Result<void> resume(std::int64_t task, std::uint64_t offset,
                      std::size_t chunk_bytes = limits::chunk_bytes_min) {
    wire::Resume resume;
    resume.set_task(task);
    resume.set_offset(offset);
    resume.set_chunk_bytes(static_cast<std::uint32_t>(chunk_bytes));
    return simulation.result_of(upload.resume(resume));
  }
  Result<bool> take(std::int64_t task, Verdict::Outcome outcome) {
    Verdict verdict;
    verdict.set_task(task);
    verdict.set_outcome(outcome);
    return simulation.result_of(upload.take_verdict(verdict, layout));
  }
  /// Sends chunks until the server has everything.
  void send_all() {
    while (upload.can_send()) REQUIRE(simulation.result_of(upload.send_some(conversation)));
  }
  /// Trains a task, announces it and takes this verdict, which must end the task.
  void settle(std::int64_t task, Verdict::Outcome outcome, const char* codec) {
    train(task, codec);
    REQUIRE(announce());
    const auto is_end = take(task, outcome);
    REQUIRE(is_end);
    CHECK(*is_end);
    CHECK(!state.pending());
  }
  /// Damages the saved update and starts the client again.
  void damage() {
    const auto file = files.open(state_folder / state.pending()->file, OpenMode::update).value();
    file->write_at(20, bytes_of("damage")).value();
    restart();
  }
  void restart() {
    upload.connection_lost();
    state = ClientState::open(files, state_folder).value();
    REQUIRE(state.pending());
  }
  [[nodiscard]] std::string saved_bytes() {
    std::string bytes(state.pending()->begin.bytes(), '\0');
    const auto file = state.open_pending().value();
    file->read_exactly(0, std::as_writable_bytes(std::span(bytes))).value();
    return bytes;
  }
  [[nodiscard]] bool has_residual() const {
    const auto residual = values_of(state.residual(layout.all), layout.all);
    return std::ranges::any_of(residual, [](float value) { return value != 0; });
  }
  /// Whether the residual has all of these tasks' updates.
  [[nodiscard]] bool residual_has_all_of(const std::vector<std::int64_t>& tasks) const {
    std::vector<float> rest = values_of(state.residual(layout.all), layout.all);
    for (const std::int64_t task : tasks) {
      const auto update = update_of(task);
      std::ranges::transform(rest, update, rest.begin(), std::minus<float>());
    }
    return std::ranges::all_of(rest, [](float value) { return std::abs(value) < 1e-3F; });
  }
};

}  // namespace

TEST_CASE("without a trained update there is nothing to announce") {
  UploadWorld world;
  REQUIRE(world.prepare());
  CHECK(!world.upload.is_on());
  CHECK(!world.upload.can_send());
  CHECK(world.upload.announce_at() == never);
}

TEST_CASE("a trained update is announced at once, and sent only when the server wants bytes") {
  UploadWorld world;
  world.train(7);
  CHECK(world.upload.is_on());
  CHECK(world.upload.announce_at() == Clock::now());
  CHECK(!world.upload.can_send());
  REQUIRE(world.announce());
  REQUIRE(world.link->sent.size() == 1);
  CHECK(world.link->sent.front().header.begin().SerializeAsString() ==
        world.state.pending()->begin.SerializeAsString());
  CHECK(world.upload.announce_at() == never);
  CHECK(!world.upload.can_send());
  REQUIRE(world.resume(7, 0));
  CHECK(world.upload.can_send());
}

TEST_CASE("an update goes in chunks from the byte that the server names to its end") {
  UploadWorld world;
  world.train(7);
  const std::string saved = world.saved_bytes();
  REQUIRE(saved.size() > 2 * limits::chunk_bytes_min);
  for (const std::uint64_t from :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{100'000}, saved.size()}) {
    CAPTURE(from);
    world.upload.connection_lost();
    world.link->sent.clear();
    REQUIRE(world.prepare());
    REQUIRE(world.announce());
    REQUIRE(world.resume(7, from));
    world.send_all();
    std::string sent;
    for (std::size_t i = 1; i < world.link->sent.size(); ++i) {
      const Message& message = world.link->sent[i];
      CHECK(message.header.chunk().transfer() == 7);
      CHECK(message.header.chunk().offset() == from + sent.size());
      CHECK(message.payload.bytes().size() <= limits::chunk_bytes_min);
      sent += text_of(message.payload.bytes());
    }
    CHECK(sent == saved.substr(from));
    CHECK(world.upload.is_on());  // It waits for the verdict.
  }
}

TEST_CASE("a Resume that does not fit the upload breaks the protocol") {
  UploadWorld world;
  CHECK(world.resume(7, 0).error().code() == Errc::protocol);
  world.train(7);
  REQUIRE(world.announce());
  const std::uint64_t bytes = world.state.pending()->begin.bytes();
  CHECK(world.resume(8, 0).error().code() == Errc::protocol);
  CHECK(world.resume(7, bytes + 1).error().code() == Errc::protocol);
  CHECK(!world.upload.can_send());
  CHECK(world.resume(7, bytes));
}

TEST_CASE("a Resume for an update that is not announced breaks the protocol") {
  UploadWorld world;
  world.train(7);
  CHECK(world.resume(7, 0).error().code() == Errc::protocol);
  REQUIRE(world.announce());
  CHECK(world.take(7, Verdict::LATER).value() == false);
  CHECK(world.resume(7, 0).error().code() == Errc::protocol);
  CHECK(!world.upload.can_send());
  REQUIRE(world.announce());
  CHECK(world.resume(7, 0));
}

TEST_CASE("a connection that breaks ends a chunk with its error, and the update stays") {
  UploadWorld world;
  world.train(7);
  REQUIRE(world.announce());
  REQUIRE(world.resume(7, 0));
  world.link->is_broken = true;
  const auto sent = world.simulation.result_of(world.upload.send_some(world.conversation));
  REQUIRE(!sent);
  CHECK(sent.error().code() == Errc::unavailable);
  world.upload.connection_lost();
  CHECK(!world.upload.is_on());
  REQUIRE(world.prepare());
  CHECK(world.upload.announce_at() == Clock::now());
}

TEST_CASE("an accepted update is forgotten, and what its codec lost is kept") {
  UploadWorld world;
  world.settle(7, Verdict::ACCEPTED, "sign+ef");
  CHECK(!world.upload.is_on());
  CHECK(world.has_residual());
  CHECK(!world.residual_has_all_of({7}));
}

TEST_CASE("a verdict about another task changes nothing") {
  UploadWorld world;
  CHECK(world.take(7, Verdict::ACCEPTED).value() == false);
  world.train(7);
  REQUIRE(world.announce());
  CHECK(world.take(8, Verdict::ACCEPTED).value() == false);
  CHECK(world.upload.is_on());
  CHECK(world.state.pending());
}

TEST_CASE("an update that the server can't take yet is announced again after a pause") {
  UploadWorld world;
  world.train(7);
  REQUIRE(world.announce());
  REQUIRE(world.resume(7, 0));
  CHECK(world.take(7, Verdict::LATER).value() == false);
  CHECK(world.state.pending());
  CHECK(!world.upload.can_send());
  CHECK(world.upload.announce_at() == Clock::now() + limits::later_pause);
  REQUIRE(world.announce());
  CHECK(world.take(7, Verdict::ACCEPTED).value());
  CHECK(!world.state.pending());
}

TEST_CASE("an update that came too late goes back into the residual, however often") {
  UploadWorld world;
  std::vector<std::int64_t> late;
  for (const std::int64_t task : {1, 2, 3}) {
    world.settle(task, Verdict::STALE, "sign+ef");
    late.push_back(task);
    CHECK(world.residual_has_all_of(late));
  }
}

TEST_CASE("a refused update goes back into the residual, and a second one drops it") {
  UploadWorld world;
  world.settle(1, Verdict::REFUSED, "sign+ef");
  CHECK(world.residual_has_all_of({1}));
  SUBCASE("one after the other") {
    world.settle(2, Verdict::REFUSED, "sign+ef");
    CHECK(!world.has_residual());
  }
  SUBCASE("a late one between them does not count") {
    world.settle(2, Verdict::STALE, "sign+ef");
    CHECK(world.residual_has_all_of({1, 2}));
    world.settle(3, Verdict::REFUSED, "sign+ef");
    CHECK(!world.has_residual());
  }
  SUBCASE("an accepted one between them begins anew") {
    world.settle(2, Verdict::ACCEPTED, "sign+ef");
    world.settle(3, Verdict::REFUSED, "sign+ef");
    CHECK(world.has_residual());
    world.settle(4, Verdict::REFUSED, "sign+ef");
    CHECK(!world.has_residual());
  }
}

TEST_CASE("a full disk at the verdict puts it off, and its repetition counts as one refusal") {
  UploadWorld world;
  world.train(1, "sign+ef");
  REQUIRE(world.announce());
  world.files.space_limit(world.files.bytes_used() + 100);
  for (int times = 0; times < 3; ++times) {
    CHECK(world.take(1, Verdict::REFUSED).value());
    REQUIRE(world.upload.is_on());
    CHECK(world.state.pending());
    CHECK(world.upload.announce_at() == Clock::now() + limits::full_disk_pause);
    REQUIRE(world.announce());
  }
  world.files.space_limit(MemFiles::no_limit);
  CHECK(world.take(1, Verdict::REFUSED).value());
  CHECK(!world.upload.is_on());
  CHECK(!world.state.pending());
  CHECK(world.residual_has_all_of({1}));
}

TEST_CASE("a disk that fails at the verdict ends the client, and the update is still saved") {
  UploadWorld world;
  world.train(1, "sign+ef");
  REQUIRE(world.announce());
  world.files.fail_at(1);
  const auto taken = world.take(1, Verdict::ACCEPTED);
  REQUIRE(!taken);
  CHECK(taken.error().code() == Errc::io);
  CHECK(!world.upload.is_on());
  world.restart();
}

TEST_CASE("a saved update that can't be opened for now is tried again after a pause") {
  UploadWorld world;
  world.train(7);
  world.restart();
  world.files.files_limit(world.files.open_files());
  REQUIRE(world.prepare());
  CHECK(!world.upload.is_on());
  CHECK(world.worker.is_paused());
  CHECK(world.state.pending());
  world.files.files_limit(std::numeric_limits<int>::max());
  REQUIRE(world.prepare());
  CHECK(world.upload.is_on());
}

TEST_CASE("a damaged update is announced, because the server may have all of it") {
  UploadWorld world;
  world.train(7, "sign+ef");
  world.damage();
  REQUIRE(world.prepare());
  CHECK(world.upload.is_on());
  REQUIRE(world.announce());
  CHECK(world.link->sent.back().header.begin().task() == 7);
  SUBCASE("the server has accepted it") {
    CHECK(world.take(7, Verdict::ACCEPTED).value());
    CHECK(world.has_residual());
  }
  SUBCASE("the server wants no byte of it") {
    REQUIRE(world.resume(7, world.state.pending()->begin.bytes()));
    world.send_all();
    CHECK(world.link->sent.size() == 1);
    CHECK(world.take(7, Verdict::ACCEPTED).value());
  }
  SUBCASE("the server does not count it") {
    CHECK(world.take(7, Verdict::STALE).value());
    CHECK(!world.has_residual());  // Nothing that can't be read goes back.
  }
  CHECK(!world.state.pending());
}

TEST_CASE("a damaged update is forgotten when the server wants bytes of it") {
  UploadWorld world;
  world.train(7);
  world.damage();
  REQUIRE(world.prepare());
  REQUIRE(world.announce());
  SUBCASE("at once") {}
  SUBCASE("after the disk was full") {
    world.files.space_limit(world.files.bytes_used());
    world.files.copy_on_write(true);
    CHECK(world.resume(7, 0));
    CHECK(world.state.pending());
    CHECK(!world.upload.can_send());
    CHECK(world.upload.announce_at() == Clock::now() + limits::full_disk_pause);
    world.files.space_limit(MemFiles::no_limit);
    REQUIRE(world.announce());
  }
  const auto resumed = world.resume(7, world.state.pending()->begin.bytes() - 1);
  REQUIRE(!resumed);
  CHECK(resumed.error().code() == Errc::unavailable);
  CHECK(resumed.error().message() ==
        "training round 7 again, because its saved update can't be read");
  CHECK(!world.state.pending());
}

}  // namespace fl::test
