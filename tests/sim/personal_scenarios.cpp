// What clients keep to themselves, and where their people find it.
#include "client/state.hpp"
#include "shared/params/safetensors.hpp"
#include "tests/sim/scenario.hpp"

#include <algorithm>

namespace fl::test {
namespace {

struct Kept {
  const char* strategy;
  std::vector<std::string> tensors;  // In the file.
  std::uint64_t values;              // That the client's state keeps; the last of them in the file.
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
    CHECK(std::ranges::equal(std::span(kept).last(values.size()), values));
    const auto made = world.options().problem.initial_weights(world.options().settings.seed);
    // Trained, not as the seed made them.
    CHECK(std::search(made.begin(), made.end(), values.begin(), values.end()) == made.end());
  }
}

TEST_CASE("what a client has made for itself lies in its folder when the run is over") {
  const std::uint64_t all = calm(2).problem.layout.elements();
  const std::vector<std::string> model{"body.weight", "body.bias", "scale"};
  for (const Kept& expected :
       {Kept{"ditto:lambda=0.5", model, all}, Kept{"fedavg:personal=scale", {"scale"}, 1},
        Kept{"scaffold:personal=*.bias", {"body.bias"}, all}, Kept{"feddyn", {}, 0}}) {
    CAPTURE(expected.strategy);
    WorldOptions options = calm(2);
    options.settings.strategy = expected.strategy;
    World world(options);
    REQUIRE(world.run());
    CHECK(check(world));
    check_files(world, expected);
  }
}

}  // namespace
}  // namespace fl::test
