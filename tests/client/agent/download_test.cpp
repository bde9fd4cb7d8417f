// SPDX-License-Identifier: Apache-2.0
// Downloads over a disk in memory, where values lie in memory, and over a real disk, where they lie
// in files: whole models and chains of deltas, broken off at any chunk and in any process.
#include "client/agent/download.hpp"

#include "shared/base/io/scratch_folder.hpp"
#include "shared/codec/encode/codec.hpp"
#include "shared/codec/encode/feedback.hpp"
#include "shared/codec/spec/parser.hpp"
#include "tests/support/mem_files.hpp"
#include "tests/support/print_result.hpp"
#include "tests/wire/simulation.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::client;
using namespace fl::codec;
namespace {

using client::Download;
using client::StoredValues;

const Layout& model_layout() {
  static const Layout layout = Layout::make({{"w", {30, 40}}, {"b", {7}}}).value();
  return layout;
}

std::vector<float> version_values(std::uint32_t version) {
  std::vector<float> values(model_layout().elements());
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(version) + 0.25F * static_cast<float>(i % 13);
  return values;
}

Digest digest_of(const std::vector<float>& values) {
  return Digest::of(std::as_bytes(std::span(values)));
}

/// One process of a client on a disk.
struct Process {
  Simulation& simulation;
  Offload offload;
  TaskGroup group{simulation.io.get_executor()};
  client::AgentEvents events{simulation.io.get_executor(), client::agent_events_max};
  client::Worker worker{offload, group, events};
  client::ValuePool pool;
  Download download{worker, pool, nullptr, 1, nullptr};

  Process(Simulation& all, Files& files, const std::filesystem::path& folder)
      : simulation(all), pool(files, folder, 0) {
    REQUIRE(download.open(files, folder));
  }

