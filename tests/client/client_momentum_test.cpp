// SPDX-License-Identifier: Apache-2.0
// Error feedback with momentum at a client: the velocity is as durable as the residual, and both
// have the right values after refused updates.
#include "client/state/client_state.hpp"

#include "kernels/kernels.hpp"
#include "shared/codec/encode/feedback.hpp"
#include "shared/codec/spec/parser.hpp"
#include "tests/support/mem_files.hpp"
#include "tests/support/run_of.hpp"
#include "tests/support/stored.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::client;
using namespace fl::codec;
namespace {

const std::filesystem::path state_folder = "/state";
constexpr std::string_view dgc_codec = "topk:0.1,dense_below=0+kbit:4+dgc:0.9";

Layout two_tensors() { return Layout::make({{"w", {30, 40}}, {"b", {30}}}).value(); }

std::vector<float> gaussian_update(std::uint64_t round) {
  std::vector<float> x(two_tensors().elements());
  kernels().gaussian(5, round, 0, x.data(), x.size());
  return x;
}

void code(ClientState& state, std::uint64_t round) {
  auto update = gaussian_update(round);
  const auto codec = parse_codec(dgc_codec).value();
  save(state, run_of(two_tensors()), update, *codec, round).value();
}

/// The decoded values of the pending update.
std::vector<float> pending_values(ClientState& state) {
  const Layout layout = two_tensors();
  const auto file = state.open_pending().value();
  FileSource source(*file);
  auto reader = PayloadReader::open(source, state.pending()->begin.bytes(), layout).value();
  std::vector<float> out(layout.elements());
  reader.decode_all(out).value();
  return out;
}

/// The residual and velocity after the same updates, computed in memory.
struct Expected {
  std::vector<float> residual = std::vector<float>(two_tensors().elements());
  std::vector<float> velocity = residual;

  void go_on(std::uint64_t round, const std::vector<float>& sent, bool is_refused) {
    std::vector<float> whole = gaussian_update(round);
    add_velocity(whole, velocity, 0.9f);
    add_residual(whole, residual);
    for (std::size_t i = 0; i < sent.size(); ++i) {
      if (sent[i] != 0) velocity[i] = 0;
      residual[i] = whole[i] - sent[i];
      if (is_refused) residual[i] += sent[i];
    }
  }
};

std::size_t velocity_files(MemFiles& files) {
  const auto names = files.list(state_folder).value();
  return static_cast<std::size_t>(
      std::ranges::count_if(names, [](const auto& name) { return name.starts_with("velocity-"); }));
}

TEST_CASE("residual and velocity survive restarts, power losses and refused updates") {
  for (const bool is_power_loss : {false, true}) {
    // A state that lives longer writes new vectors over the files of old ones.
    for (const std::uint64_t restart_every : {1, 4}) {
      CAPTURE(is_power_loss);
      CAPTURE(restart_every);
      MemFiles files;
      auto state = ClientState::open(files, state_folder).value();
      state.enter_run("a run").value();
      Expected expected;
      for (std::uint64_t round = 1; round <= 9; ++round) {
        code(state, round);
        if (round % restart_every == 0) {
          if (is_power_loss) files.crash(round);
          state = ClientState::open(files, state_folder).value();
        }
        REQUIRE(state.pending().has_value());
        const bool is_refused = round % 3 == 0;
        expected.go_on(round, pending_values(state), is_refused);
        if (is_refused) {
          state.settle_unused(run_of(two_tensors())).value();
        } else {
          state.settle_accepted().value();
        }
        // A wrong velocity would show in the next round's residual.
        CHECK(values_of(state.residual(two_tensors()), two_tensors()) == expected.residual);
        // The file of this round, and the one of the round before, over which the next is written.
        CHECK(velocity_files(files) <= 2);
      }
      state.enter_run("another").value();
      CHECK(velocity_files(files) == 0);
      code(state, 1);
      Expected anew;
      anew.go_on(1, pending_values(state), false);
      CHECK(values_of(state.residual(two_tensors()), two_tensors()) == anew.residual);
    }
  }
}

}  // namespace
}  // namespace fl::test
