// SPDX-License-Identifier: Apache-2.0
// What a client keeps for its codec between rounds: a restart does not change the bytes that it
// uploads, and after damage to the state file it only starts afresh.
#include "client/state/client_state.hpp"

#include "kernels/kernels.hpp"
#include "shared/codec/payload/reader.hpp"
#include "shared/codec/spec/parser.hpp"
#include "tests/kernels/host_codec_device.hpp"
#include "tests/support/mem_files.hpp"
#include "tests/support/run_of.hpp"
#include "tests/support/stored.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::client;
using namespace fl::codec;
namespace {

const std::filesystem::path folder = "/state";

Layout matrix_layout() { return Layout::make({{"w", {30, 40}}, {"b", {30}}}).value(); }

std::vector<float> update_of(std::uint64_t round) {
  std::vector<float> x(matrix_layout().elements());
  kernels().gaussian(5, round, 0, x.data(), x.size());
  return x;
}

/// The bytes that the client would upload in this round.
std::string coded(ClientState& state, std::uint64_t round, std::string_view spec) {
  auto update = update_of(round);
  const auto codec = parse_codec(spec).value();
  save(state, run_of(matrix_layout()), update, *codec, round).value();
  const auto file = state.open_pending().value();
  std::string bytes(state.pending()->begin.bytes(), '\0');
  file->read_exactly(0, std::as_writable_bytes(std::span(bytes))).value();
  return bytes;
}

std::vector<std::string> state_files(MemFiles& files) {
  auto names = files.list(folder).value();
  std::erase_if(names, [](const auto& name) { return !name.starts_with("codec-state-"); });
  return names;
}

constexpr std::uint64_t rounds_made = 6;

/// The uploads of all rounds; `between` is called after each.
std::vector<std::string> uploads(MemFiles& files, std::string_view spec,
                                 const std::function<void(ClientState&, std::uint64_t)>& between) {
  auto state = ClientState::open(files, folder).value();
  state.enter_run("a run").value();
  std::vector<std::string> out;
  for (std::uint64_t round = 1; round <= rounds_made; ++round) {
    out.push_back(coded(state, round, spec));
    between(state, round);
  }
  return out;
}

void accept(ClientState& state, std::uint64_t) { state.settle_accepted().value(); }

TEST_CASE("a restart or a power loss between rounds does not change what is uploaded") {
  for (const char* spec : {"powersgd:2+ef", "powersgd:2", "topk:0.1,dense_below=0+ef"}) {
    CAPTURE(spec);
    MemFiles calm;
    const auto expected = uploads(calm, spec, accept);
    for (const bool is_power_loss : {false, true}) {
      MemFiles files;
      const auto restarted = [&](ClientState& state, std::uint64_t round) {
        // Once before and once after the update is settled.
        if (is_power_loss && round % 2 == 0) files.crash(round);
        state = ClientState::open(files, folder).value();
        if (state.pending()) accept(state, round);
        if (is_power_loss) files.crash(round);
        state = ClientState::open(files, folder).value();
      };
      CHECK(uploads(files, spec, restarted) == expected);
    }
    CHECK(state_files(calm).size() == (std::string_view(spec).starts_with("powersgd") ? 1 : 0));
  }
}

TEST_CASE("after damage or loss of its state file, the codec starts afresh") {
  const char* spec = "powersgd:2";
  MemFiles fresh;
  const auto begun_anew = uploads(fresh, spec, [&](ClientState& state, std::uint64_t round) {
    accept(state, round);
    if (round == 3) state.enter_run("another").value();
  });
  MemFiles calm;
  CHECK(uploads(calm, spec, accept) != begun_anew);
  for (const bool is_missing : {false, true}) {
    MemFiles files;
    const auto damage = [&](ClientState& state, std::uint64_t round) {
      accept(state, round);
      if (round != 3) return;
      const auto names = state_files(files);
      REQUIRE(names.size() == 1);
      if (is_missing) {
        files.remove(folder / names[0]).value();
      } else {
        const auto file = files.open(folder / names[0], OpenMode::update).value();
        file->write_at(20, std::as_bytes(std::span("x", 1))).value();
      }
      state = ClientState::open(files, folder).value();
    };
    CHECK(uploads(files, spec, damage) == begun_anew);
    CHECK(state_files(files).size() == 1);
  }
}

TEST_CASE("an unreadable pending update is forgotten, and coding it again gives the same bytes") {
  for (const char* spec : {"powersgd:2+ef", "topk:0.1,dense_below=0+dgc:0.9", "qsgd:2+ef"}) {
    CAPTURE(spec);
    MemFiles files;
    auto state = ClientState::open(files, folder).value();
    state.enter_run("a run").value();
    coded(state, 1, spec);
    state.settle_accepted().value();
    const std::string second = coded(state, 2, spec);
    const auto path = folder / state.pending()->file;
    files.open(path, OpenMode::update)
        .value()
        ->write_at(20, std::as_bytes(std::span("x", 1)))
        .value();
    state = ClientState::open(files, folder).value();
    REQUIRE(state.pending());
    CHECK(state.open_pending().error().code() == Errc::corrupt);
    state.forget_pending().value();
    CHECK(!files.exists(path));
    CHECK(coded(state, 2, spec) == second);
  }
}

TEST_CASE("a refused update can be dropped, together with the residual") {
  MemFiles files;
  auto state = ClientState::open(files, folder).value();
  coded(state, 1, "sign+ef");
  state.settle_accepted().value();
  const auto before = values_of(state.residual(matrix_layout()), matrix_layout());
  CHECK(std::ranges::any_of(before, [](float v) { return v != 0; }));
  coded(state, 2, "sign+ef");
  state.settle_unused(run_of(matrix_layout()), false).value();
  CHECK(values_of(state.residual(matrix_layout()), matrix_layout()) ==
        std::vector<float>(matrix_layout().elements()));
  state = ClientState::open(files, folder).value();
  CHECK(values_of(state.residual(matrix_layout()), matrix_layout()) ==
        std::vector<float>(matrix_layout().elements()));
}

TEST_CASE("a residual that was cut off is named") {
  MemFiles files;
  auto state = ClientState::open(files, folder).value();
  state.enter_run("a run").value();
  coded(state, 1, "qsgd:2+ef");
  for (const auto& name : files.list(folder).value()) {
    if (name.starts_with("residual-"))
      files.open(folder / name, OpenMode::update).value()->truncate(10).value();
  }
  const auto residual = state.residual(matrix_layout());
  REQUIRE(residual.has_error());
  CHECK(residual.error().code() == Errc::corrupt);
  CHECK(residual.error().message().starts_with("/state/residual-"));
}

TEST_CASE("a full disk while an update goes back into the residual leaves no new files") {
  MemFiles files;
  auto state = ClientState::open(files, folder).value();
  coded(state, 1, "sign+ef");
  const std::size_t there = files.list(folder).value().size();
  files.space_limit(files.bytes_used() + 100);
  for (int times = 0; times < 3; ++times) {
    CHECK(state.settle_unused(run_of(matrix_layout())).error().code() == Errc::no_space);
    CHECK(files.list(folder).value().size() == there);
  }
  files.space_limit(MemFiles::no_limit);
  state.settle_unused(run_of(matrix_layout())).value();
}

TEST_CASE("FedDyn's local vector advances by what the server decodes") {
  const auto strategy = parse_strategy("feddyn:alpha=0.5").value();
  const RunLayout layout = run_of(matrix_layout());
  for (const std::string spec : {"qsgd:1", "sign+ef"}) {
    CAPTURE(spec);
    MemFiles files;
    auto state = ClientState::open(files, folder).value();
    std::vector<float> sum(matrix_layout().elements());
    for (std::uint64_t round = 1; round <= 3; ++round) {
      auto update = update_of(round);
      const auto kept = values_of(state.local_values(update.size()), matrix_layout());
      const auto codec = parse_codec(spec).value();
      save(state, layout, update, *codec, round, {}, kept, strategy->local()).value();
      const auto file = state.open_pending().value();
      FileSource source(*file);
      auto reader = PayloadReader::open(source, state.pending()->begin.bytes(), layout.all).value();
      std::vector<float> sent(update.size());
      reader.decode_all(sent).value();
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] -= 0.5F * sent[i];
      state.settle_accepted().value();
    }
    CHECK(values_of(state.local_values(sum.size()), matrix_layout()) == sum);
  }
}

