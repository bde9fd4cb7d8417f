// SPDX-License-Identifier: Apache-2.0
#include "server/round/next_version.hpp"

#include "server/sums/lane_steps.hpp"
#include "server/versions/make_version.hpp"

#include <string>
#include <utility>

namespace fl::server {

Awaitable<Result<CheckpointRecord>> NextVersion::make(std::filesystem::path to,
                                                      OpenMean open_mean) {
  const RunPlan& plan = parts_.plan;
  const Versions& versions = parts_.versions;
  const OpenRound& round = parts_.tasks.round();
  const auto base = versions.at(round.record.base_version);
  FL_ASSERT(base->part == round.part);
  const auto downlink =
      parse_downlink_codec(plan.settings.downlink_codec, round.record.round).value();
  const bool is_replay = to != versions.folder();
  // The files that a replay of kept updates needs stay, until the updates go (kept_updates.hpp).
  const bool drops_state = plan.kept_rounds == 0 && !is_replay;
  ReadValues mean;
  const StepJob job{versions.files(),
                    versions.folder(),
                    to,
                    plan.run_layout,
                    *base,
                    mean,
                    plan.rule.has_center() || is_replay,
                    *plan.strategy,
                    parts_.tasks.facts(parts_.past),
                    *downlink,
                    plan.settings.seed,
                    {{"run", plan.run.key},
                     {"model", plan.run.model},
                     {"clients", std::to_string(round.count(TaskState::accepted))}},
                    drops_state};
  const auto deltas = parts_.tasks.accepted_deltas();
  auto work = [this, &job, &mean, &deltas, &open_mean]() -> Result<CheckpointRecord> {
    FL_TRY(const ReadValues whole, open_mean());
    mean = sample_.keep_of(whole);
    FL_CHECK(parts_.references.sync(deltas));
    return make_next_version(job);
  };
  co_return co_await parts_.store.with_room(parts_.compute, std::move(work));
}

Awaitable<Result<std::string>> NextVersion::lane_steps(UpdateIntake& intake) const {
  const OpenRound& round = parts_.tasks.round();
  const std::vector<int> bits = parts_.plan.lane_bits(round.record.round);
  if (bits.empty()) co_return std::string();
  const auto base = parts_.versions.at(round.record.base_version);
  FL_CO_TRY(const auto before, codec::parse_lane_steps(base->record.lane_steps, bits.size()));
  FL_CO_TRY(const auto tallies, co_await intake.lane_tallies(before));
  co_return codec::to_bytes(next_steps(bits, before, tallies));
}

}  // namespace fl::server
