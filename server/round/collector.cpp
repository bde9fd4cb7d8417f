// SPDX-License-Identifier: Apache-2.0
#include "server/round/collector.hpp"

#include <fmt/format.h>

namespace fl::server {

/// Returns when the open round has what it needs (Tasks::has_enough) and nothing is being checked.
/// Until then clients are asked in place of those that fail or, in an asynchronous run, whenever
/// one is idle. Without a quorum at its deadline a synchronous round waits for another deadline.
Awaitable<Result<void>> Collector::collect() {
  RunControl& control = parts_.control;
  const RunPlan& plan = control.plan;
  Tasks& tasks = parts_.tasks;
  OpenRound& round = tasks.round();
  while (!control.is_stopping()) {
    control.phase = Phase::collecting;
    if (plan.mode.is_async) {
      FL_CO_TRY(const bool dropped, co_await parts_.decisions.drop_overdue());
      if (dropped) continue;
    }
    const TimePoint now = Clock::now();
    const std::uint32_t ready = tasks.ready();
    const std::size_t to_ask = tasks.to_ask(now);
    const bool is_late = now >= round.deadline;  // Never in an asynchronous run.
    const bool is_masked = parts_.masked != nullptr && !round.is_closing;
    if (is_masked && (parts_.masked->is_under_way() || tasks.has_enough(now))) {
      if (is_late) note_deadline();
      FL_CO_CHECK(co_await open_masked());
      if (parts_.end.is_over()) co_return success();
      continue;
    }
    // A closing round that has lost its quorum is reopened first (below).
    if (is_late && ready < tasks.quorum() && !round.is_closing) {
      control.report(
          EventLevel::warning,
          fmt::format("round {}: {} of {} updates at the deadline; waiting for another "
                      "{} s",
                      round.record.round, ready, tasks.quorum(), plan.settings.deadline_s));
      parts_.decisions.note_misses();
      round.deadline = plan.deadline_after(now);
      if (to_ask > 0) FL_CO_CHECK(co_await parts_.offers.add(to_ask));
      continue;
    }
    if (to_ask > 0) {
      FL_CO_TRY(const bool asked, co_await parts_.offers.add(to_ask));
      if (asked) continue;
    }
    if (tasks.has_enough(now) && !round.is_closing) {
      if (is_late) note_deadline();
      round.begin_closing();
      control.changed.notify();  // Waiting updates are judged now.
    }
    if (round.is_closing && !round.is_deciding()) {
      if (tasks.may_end(now)) co_return success();
      round.reopen();
      continue;
    }
    // A round that was open when the run was ended closes if it still can.
    const bool nobody_works = !round.is_closing && round.count(TaskState::offered) == 0;
    if (nobody_works && parts_.evaluations.has_end()) {
      control.report(EventLevel::notice,
                     fmt::format("round {} is left: nobody trains for it", round.record.round));
      parts_.end.leave_round();
      co_return success();
    }
    co_await control.changed.wait(round.is_closing ? never : tasks.next_event(now, to_ask > 0));
  }
  co_return success();
}

/// The round's deadline has passed, and it closes without those that have not come.
void Collector::note_deadline() {
  const OpenRound& round = parts_.tasks.round();
  if (round.count(TaskState::offered) == 0) return;
  parts_.decisions.note_misses();
  if (const std::string names = parts_.tasks.names_missing(); !names.empty())
    parts_.control.report(EventLevel::info, fmt::format("round {}: the deadline passed without {}",
                                                        round.record.round, names));
}

/// Enough members of a masked round have trained: opens the sum of their updates, which are
/// accepted then; or begins another attempt.
Awaitable<Result<void>> Collector::open_masked() {
  FL_CO_TRY(const auto outcome, co_await parts_.masked->run());
  switch (outcome) {
    case MaskedRound::Outcome::opened:
      parts_.tasks.round().begin_closing();
      parts_.control.changed.notify();
      break;
    case MaskedRound::Outcome::failed: parts_.offers.send_all(); break;
    case MaskedRound::Outcome::given_up:
      parts_.evaluations.take_end(
          fmt::format("the masked updates of round {} could not be added up",
                      parts_.tasks.round().record.round));
      parts_.end.leave_round();
      break;
    case MaskedRound::Outcome::stopped: break;
  }
  co_return success();
}

}  // namespace fl::server
