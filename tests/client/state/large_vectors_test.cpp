// SPDX-License-Identifier: Apache-2.0
// A client whose vectors lie in files on a real disk uploads and keeps the same, bit for bit, as
// one that has them in memory.
#include "client/state/client_state.hpp"
#include "kernels/kernels.hpp"
#include "shared/base/io/scratch_folder.hpp"
#include "shared/codec/spec/parser.hpp"
#include "tests/support/mem_files.hpp"
#include "tests/support/print_result.hpp"
#include "tests/support/stored.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::client;
using namespace fl::codec;
namespace {

struct Kept {
  std::vector<std::string> uploads;
  std::vector<double> nmse;
  std::vector<float> residual, reference, local_values;
  bool operator==(const Kept&) const = default;
};

/// Trains and settles four rounds, of which the third is refused.
Kept live(Files& files, const std::filesystem::path& folder, const char* codec, const char* method,
          int threads, std::uint64_t memory_bytes_max) {
  const auto strategy = parse_strategy(method).value();
  const auto layout =
      run_layout(Layout::make({{"w", {300, 400}}, {"b", {300}}}).value(), *strategy).value();
  const bool keeps = strategy->local() != nullptr && strategy->local()->keeps_vector();
  const std::uint64_t kept_elements = keeps ? layout.parameter_elements : 0;
  ClientState state(files, folder, threads, memory_bytes_max);
  state.load().value();
  state.enter_run("a run").value();
  Kept out;
  for (std::int64_t round = 1; round <= 4; ++round) {
    auto update = state.scratch().borrow(layout.all.elements()).value();
    std::vector<float> values(layout.all.elements());
    kernels().gaussian(5, static_cast<std::uint64_t>(round), 0, values.data(), values.size());
    client::copy_values(values, update).value();
    auto local = state.new_local_values(kept_elements).value();
    if (keeps) {
      auto before = values_of(state.local_values(kept_elements), kept_elements);
      for (std::size_t i = 0; i < before.size(); ++i) before[i] += values[i];
      client::copy_values(before, local.values).value();
    }
    wire::UploadBegin begin;
    begin.set_task(round);
    if (round > 1) begin.set_reference(round == 4 ? 2 : round - 1);
    state
        .save_update(layout, update, *parse_codec(codec).value(), static_cast<std::uint64_t>(round),
                     begin, std::move(local), strategy->local())
        .value();
    out.nmse.push_back(state.pending()->begin.nmse());
    std::string bytes(state.pending()->begin.bytes(), '\0');
    const auto file = state.open_pending().value();
    file->read_exactly(0, std::as_writable_bytes(std::span(bytes))).value();
    out.uploads.push_back(std::move(bytes));
    (round == 3 ? state.settle_unused(layout) : state.settle_accepted()).value();
  }
  out.residual = values_of(state.residual(layout.all), layout.all);
  out.reference = values_of(state.reference(layout.all), layout.all);
  out.local_values = values_of(state.local_values(kept_elements), kept_elements);
  return out;
}

TEST_CASE("vectors in files give the same uploads and the same state as vectors in memory") {
  const std::pair<const char*, const char*> ways[] = {{"none", "fedavg"},
                                                      {"ecuq:1+ef", "fedavg"},
                                                      {"topk:0.1+kbit:4+dgc:0.9", "fedavg"},
                                                      {"delta+qsgd:8", "fedavg"},
                                                      {"powersgd:2+ef", "fedavg"},
                                                      {"qsgd:7", "feddyn:alpha=0.5"},
                                                      {"qsgd:7+ef", "scaffold"},
                                                      {"delta+qsgd:7", "scaffold"},
                                                      {"none+ef", "scaffold"}};
  for (const auto& way : ways) {
    const char* const codec = way.first;
    const char* const method = way.second;
    CAPTURE(std::string(codec));
    CAPTURE(std::string(method));
    MemFiles memory;
    const Kept wanted = live(memory, "/state", codec, method, 1, 1 << 30);
    for (const int threads : {1, 3}) {
      CAPTURE(threads);
      const ScratchFolder folder = ScratchFolder::make("large").value();
      CHECK(live(posix_files(), folder.path(), codec, method, threads, 0) == wanted);
      for (const auto& name : posix_files().list(folder.path()).value())
        CHECK_FALSE(name.starts_with("scratch-"));
    }
  }
}

TEST_CASE("a residual that is cut while it is read ends the job, and the state stays") {
  const ScratchFolder folder = ScratchFolder::make("large").value();
  ClientState state(posix_files(), folder.path(), 1, 0);
  state.load().value();
  const RunLayout layout{.all = Layout::make({{"w", {300, 400}}}).value(),
                         .parameter_elements = 120'000,
                         .model_elements = 120'000,
                         .personal_elements = 0,
                         .stretches = {{false, 120'000}}};
  const std::vector<float> update(120'000, 1.0F);
  const auto codec = parse_codec("qsgd:2+ef").value();
  save(state, layout, update, *codec, 1).value();
  state.settle_accepted().value();
  std::filesystem::path residual;
  for (const auto& name : posix_files().list(folder.path()).value())
    if (name.starts_with("residual-")) residual = folder.path() / name;
  posix_files().open(residual, OpenMode::update).value()->truncate(100'000).value();
  const auto saved = save(state, layout, update, *codec, 2);
  REQUIRE_FALSE(saved);
  CHECK(saved.error().code() == Errc::corrupt);
  CHECK(saved.error().message().starts_with(residual.string()));
  CHECK_FALSE(state.pending());
}

}  // namespace
}  // namespace fl::test
