// SPDX-License-Identifier: Apache-2.0
// What a rank that holds a part of a model takes of memory, as the kernel counts it: each rank is a
// process.
#include "tests/client/site/rank_processes.hpp"
#include "tests/client/site/trained_ranks.hpp"
#include "tests/support/temporary_folder.hpp"  // libtorch before doctest: both have CHECK.

#include "client/site/shared_values.hpp"

#include <doctest/doctest.h>

#include <fstream>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::site;
namespace {

/// Memory of this process that is no file's, in MB.
float own_megabytes() {
  std::ifstream file("/proc/self/status");
  std::string word;
  float kilobytes = 0;
  while (file >> word)
    if (word == "RssAnon:") file >> kilobytes;
  return kilobytes / 1000;
}

constexpr float model_megabytes = 41.1F;  // 10,023,946 parameters.
constexpr float layer_megabytes = 16.8F;  // The largest unit.
constexpr float other_megabytes = 32;     // What libtorch takes with the first passes, and heaps.

/// What each of four ranks takes: before the training, and after it.
std::vector<std::vector<float>> memory_of(int zero) {
  Training training;
  training.model = "mlp:784-2048-2048-2048-10";
  training.zero = zero;
  training.settings = {.local_steps = 3, .batch_size = 4, .lr = 0.05, .seed = 9};
  // The model's vectors lie in files, as with an agent.
  const TemporaryFolder folder;
  const RankProcesses processes(4, [&](Ranks& ranks, const Ranks::Store&) {
    const float before = own_megabytes();
    const auto together = enter_parallel(ranks, training);
    const auto trainer = make_ranks_trainer(training, together.get());
    const std::size_t elements = trainer->layout().elements();
    const auto name = [&](const char* what) {
      return folder.path() / (what + std::to_string(ranks.rank()));
    };
    const auto weights = SharedValues::make(name("weights"), elements).value();
    const auto update = SharedValues::make(name("update"), elements).value();
    const auto train = [&](std::uint32_t steps) {
      training.settings.local_steps = steps;
      trainer->train(weights.values(), training.settings, {}, update.values(), {}).value();
      return own_megabytes() - before;
    };
    const float first = train(1);
    return std::vector<float>{first, train(training.settings.local_steps + 2)};
  });
  std::vector<std::vector<float>> all;
  for (int rank = 0; rank < 4; ++rank) all.push_back(processes.told(rank));
  return all;
}

}  // namespace

TEST_CASE("a rank with a part of a model takes memory for that part and a few layers") {
  for (const std::vector<float>& rank : memory_of(3)) {
    REQUIRE(rank.size() == 2);
    CAPTURE(rank[0]);
    for (const float megabytes : rank)
      CHECK(megabytes <= 4 * model_megabytes / 4 + 5 * layer_megabytes + other_megabytes);
    CHECK(rank[1] <= rank[0] + other_megabytes);  // Nothing is kept from step to step.
  }
  const float part = memory_of(3).front().back();
  const float whole = memory_of(0).front().back();
  MESSAGE("MB a rank: ", part, " with a part, ", whole, " with all, of a model of ",
          model_megabytes);
  CHECK(part < whole);
}

}  // namespace fl::test
