// SPDX-License-Identifier: Apache-2.0
// Power losses and kills at every change that a client makes on its disk, through some rounds with
// each kind of state. What was promised is still there afterwards, and the client goes on to the
// same uploads and the same state as if nothing had happened.
#include "client/state/client_state.hpp"

#include "kernels/kernels.hpp"
#include "shared/codec/spec/parser.hpp"
#include "tests/support/mem_files.hpp"
#include "tests/support/print_result.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/stored.hpp"

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::client;
using namespace fl::codec;
namespace {

const std::filesystem::path home = "/state";
constexpr std::uint64_t last_round = 4;
constexpr std::uint64_t refused_round = 3;

/// A codec and a method, by what they keep.
struct Way {
  const char* codec;
  const char* strategy;
  /// Whether something is kept that must fit the update's bytes, so that these are durable too.
  bool is_kept;
};

constexpr Way ways[] = {{"qsgd:1", "fedavg", false},
                        {"sign+ef", "fedavg", true},
                        {"topk:0.1,dense_below=0+kbit:4+dgc:0.9", "fedavg", true},
                        {"delta+qsgd:8", "fedavg", true},
                        {"powersgd:2", "fedavg", false},
                        {"powersgd:2+ef", "fedavg", true},
                        {"qsgd:7", "feddyn:alpha=0.5", true},
                        {"qsgd:7+ef", "scaffold", true}};

/// A client's life on one disk. It goes on after each death where it was.
class Life {
 public:
  explicit Life(const Way& way)
      : way_(way),
        strategy_(parse_strategy(way.strategy).value()),
        layout_(
            run_layout(Layout::make({{"w", {30, 40}}, {"b", {30}}}).value(), *strategy_).value()) {}

  MemFiles files;
  std::map<std::uint64_t, std::string> uploads;          // By round.
  std::vector<float> residual, reference, local_values;  // At the end.

  /// Returns whether the last round is over; false if the disk failed.
  bool go_on() {
    auto opened = ClientState::open(files, home);
    if (!opened || !opened->enter_run("a run")) return false;
    ClientState& state = *opened;
    look_back(state);
    while (round_ <= last_round) {
      if (!is_saved_ && !save(state)) return false;
      is_saved_ = true;
      if (const auto read = read_upload(state); !read) {
        if (read.error().code() == Errc::io) return false;
        CHECK_FALSE(way_.is_kept);  // Only bytes that nothing depends on may be lost.
        is_saved_ = false;
        if (!state.forget_pending()) return false;
        continue;
      }
      is_settling_ = true;
      if (!(round_ == refused_round ? state.settle_unused(layout_) : state.settle_accepted()))
        return false;
      end_round();
    }
    residual = values_of(state.residual(layout_.all), layout_.all);
    reference = values_of(state.reference(layout_.all), layout_.all);
    local_values = values_of(state.local_values(local_elements()), local_elements());
    return true;
  }

 private:
  [[nodiscard]] std::uint64_t local_elements() const {
    const bool keeps = strategy_->local() != nullptr && strategy_->local()->keeps_vector();
    return keeps ? layout_.parameter_elements : 0;
  }

  void end_round() {
    ++round_;
    is_saved_ = is_settling_ = false;
  }

  /// Checks the properties that a state has which was just opened.
  void look_back(const ClientState& state) {
    if (state.pending()) {
      CHECK(static_cast<std::uint64_t>(state.pending()->begin.task()) == round_);
      is_saved_ = true;
    } else if (is_saved_) {
      CHECK(is_settling_);  // Otherwise an update is lost that was saved.
      end_round();
    }
  }

  bool save(ClientState& state) {
    std::vector<float> update(layout_.all.elements());
    kernels().gaussian(5, round_, 0, update.data(), update.size());
    const auto before = state.local_values(local_elements());
    if (!before) return false;
    auto kept = values_of(*before, local_elements());
    for (std::size_t i = 0; i < kept.size(); ++i) kept[i] += update[i];
    wire::UploadBegin begin;
    begin.set_task(static_cast<std::int64_t>(round_));
    // The refused update is no reference.
    if (round_ > 1) begin.set_reference(static_cast<std::int64_t>(round_ == 4 ? 2 : round_ - 1));
    return test::save(state, layout_, update, *parse_codec(way_.codec).value(), round_, begin, kept,
                      strategy_->local())
        .has_value();
  }

  Result<void> read_upload(ClientState& state) {
    FL_TRY(const auto file, state.open_pending());
    std::string bytes(state.pending()->begin.bytes(), '\0');
    FL_CHECK(file->read_exactly(0, std::as_writable_bytes(std::span(bytes))));
    uploads[round_] = std::move(bytes);
    return {};
  }

  const Way way_;
  std::shared_ptr<const Strategy> strategy_;
  RunLayout layout_;
  std::uint64_t round_ = 1;
  bool is_saved_ = false;     // The round's update is pending.
  bool is_settling_ = false;  // The verdict on it has come.
};

TEST_CASE("a client goes on unchanged after a power loss or a kill at any change of its disk") {
  for (const Way& way : ways) {
    CAPTURE(std::string(way.codec));
    CAPTURE(std::string(way.strategy));
    Life calm(way);
    REQUIRE(calm.go_on());
    const std::uint64_t changes = calm.files.operations().changes;
    CHECK(changes > 20);
    for (std::uint64_t n = 1; n <= changes; ++n) {
      CAPTURE(n);
      for (std::uint64_t seed = 0; seed < or_sanitized<std::uint64_t>(8, 4); ++seed) {
        CAPTURE(seed);
        Life life(way);
        life.files.cut_power_at(n);
        REQUIRE_FALSE(life.go_on());
        if (seed == 0) {
          life.files.kill();
        } else {
          life.files.crash(8 * n + seed);  // Equal seeds lose the same changes.
        }
        REQUIRE(life.go_on());
        CHECK(life.uploads == calm.uploads);
        CHECK(life.residual == calm.residual);
        CHECK(life.reference == calm.reference);
        CHECK(life.local_values == calm.local_values);
      }
    }
  }
}

}  // namespace
}  // namespace fl::test
