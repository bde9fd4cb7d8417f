// SPDX-License-Identifier: Apache-2.0
#include "server/round/round_sums.hpp"

#include "server/round/spooled_rows.hpp"
#include "server/sums/robust_mean.hpp"
#include "server/versions/delay_compensation.hpp"
#include "shared/base/async/parallel.hpp"
#include "shared/base/failpoint.hpp"
#include "shared/base/limits.hpp"
#include "shared/codec/payload/reader.hpp"
#include "shared/codec/spec/parser.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace fl::server {

namespace {

/// The error when an accepted update's file is gone or damaged; it says what to do.
Error in_accepted(const TaskRecord& task, const Error& error) {
  const Error named = error.at(fmt::format("the accepted update {}", task.spool_file));
  if (named.code() != Errc::not_found && named.code() != Errc::corrupt) return named;
  return {
      named.code(),
      fmt::format("{}; the round can't go on without it: put the file back, or begin another run "
                  "with --new-run",
                  named.message())};
}

}  // namespace

void RoundSums::begin() {
  FL_ASSERT(parts_.tasks.has_round());
  const OpenRound& round = parts_.tasks.round();
  std::optional<std::uint64_t> seed;
  codec::SummedSketches sketches;
  // A robust rule reads each update decoded, so it is checked decoded too.
  if (parts_.plan.rule.is_mean()) {
    seed = parts_.plan.shared_seed_of(round_from(round.record.base_version));
    sketches = parts_.plan.summed_sketches(round.record.round);
  }
  const std::uint64_t expected = expected_weight();
  // Uses the last round's vector again: two would take twice the memory.
  if (sums_) {
    sums_->reset(expected, seed, std::move(sketches));
  } else {
    sums_ = std::make_unique<Accumulator>(layout(), expected, seed, std::move(sketches));
  }
}

void RoundSums::release() {
  FL_ASSERT(!parts_.tasks.has_round());
  sums_.reset();
}

const Layout& RoundSums::layout() const { return parts_.plan.layout_of(parts_.tasks.round().part); }

/// The weight that the round's updates will probably have. Rounds of a run are alike; for the first
/// round only its tasks are known.
std::uint64_t RoundSums::expected_weight() const {
  if (sums_ && sums_->total_weight() > 0) return sums_->total_weight();
  const OpenRound& round = parts_.tasks.round();
  double weight = 0;
  for (const auto& [client, task] : round.tasks)
    weight += static_cast<double>(parts_.tasks.discounted_weight_of(task.record));
  const auto tasks = static_cast<double>(std::max<std::size_t>(1, round.tasks.size()));
  return static_cast<std::uint64_t>(std::clamp(weight * round.record.target / tasks, 1.0, 0x1p62));
}

Awaitable<Result<void>> RoundSums::rebuild() {
  begin();
  const auto tasks = accepted_tasks();
  for (const TaskRecord& task : tasks) {
    auto work = [this, &task]() -> Result<void> {
      FL_TRY(const auto file, open_accepted(task));
      const auto added = add_file(*file, task.update_bytes, task);
      if (!added) return in_accepted(task, added.error());
      count(*added);
      return {};
    };
    FL_CO_CHECK(co_await parts_.store.with_room(parts_.compute, std::move(work)));
  }
  co_return success();
}

/// The weight of these tasks' updates in the sums, all together.
std::uint64_t RoundSums::discounted_weight_of(const std::vector<TaskRecord>& tasks) const {
  std::uint64_t sum = 0;
  for (const TaskRecord& task : tasks) sum += parts_.tasks.discounted_weight_of(task);
  return sum;
}

Awaitable<Result<void>> RoundSums::settle() {
  if (!parts_.plan.rule.is_mean()) co_return success();
  const auto tasks = accepted_tasks();
  FL_ASSERT(sums_ && !parts_.tasks.round().is_deciding());
  FL_ASSERT(sums_->total_weight() == discounted_weight_of(tasks));  // Each counts once.
  const auto visit = [this, &tasks](const Accumulator::AddUpdate& again) -> Result<void> {
    for (const TaskRecord& task : tasks) FL_CHECK(read_accepted(task, again));
    return {};
  };
  auto work = [this, &visit] { return sums_->settle(visit); };
  co_return co_await parts_.store.with_room(parts_.compute, std::move(work));
}

Result<ReadValues> RoundSums::mean() const {
  if (!parts_.plan.rule.is_mean()) return robust_mean();
  FL_ASSERT(sums_ && sums_->total_weight() > 0);
  const auto divisor =
      static_cast<double>(parts_.tasks.accepted_weight() * parts_.plan.mode.unit());
  return ReadValues([this, divisor](std::uint64_t first, std::span<float> out) {
    sums_->mean(first, divisor, out);
    return success();
  });
}

