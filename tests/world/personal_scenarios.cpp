// SPDX-License-Identifier: Apache-2.0
// The tensors that clients keep to themselves, and the file to which they are exported.
#include "client/state/client_state.hpp"
#include "shared/codec/spec/parser.hpp"
#include "shared/params/safetensors.hpp"
#include "tests/support/run_of.hpp"
#include "tests/support/stored.hpp"
#include "tests/world/scenario.hpp"

#include <algorithm>

namespace fl::test {

using namespace fl::client;
using namespace fl::codec;
namespace {

struct Kept {
  const char* strategy;
  std::vector<std::string> tensors;  // In the exported file.
  std::uint64_t values;              // Local values in the client's state; the file has the last.
};

void check_files(World& world, const Kept& expected) {
  const auto history = History::open(world);
  REQUIRE(history);
  for (auto& [name, client] : world.clients()) {
    const std::string path = fmt::format("/state/personal-{}.safetensors", history->run.key);
    CHECK(client.disk.exists(path) == !expected.tensors.empty());
    if (expected.tensors.empty()) continue;
    const auto file = client.disk.open(path, OpenMode::read).value();
    const auto info = read_safetensors_header(*file).value();
    std::vector<std::string> names;
    for (const auto& tensor : info.layout.tensors()) names.push_back(tensor.name);
    CHECK(names == expected.tensors);
    std::vector<float> values(info.layout.elements());
    REQUIRE(read_safetensors(*file, info.layout, values));
    const auto state = ClientState::open(client.disk, "/state").value();
    const auto kept = state.local_values(expected.values).value();
    REQUIRE(kept.size() >= values.size());
    CHECK(std::ranges::equal(kept.values().last(values.size()), values));
    const auto made = world.options().problem.initial_weights(world.options().settings.seed);
    // The values are trained, not the initial ones.
    CHECK(std::search(made.begin(), made.end(), values.begin(), values.end()) == made.end());
  }
}

TEST_CASE("a client exports its own tensors to its state folder when the run is over") {
  const std::uint64_t all = calm(2).problem.layout.elements();
  const std::vector<std::string> model{"body.weight", "body.bias", "scale", "norm.running_mean"};
  for (const Kept& expected :
       {Kept{"ditto:lambda=0.5", model, all}, Kept{"fedavg:personal=scale", {"scale"}, 1},
        Kept{"fedavg:personal=norm.*", {"norm.running_mean"}, 2},
        Kept{"scaffold:personal=*.bias", {"body.bias"}, all - 2}, Kept{"feddyn", {}, 0}}) {
    CAPTURE(expected.strategy);
    WorldOptions options = calm(2);
    options.settings.strategy = expected.strategy;
    World world(options);
    REQUIRE(world.run());
    CHECK(check(world));
    check_files(world, expected);
  }
}

TEST_CASE("a client killed at a run's end exports its own tensors when it enters another run") {
  for (const char* const strategy : {"ditto:lambda=0.5", "fedavg:personal=scale"}) {
    CAPTURE(strategy);
    MemFiles files;
    const client::OwnTensors own{"toy", strategy, {{"body.bias", {2}}, {"scale", {}}}, 5};
    const Layout layout = Layout::make({{"body.weight", {2}}, {"body.bias", {2}}}).value();
    std::vector<float> kept{1, 2, 3, 4, 5};
    {
      auto state = ClientState::open(files, "/state").value();
      state.enter_run("run-1").value();
      state.set_own_tensors(own);
      CHECK(state.export_own_tensors().value().empty());
      std::vector<float> update(layout.elements(), 1.0F);
      const auto codec = parse_codec("none").value();
      save(state, run_of(layout), update, *codec, 1, {}, kept).value();
      CHECK(state.export_own_tensors().value().empty());  // Not accepted yet.
      state.settle_accepted().value();
    }
    auto state = ClientState::open(files, "/state").value();
    CHECK_FALSE(files.exists("/state/personal-run-1.safetensors"));
    // Fail each operation in turn: no value is removed before it is exported.
    int failures = 0;
    for (std::uint64_t n = 1;; ++n) {
      files.fail_at(n);
      const auto entered = state.enter_run("run-2");
      if (entered) break;
      ++failures;
      CHECK(entered.error().code() == Errc::io);
      // The last operations remove what is exported by then.
      const bool is_exported = files.exists("/state/personal-run-1.safetensors");
      CHECK((is_exported || values_of(state.local_values(5), 5) == kept));
    }
    CHECK(failures >= 5);
    files.fail_at(0);
    const auto file = files.open("/state/personal-run-1.safetensors", OpenMode::read).value();
    const auto info = read_safetensors_header(*file).value();
    CHECK(std::ranges::count(info.metadata,
                             std::pair(std::string("strategy"), std::string(strategy))) == 1);
    std::vector<float> values(info.layout.elements());
    REQUIRE(read_safetensors(*file, info.layout, values));
    CHECK(values == std::vector<float>{3, 4, 5});
    CHECK(state.local_values(5).value().size() == 0);
    CHECK(state.export_own_tensors().value().empty());
  }
}

TEST_CASE("a client can enter another run even if its own tensors are unreadable") {
  MemFiles files;
  const Layout layout = Layout::make({{"body", {2}}}).value();
  std::vector<float> kept{1, 2};
  {
    auto state = ClientState::open(files, "/state").value();
    state.enter_run("run-1").value();
    state.set_own_tensors(client::OwnTensors{"toy", "ditto", {{"body", {2}}}, 2});
    std::vector<float> update(2, 1.0F);
    save(state, run_of(layout), update, *parse_codec("none").value(), 1, {}, kept).value();
    state.settle_accepted().value();
  }
  for (const auto& name : files.list("/state").value())
    if (name.starts_with("local-values-"))
      files.remove(std::filesystem::path("/state") / name).value();
  auto state = ClientState::open(files, "/state").value();
  CHECK(state.enter_run("run-2").value());
  CHECK_FALSE(files.exists("/state/personal-run-1.safetensors"));
}

}  // namespace
}  // namespace fl::test