TEST_CASE("a refused update keeps the codec's state and goes back into the residual") {
  MemFiles refused_files;
  auto refused = ClientState::open(refused_files, folder).value();
  coded(refused, 1, "powersgd:2+ef");
  refused.settle_unused(run_of(matrix_layout())).value();
  const auto residual = values_of(refused.residual(matrix_layout()), matrix_layout());
  const auto whole = update_of(1);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    REQUIRE(residual[i] == doctest::Approx(whole[i]).epsilon(1e-4));
  }
  const auto names = state_files(refused_files);
  REQUIRE(names.size() == 1);

  // A codec without a state leaves the file alone.
  coded(refused, 2, "qsgd:8");
  refused.settle_accepted().value();
  CHECK(state_files(refused_files) == names);
  // A round later there is only the newer file.
  coded(refused, 3, "powersgd:2+ef");
  refused.settle_accepted().value();
  CHECK(state_files(refused_files).size() == 1);
  CHECK(state_files(refused_files) != names);
  refused.enter_run("another").value();
  CHECK(state_files(refused_files).empty());
}

TEST_CASE("only an accepted update becomes the reference of the next one") {
  MemFiles files;
  auto state = ClientState::open(files, folder).value();
  const auto codec = parse_codec("delta+qsgd:8").value();
  const auto reference = [&] {
    return values_of(state.reference(matrix_layout()), matrix_layout());
  };
  for (std::int64_t task = 1; task <= 3; ++task) {
    CAPTURE(task);
    const auto before = reference();
    wire::UploadBegin begin;
    begin.set_task(task);
    begin.set_reference(task == 3 ? 1 : task - 1);
    const auto round = static_cast<std::uint64_t>(task);
    save(state, run_of(matrix_layout()), update_of(round), *codec, round, begin).value();
    const bool is_refused = task == 2;
    (is_refused ? state.settle_unused(run_of(matrix_layout())) : state.settle_accepted()).value();
    CHECK((reference() == before) == is_refused);
  }
}