Result<ReadValues> RoundSums::robust_mean() const {
  struct Robust {
    SpooledRows rows;
    std::unique_ptr<File> center;
    std::optional<RobustMean> mean;
  };
  const auto reading = std::make_shared<Robust>();
  for (const TaskRecord& task : accepted_tasks()) {
    SpooledRows::Source source;
    source.open = [this, task] { return parts_.spool.open_accepted(task.spool_file); };
    source.adjust = [this, task] { return adjustment_of(task, Reading::again); };
    source.named = [task](const Error& error) { return in_accepted(task, error); };
    FL_CHECK(reading->rows.add(std::move(source), task.update_bytes, layout()));
  }
  const RunPlan& plan = parts_.plan;
  if (plan.rule.has_center()) {
    FL_TRY(reading->center, open_kept_mean(parts_.versions.files(), parts_.versions.folder(),
                                           parts_.tasks.round().record.base_version));
  }
  ReadValues center;
  if (reading->center) {
    center = [&file = *reading->center](std::uint64_t first, std::span<float> out) {
      return file.read_exactly(first * sizeof(float), std::as_writable_bytes(out));
    };
  }
  const int threads = std::min(threads_for(0), limits::robust_readers_max);
  reading->mean.emplace(plan.rule, reading->rows, plan.run_layout.parameter_elements, threads,
                        std::move(center));
  FL_CHECK(reading->mean->prepare());
  return ReadValues([reading](std::uint64_t first, std::span<float> out) {
    return reading->mean->read(first, out);
  });
}

std::vector<TaskRecord> RoundSums::accepted_tasks() const {
  std::vector<TaskRecord> accepted;
  for (const auto& [client, task] : parts_.tasks.round().tasks) {
    if (task.record.state == TaskState::accepted) accepted.push_back(task.record);
  }
  return accepted;
}

Result<std::shared_ptr<File>> RoundSums::open_accepted(const TaskRecord& task) const {
  auto file = parts_.spool.open_accepted(task.spool_file);
  if (!file) return in_accepted(task, file.error());
  return file;
}

Result<void> RoundSums::read_accepted(const TaskRecord& task,
                                      const Accumulator::AddUpdate& use) const {
  FL_TRY(const auto file, open_accepted(task));
  auto done = read(*file, task.update_bytes, task, Reading::again, use);
  if (!done) return in_accepted(task, done.error());
  return done;
}

Awaitable<Result<Accumulator::Added>> RoundSums::add(std::shared_ptr<Upload> upload,
                                                     TaskRecord& task) {
  FL_ASSERT(sums_ && upload->is_complete() && upload->task() == task.id);
  FL_ASSERT(task.state == TaskState::offered);
  auto work = [this, upload = std::move(upload), &task]() -> Result<Accumulator::Added> {
    FL_CHECK(parts_.spool.finish(*upload));
    failpoint("upload.synced");
    const TimePoint began = Clock::now();
    auto added = add_file(*upload->file(), upload->bytes(), task);
    task.decode_seconds = std::chrono::duration<double>(Clock::now() - began).count();
    return added;
  };
  co_return co_await parts_.compute.run(std::move(work));
}

Result<Accumulator::Added> RoundSums::add_file(File& file, std::uint64_t bytes,
                                               const TaskRecord& task) {
  std::optional<Accumulator::Added> added;
  const auto use = [&](codec::PayloadReader& reader, std::uint64_t weight,
                       const AdjustUpdate& adjust) -> Result<void> {
    FL_TRY(added, sums_->add(reader, weight, adjust));
    return {};
  };
  FL_CHECK(read(file, bytes, task, Reading::first, use));
  return std::move(*added);
}

Awaitable<Result<void>> RoundSums::take_back(std::shared_ptr<Upload> upload,
                                             const TaskRecord& task) {
  FL_ASSERT(sums_ && upload->task() == task.id && task.state == TaskState::offered);
  auto undo = [this, upload = std::move(upload), &task] {
    const auto use = [&](codec::PayloadReader& reader, std::uint64_t weight,
                         const AdjustUpdate& adjust) {
      return sums_->take_back(reader, weight, adjust);
    };
    return read(*upload->file(), upload->bytes(), task, Reading::again, use);
  };
  co_return co_await parts_.store.with_room(parts_.compute, std::move(undo));
}

/// Opens the update and gives it to `use`, with its weight and the function that changes it before
/// it is added.
Result<void> RoundSums::read(File& file, std::uint64_t bytes, const TaskRecord& task,
                             Reading reading, const Accumulator::AddUpdate& use) const {
  codec::FileSource source(file);
  FL_TRY(auto reader, codec::PayloadReader::open(source, bytes, layout()));
  FL_TRY(const auto codec, codec::parse_codec(task.codec));
  const Round round = round_from(task.base_version);
  reader.expect({.of_tensor = codec->factor_forms(layout()),
                 .shared_seed = parts_.plan.shared_seed_of(round)});
  FL_TRY(const AdjustUpdate adjust, adjustment_of(task, reading));
  return use(reader, parts_.tasks.discounted_weight_of(task), adjust);
}

Result<AdjustUpdate> RoundSums::adjustment_of(const TaskRecord& task, Reading reading) const {
  const RunPlan& plan = parts_.plan;
  if (task.codec.starts_with(codec::delta_prefix)) {
    return reading == Reading::first ? parts_.references.keep(task.id, task.reference)
                                     : parts_.references.apply(task.reference);
  }
  if (plan.mode.compensation == 0 || parts_.tasks.staleness_of(task) == 0) return AdjustUpdate();
  const TrainSettings work = plan.work_of(round_from(task.base_version), parts_.past.losses);
  const double factor = plan.mode.compensation / (work.lr * effective_steps(work, task.steps));
  return AdjustUpdate(
      DelayCompensation(parts_.versions.at(task.base_version),
                        parts_.versions.at(parts_.tasks.round().record.base_version), factor,
                        plan.run_layout.parameter_elements));
}

}  // namespace fl::server
