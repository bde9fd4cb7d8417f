// SPDX-License-Identifier: Apache-2.0
#include "server/round/decoded_intake.hpp"

#include "server/round/announcement.hpp"

#include <utility>

namespace fl::server {

Awaitable<Result<void>> DecodedIntake::open_round() {
  parts_.control.expect_strand();
  parts_.sums.begin();
  co_return success();
}

Awaitable<Result<void>> DecodedIntake::rebuild() {
  parts_.control.expect_strand();
  co_return co_await parts_.sums.rebuild();
}

Result<void> DecodedIntake::check(const wire::UploadBegin& begin, const Task& task) const {
  return check_coding(begin, task.record, parts_.control.plan.layout_of(task.part));
}

Awaitable<Result<UpdateIntake::Taken>> DecodedIntake::take(Task& task, TaskRecord& record,
                                                           const UploadGrant& grant) {
  parts_.control.expect_strand();
  const auto added = co_await parts_.sums.add(grant.upload, record);
  if (!added) {
    // Sums that could not be taken back are added up again from the spool by a restart.
    if (parts_.sums.is_broken()) co_return Error(Errc::internal, added.error().message());
    co_return added.error();
  }
  record.norm = added->norms.l2;
  const auto judged = co_await norms_.judge(task, record.norm);
  if (judged) {
    parts_.sums.count(*added);
    co_return Taken::counts;
  }
  if (judged.error().code() == Errc::cancelled)
    co_return judged.error();  // The process ends, and the sums with it.
  const auto undone = co_await parts_.sums.take_back(grant.upload, record);
  if (undone) co_return judged.error();
  if (will_pass(undone.error())) co_return Error(Errc::cancelled, "the server is shutting down");
  co_return Error(Errc::internal, "an update can't be taken back: " + undone.error().message());
}

Result<void> DecodedIntake::forget(const TaskRecord& refused, const Error& error) {
  if (!refused.codec.starts_with(codec::delta_prefix)) return {};
  const bool is_reference_bad = refused.reference != TaskId::none &&
                                (error.code() == Errc::not_found || error.code() == Errc::corrupt);
  return parts_.references.refuse(refused.client, refused.id, is_reference_bad);
}

Awaitable<Result<void>> DecodedIntake::settle() {
  parts_.control.expect_strand();
  co_return co_await parts_.sums.settle();
}

Awaitable<Result<std::vector<TaskCosine>>> DecodedIntake::cosines(const MeanSample& sample) {
  parts_.control.expect_strand();
  const ReadValues mean = [&sample](std::uint64_t first, std::span<float> out) {
    sample.read(first, out);
    return success();
  };
  auto work = [this, &mean, &sample]() -> Result<std::vector<TaskCosine>> {
    std::vector<TaskCosine> cosines;
    for (const auto& named : parts_.tasks.round().tasks) {
      const TaskRecord& task = named.second.record;
      if (task.state != TaskState::accepted) continue;
      const auto measure = [&](codec::PayloadReader& update, std::uint64_t,
                               const AdjustUpdate& adjust) -> Result<void> {
        FL_TRY(const auto sums, direction_sums(update, adjust, mean, sample.ranges()));
        if (const auto cosine = sums.cosine()) cosines.push_back({task.id, *cosine});
        return {};
      };
      FL_CHECK(parts_.sums.read_accepted(task, measure));
    }
    return cosines;
  };
  co_return co_await parts_.compute.run(std::move(work));
}

Awaitable<Result<std::vector<codec::LaneTally>>> DecodedIntake::lane_tallies(
    codec::LaneSteps steps) {
  parts_.control.expect_strand();
  auto work = [this, &steps]() -> Result<std::vector<codec::LaneTally>> {
    std::vector<codec::LaneTally> tallies(steps.size());
    const auto add = [&](codec::PayloadReader& update, std::uint64_t,
                         const AdjustUpdate&) -> Result<void> {
      std::vector<codec::LaneTally> own(steps.size());
      for (std::uint64_t i = 0; i < update.blocks(); ++i) {
        const std::uint32_t tensor = update.block(i).tensor;
        FL_CHECK(update.add_lane_tally(i, steps[tensor], own[tensor]));
      }
      for (std::size_t t = 0; t < own.size(); ++t) tallies[t] += own[t].of_client();
      return {};
    };
    for (const auto& named : parts_.tasks.round().tasks) {
      const TaskRecord& task = named.second.record;
      if (task.state == TaskState::accepted) FL_CHECK(parts_.sums.read_accepted(task, add));
    }
    return tallies;
  };
  co_return co_await parts_.compute.run(std::move(work));
}

}  // namespace fl::server
