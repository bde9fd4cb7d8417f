// SPDX-License-Identifier: Apache-2.0
#include "server/round/round_sums.hpp"

#include "server/versions/delay_compensation.hpp"
#include "shared/base/failpoint.hpp"
#include "shared/codec/payload/reader.hpp"

#include <fmt/format.h>

namespace fl {

void RoundSums::begin() {
  parts_.control.expect_strand();
  const OpenRound& round = parts_.tasks.round();
  const FixedPoint fixed{round.record.range_log2, round.record.fraction_bits, round.weight_bound};
  const std::uint64_t seed = parts_.plan.shared_seed_of(round.record.base_version + 1);
  SummedSketches sketches = parts_.plan.summed_sketches(round.record.round);
  // The vector of the round before is used again: two would be twice the memory.
  if (sums_) {
    sums_->reset(fixed, seed, std::move(sketches));
  } else {
    sums_ = std::make_unique<Accumulator>(parts_.plan.layout, fixed, seed, std::move(sketches));
  }
}

Awaitable<Result<void>> RoundSums::rebuild() {
  parts_.control.expect_strand();
  begin();
  for (const auto& entry : parts_.tasks.round().tasks) {
    const TaskRecord& task = entry.second.record;
    if (task.state != TaskState::accepted) continue;
    std::shared_ptr<File> file;
    auto work = [this, &task, &file]() -> Result<void> {
      if (!file) {
        FL_TRY(file, parts_.spool.open_accepted(task.spool_file));
      }
      FL_TRY([[maybe_unused]] auto norms, add(*file, task.update_bytes, task));
      return {};
    };
    const auto added = co_await parts_.store.with_room(parts_.compute, std::move(work));
    if (added) continue;
    const Error error = added.error().at(fmt::format("the accepted update {}", task.spool_file));
    if (error.code() != Errc::not_found && error.code() != Errc::corrupt) co_return error;
    co_return Error(error.code(),
                    fmt::format("{}; the round can't go on without it: put the file back, or begin "
                                "another run with --new-run",
                                error.message()));
  }
  co_return success();
}

/// The format of a round about whose updates nothing is known.
FixedPoint RoundSums::widest() const {
  const OpenRound& round = parts_.tasks.round();
  return choose_fixed_point(parts_.versions.at(round.record.base_version)->record.value_max,
                            round.weight_bound);
}

bool RoundSums::can_widen() const {
  return parts_.tasks.round().record.range_log2 < widest().range_log2;
}

Awaitable<Result<void>> RoundSums::widen() {
  parts_.control.expect_strand();
  OpenRound& round = parts_.tasks.round();
  const FixedPoint wide = widest();
  parts_.control.report(EventLevel::info,
                        fmt::format("round {}: an update is much larger than all before; the range "
                                    "of the sums becomes 2^{}",
                                    round.record.round, wide.range_log2));
  auto write = [run = parts_.plan.run.id, number = round.record.round, wide](Store& store) {
    return store.set_fixed_point(run, number, wide.range_log2, wide.fraction_bits);
  };
  FL_CO_CHECK(co_await parts_.store.with_store(std::move(write)));
  failpoint("round.widened");
  round.record.range_log2 = wide.range_log2;
  round.record.fraction_bits = wide.fraction_bits;
  FL_CO_CHECK(co_await rebuild());
  round.is_too_narrow = false;
  parts_.control.changed.notify();
  co_return success();
}

Result<UpdateNorms> RoundSums::add(File& file, std::uint64_t bytes, const TaskRecord& task) {
  FileSource source(file);
  FL_TRY(auto reader, PayloadReader::open(source, bytes, parts_.plan.layout));
  FL_TRY(const AdjustUpdate adjust, adjustment_of(task));
  return sums_->add(reader, parts_.tasks.discounted_weight_of(task), adjust);
}

Result<AdjustUpdate> RoundSums::adjustment_of(const TaskRecord& task) const {
  const RunPlan& plan = parts_.plan;
  if (task.codec.starts_with(delta_prefix)) return parts_.references.keep(task.id, task.reference);
  if (plan.mode.compensation == 0 || parts_.tasks.staleness_of(task) == 0) return AdjustUpdate();
  const TrainSettings work = plan.work_of(task.base_version + 1, parts_.past.losses);
  const double factor = plan.mode.compensation / (work.lr * effective_steps(work, task.steps));
  return AdjustUpdate(
      DelayCompensation(parts_.versions.at(task.base_version),
                        parts_.versions.at(parts_.tasks.round().record.base_version), factor,
                        plan.run_layout.parameter_elements));
}

}  // namespace fl
