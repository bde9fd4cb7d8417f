// SPDX-License-Identifier: Apache-2.0
#include "server/round/norm_judge.hpp"

#include <fmt/format.h>

namespace fl::server {

Awaitable<Result<void>> NormJudge::judge(Task& task, double norm) {
  FL_ASSERT(task.is_deciding && !task.has_norm && !task.waits_for_others);
  const double limit = control_.plan.settings.norm_limit;
  if (limit == 0) co_return success();
  OpenRound& round = tasks_.round();
  norms_of(round).add(task.record.client, norm);
  task.has_norm = true;
  for (;;) {
    const JudgedNorm verdict = judged(round, norm);
    const bool has_waited = task.waits_for_others;
    task.waits_for_others = verdict.verdict == NormVerdict::waits;
    if (verdict.verdict == NormVerdict::fits) co_return success();
    if (verdict.verdict == NormVerdict::too_large) {
      FL_ASSERT(round.is_closing);  // Until then an update that looks too large waits.
      task.has_norm = false;
      round.norms->refuse(task.record.client);
      round.has_refused_updates = true;
      co_return Error(Errc::invalid_input,
                      fmt::format("its norm is {:.4g}, more than {:.4g} times the median {:.4g} "
                                  "(--norm-limit)",
                                  norm, limit, verdict.median));
    }
    if (control_.is_going_down()) {
      task.waits_for_others = false;
      co_return Error(Errc::cancelled, "the server is shutting down");
    }
    if (!has_waited) control_.changed.notify();  // The round may have enough with this update.
    co_await control_.changed.wait(never);
  }
}

JudgedNorm NormJudge::judged(OpenRound& round, double norm) {
  if (!round.is_closing) return round.norms->judge(norm);
  if (!round.norms->is_fixed() && !round.has_all_norms()) return {NormVerdict::waits, 0};
  return round.norms->judge_at_end(norm);
}

/// The norms of the round's updates so far; after a restart, of the updates that were accepted
/// before.
RoundNorms& NormJudge::norms_of(OpenRound& round) {
  if (round.norms) return *round.norms;
  round.norms.emplace(past_.totals.norms, control_.plan.settings.norm_limit);
  for (const auto& [client, task] : round.tasks) {
    if (task.record.state == TaskState::accepted) round.norms->add(client, task.record.norm);
  }
  return *round.norms;
}

}  // namespace fl::server