TEST_CASE("an update that a device coded wrongly is coded again, and nothing is lost") {
  const Layout layout = Layout::make({{"w", {4, 65'536}}}).value();
  std::vector<float> x(layout.elements());
  kernels().gaussian(5, 1, 0, x.data(), x.size());
  const auto codec = parse_codec("ecuq:4").value();
  const auto digest_with = [&](const DeviceCopy& device) {
    MemFiles files;
    auto state = ClientState::open(files, folder).value();
    auto update = x;
    save(state, run_of(layout), update, *codec, 1, {}, {}, nullptr, device).value();
    state.open_pending().value();
    return state.pending()->begin.digest();
  };
  const auto expected = digest_with({});
  // The first block is compared with the CPU's; of the other blocks the CPU checks that they
  // decode.
  for (const std::size_t right : {0u, 1u, 3u, 4u}) {
    CAPTURE(right);
    auto host = std::make_unique<twins::HostCodecDevice>();
    host->right_streams = right;
    DeviceCoder coder(std::move(host));
    CHECK(digest_with({.coder = &coder, .values = x.data()}) == expected);
    CHECK(coder.is_there() == (right == 4));
  }

  // The device fails before that check, but it has coded the wrong block.
  for (const int calls : {3, 4, 5, 6, 7}) {
    CAPTURE(calls);
    auto host = std::make_unique<twins::HostCodecDevice>();
    host->right_streams = 1;
    host->calls_left = calls;
    DeviceCoder coder(std::move(host));
    CHECK(digest_with({.coder = &coder, .values = x.data()}) == expected);
    CHECK_FALSE(coder.is_there());
  }

  // With error feedback: the residual after a second update, to which the first one was added.
  const auto residual_with = [&](std::size_t right) {
    MemFiles files;
    auto state = ClientState::open(files, folder).value();
    auto host = std::make_unique<twins::HostCodecDevice>();
    host->right_streams = right;
    DeviceCoder coder(right > 0 ? std::move(host) : nullptr);
    for (const std::uint64_t task : {1u, 2u}) {
      auto update = x;
      wire::UploadBegin begin;
      begin.set_task(task);
      save(state, run_of(layout), update, *parse_codec("ecuq:4+ef").value(), task, begin, {},
           nullptr, {.coder = &coder, .values = nullptr})
          .value();
      state.settle_accepted().value();
    }
    CHECK(coder.is_there() == (right == 8));
    return values_of(state.residual(layout), layout);
  };
  const auto of_cpu = residual_with(0);
  for (const std::size_t right : {5u, 7u, 8u}) {
    CAPTURE(right);
    const bool is_same = residual_with(right) == of_cpu;
    CHECK(is_same);
  }
}

}  // namespace
}  // namespace fl::test