  Result<std::uint64_t> begin(const wire::ModelHeader& model) {
    return simulation.result_of(download.begin(model, model_layout()));
  }
  Result<void> take(std::uint32_t transfer, std::uint64_t offset, Bytes bytes) {
    wire::Header header;
    header.mutable_chunk()->set_transfer(transfer);
    header.mutable_chunk()->set_offset(offset);
    const Message message(std::move(header), Payload(nullptr, bytes));
    return simulation.result_of(download.take(message, model_layout()));
  }
  /// Sends the bytes from `at` to `end` in chunks of `step`.
  Result<void> send(std::uint32_t transfer, Bytes all, std::uint64_t at, std::uint64_t end,
                    std::uint64_t step) {
    for (; at < end; at += step)
      FL_CHECK(take(transfer, at, all.subspan(at, std::min(step, end - at))));
    return {};
  }
  [[nodiscard]] bool has(std::uint32_t version, const std::vector<float>& values) const {
    const auto model = download.find(version, digest_of(values).raw());
    return model != nullptr && std::ranges::equal(model->values(), values);
  }
};

wire::ModelHeader whole(std::uint32_t version, std::uint64_t offset = 0) {
  wire::ModelHeader model;
  model.set_transfer(version + 100);
  model.set_version(version);
  model.set_full(true);
  model.set_bytes(model_layout().bytes());
  model.set_offset(offset);
  model.set_digest(digest_of(version_values(version)).raw());
  return model;
}

/// Runs `test` with a disk in memory and with a real one.
template <class Test>
void on_both_disks(const Test& test) {
  MemFiles memory;
  memory.make_folder("/state").value();
  test(memory, "/state");
  const ScratchFolder folder = ScratchFolder::make("download").value();
  test(posix_files(), folder.path());
}

TEST_CASE("a whole model arrives in chunks that are no multiple of a value") {
  on_both_disks([](Files& files, const std::filesystem::path& folder) {
    Simulation simulation;
    Process process(simulation, files, folder);
    const auto values = version_values(3);
    const Bytes bytes = std::as_bytes(std::span(values));
    const auto fetch = process.download.request(3).fetch();
    CHECK(fetch.version() == 3);
    CHECK_FALSE(fetch.have_base());
    CHECK(fetch.offset() == 0);
    CHECK(process.begin(whole(3)).value() == bytes.size());
    CHECK(process.send(103, bytes, 0, bytes.size(), 1003));
    CHECK_FALSE(process.download.is_on());
    CHECK(process.has(3, values));
    CHECK(process.download.find(3, digest_of(version_values(4)).raw()) == nullptr);
    CHECK(process.download.find(2, digest_of(values).raw()) == nullptr);
  });
}

TEST_CASE("a download that breaks goes on at the same byte in the same process") {
  on_both_disks([](Files& files, const std::filesystem::path& folder) {
    Simulation simulation;
    Process process(simulation, files, folder);
    const auto values = version_values(3);
    const Bytes bytes = std::as_bytes(std::span(values));
    static_cast<void>(process.download.request(3));
    REQUIRE(process.begin(whole(3)));
    REQUIRE(process.send(103, bytes, 0, 2001, 1000));
    process.download.connection_lost();
    const auto fetch = process.download.request(3).fetch();
    CHECK(fetch.transfer() == 103);
    CHECK(fetch.offset() == 2001);
    CHECK(process.begin(whole(3, 2001)).value() == bytes.size() - 2001);
    CHECK(process.send(103, bytes, 2001, bytes.size(), 500));
    CHECK(process.has(3, values));
  });
}

TEST_CASE("a slow download goes on in the next process where the last one saved it") {
  on_both_disks([](Files& files, const std::filesystem::path& folder) {
    Simulation simulation;
    const auto values = version_values(3);
    const Bytes bytes = std::as_bytes(std::span(values));
    {
      Process process(simulation, files, folder);
      static_cast<void>(process.download.request(3));
      REQUIRE(process.begin(whole(3)));
      REQUIRE(process.send(103, bytes, 0, 2001, 1000));
      bool is_saved = false;
      const auto save = [](Download& download, bool& done) -> Awaitable<void> {
        co_await download.save_before_end();
        done = true;
      };
      simulation.spawn(save(process.download, is_saved));
      simulation.run();
      REQUIRE(is_saved);
    }
    Process process(simulation, files, folder);
    const auto fetch = process.download.request(3).fetch();
    CHECK(fetch.transfer() == 103);
    CHECK(fetch.offset() == 2001);
    REQUIRE(process.begin(whole(3, 2001)));
    CHECK(process.send(103, bytes, 2001, bytes.size(), 999));
    CHECK(process.has(3, values));
    for (const auto& name : files.list(folder).value()) CHECK_FALSE(name.starts_with("download-"));
  });
}

TEST_CASE("deltas are added one after the other to the version that is here") {
  on_both_disks([](Files& files, const std::filesystem::path& folder) {
    Simulation simulation;
    Process process(simulation, files, folder);
    const auto base = version_values(0);
    process.download.keep_version_0(digest_of(base), StoredValues(base));
    auto values = base;
    std::vector<std::byte> all;
    wire::ModelHeader model;
    model.set_transfer(7);
    model.set_version(2);
    for (std::uint32_t version = 1; version <= 2; ++version) {
      const std::vector<float> step(values.size(), 0.5F * static_cast<float>(version));
      std::vector<std::byte> payload;
      VectorSink sink(payload);
      const auto bytes = parse_codec("qsgd:7")
                             .value()
                             ->encode(model_layout(), step, CodeInputs(version), sink)
                             .value();
      payload.resize(bytes);
      SpanSource source(payload);
      auto reader = PayloadReader::open(source, bytes, model_layout()).value();
      add_decoded(values, reader).value();
      auto& delta = *model.add_deltas();
      delta.set_version(version);
      delta.set_bytes(bytes);
      all.insert(all.end(), payload.begin(), payload.end());
    }
    model.set_bytes(all.size());
    model.set_digest(digest_of(values).raw());
    const auto fetch = process.download.request(2).fetch();
    CHECK(fetch.have_base());
    CHECK(fetch.have_digest() == digest_of(base).raw());
    REQUIRE(process.begin(model));
    CHECK(process.send(7, all, 0, all.size(), 777));
    CHECK(process.has(2, values));
  });
}

TEST_CASE("a model with another digest is refused, and asked for again from its beginning") {
  on_both_disks([](Files& files, const std::filesystem::path& folder) {
    Simulation simulation;
    Process process(simulation, files, folder);
    const auto values = version_values(3);
    const Bytes bytes = std::as_bytes(std::span(values));
    auto model = whole(3);
    model.set_digest(digest_of(version_values(4)).raw());
    static_cast<void>(process.download.request(3));
    REQUIRE(process.begin(model));
    const auto taken = process.send(103, bytes, 0, bytes.size(), 4000);
    REQUIRE_FALSE(taken);
    CHECK(taken.error().code() == Errc::protocol);
    CHECK_FALSE(process.download.has_version());
    CHECK(process.download.request(3).fetch().offset() == 0);
  });
}

TEST_CASE("what was not asked for is refused before memory is taken") {
  MemFiles files;
  files.make_folder("/state").value();
  Simulation simulation;
  Process process(simulation, files, "/state");
  CHECK(process.begin(whole(1)).error().code() == Errc::protocol);  // No Fetch was sent.
  const auto values = version_values(1);
  CHECK(process.take(101, 0, std::as_bytes(std::span(values))).error().code() == Errc::protocol);
  static_cast<void>(process.download.request(1));
  auto larger = whole(1);
  larger.set_bytes(model_layout().bytes() + 4);
  CHECK(process.begin(larger).error().code() == Errc::protocol);
  auto behind = whole(1);
  behind.set_offset(8);
  CHECK(process.begin(behind).error().code() == Errc::protocol);
  auto deltas = whole(1);
  deltas.set_full(false);
  CHECK(process.begin(deltas).error().code() == Errc::protocol);  // There is no base.
  auto nameless = whole(1);
  nameless.set_digest("short");
  CHECK(process.begin(nameless).error().code() == Errc::protocol);
}

}  // namespace
}  // namespace fl::test
