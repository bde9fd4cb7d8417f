// An asynchronous run's way to collect a round, and what all modes need for tasks that outlive the
// round that they were offered in.
#include "server/round/engine.hpp"
#include "server/versions/delay_compensation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace fl {

/// Returns when the round has its K updates; or when all that can come have, each client counting
/// once. Meanwhile whoever is idle is given the newest version to train from.
Awaitable<Result<bool>> RoundEngine::collect_async() {
  auto& round = *round_;
  while (!stopping_) {
    FL_CO_TRY(const bool dropped, co_await drop_overdue());
    if (dropped) continue;
    if (round.is_too_narrow && !round.is_adding()) FL_CO_CHECK(co_await widen_range());
    const TimePoint now = Clock::now();
    const std::uint32_t accepted = round.count(TaskState::accepted);
    const bool is_full = accepted >= round.record.target;
    if (const std::size_t places = free_places(); !is_full && places > 0) {
      FL_CO_TRY(const bool asked, co_await add_tasks(places));
      if (asked) continue;
    }
    const std::uint32_t open = round.count(TaskState::offered);
    if (is_full || (accepted >= quorum() && open == 0)) {
      round.is_closing = true;
      if (!round.is_verifying()) co_return true;
    }
    TimePoint wake_at = never;
    if (!round.is_closing) {
      wake_at = next_candidate_after(now);
      for (const auto& [client, task] : round.tasks) {
        if (task.is_open() && !task.has_arrived) wake_at = std::min(wake_at, due(task));
      }
    }
    phase_ = "collecting";
    co_await changed_.wait(wake_at);
  }
  if (fatal_) co_return *fatal_;
  co_return false;
}

/// When the time for a task is over; `never` without a deadline.
TimePoint RoundEngine::due(const Task& task) const {
  if (mode_.is_async) return deadline_after(task.offered_at);
  return round_ ? round_->deadline : never;
}

/// A client that has not answered in time gives its place to another.
Awaitable<Result<bool>> RoundEngine::drop_overdue() {
  std::vector<Task*> overdue;
  for (auto& [client, task] : round_->tasks) {
    if (task.is_open() && !task.has_arrived && Clock::now() >= due(task)) overdue.push_back(&task);
  }
  for (Task* const task : overdue) task->is_verifying = true;  // Nothing else decides on it.
  for (Task* const task : overdue) {
    TaskRecord record = task->record;
    record.state = TaskState::lost;
    record.reason = fmt::format("no update within {} s", settings_.deadline_s);
    FL_CO_CHECK(co_await settle(*task, std::move(record)));
  }
  co_return !overdue.empty();
}

/// How many more may train at the same time. Whoever is not here takes no place.
std::size_t RoundEngine::free_places() const {
  const std::uint32_t accepted = round_->count(TaskState::accepted);
  const std::uint32_t open = round_->count(TaskState::offered);
  // Once a round that waits for all has its tasks, only to reach the quorum.
  if (mode_.is_barrier(round_->record.round) && round_->record.target > 0)
    return accepted + open < quorum() ? quorum() - accepted - open : 0;
  const auto busy = std::ranges::count_if(round_->tasks, [this](const auto& entry) {
    return entry.second.record.state == TaskState::offered && peers_.contains(entry.first);
  });
  const std::size_t wanted = target_clients(trainer_count());
  return wanted - std::min(wanted, static_cast<std::size_t>(busy));
}

/// The round is recorded: what is under way still, and not too old, goes on in the next one.
void RoundEngine::carry_tasks(Round oldest_base) {
  for (auto& [client, task] : round_->tasks) {
    if (task.record.state != TaskState::offered || task.record.base_version < oldest_base) continue;
    const Traffic total = traffic_of(client);
    task.up_before = total.up;
    task.down_before = total.down;
    carried_[client] = std::move(task);
  }
}

/// Whether an update may be added to the open round. A buffer takes no more than its K.
bool RoundEngine::takes_updates() const {
  if (!round_ || !round_->is_recorded || round_->is_closing) return false;
  if (!mode_.is_async) return true;
  const auto taken = std::ranges::count_if(round_->tasks, [](const auto& entry) {
    return entry.second.is_verifying || entry.second.record.state == TaskState::accepted;
  });
  return static_cast<std::size_t>(taken) < round_->record.target;
}

/// The task of an upload, or nullptr. It waits while the sums are made anew, or the round is being
/// recorded: what is then told is durable. And where tasks outlive their round it waits for a round
/// that takes it in, while there will be one.
Awaitable<RoundEngine::Task*> RoundEngine::admit(const std::string& client, std::int64_t task) {
  const auto must_wait = [this] {
    return (round_ && (round_->is_too_narrow || round_->is_closing)) ||
           (mode_.carries() && !takes_updates());
  };
  while (!stopping_ && !is_over() && must_wait()) co_await changed_.wait(never);
  co_return is_over() ? nullptr : find_task(client, task);
}

/// What a client missed while it was away is nobody's to wait for: it begins where the slowest of
/// the others is. Unless that is the first of those who come back after a restart: so no further up
/// than from where the fastest may go on. And whoever comes first, when nobody is here to compare
/// with, begins no further down than one that was never away can be: or it would have to make up
/// for all that it missed before anyone else is asked.
void RoundEngine::enter_clock(const std::string& client) {
  if (mode_.ahead == 0) return;
  std::vector<std::uint64_t> others;
  for (const auto& [name, peer] : peers_) {
    if (!peer->facts().evaluator && name != client) others.push_back(clocks_.at(name));
  }
  std::uint64_t& clock = clocks_[client];
  std::uint64_t highest = 0;
  for (const auto& [name, updates] : clocks_) highest = std::max(highest, updates);
  clock = std::max(clock, highest - std::min<std::uint64_t>(highest, mode_.ahead + 1));
  if (others.empty()) return;
  const auto [slowest, fastest] = std::ranges::minmax(others);
  clock =
      std::max(clock, std::min(slowest, fastest - std::min<std::uint64_t>(fastest, mode_.ahead)));
}

std::uint64_t RoundEngine::clock_max() const {
  constexpr std::uint64_t endless = std::numeric_limits<std::uint64_t>::max();
  if (mode_.ahead == 0) return endless;
  std::uint64_t slowest = endless - mode_.ahead;
  for (const auto& [name, peer] : peers_) {
    if (!peer->facts().evaluator) slowest = std::min(slowest, clocks_.at(name));
  }
  return slowest + mode_.ahead;
}

Result<AdjustUpdate> RoundEngine::adjustment_of(const TaskRecord& task) const {
  if (task.codec.starts_with(delta_prefix)) return references_.keep(task.id, task.reference);
  if (mode_.compensation == 0 || staleness_of(task) == 0) return AdjustUpdate();
  const TrainSettings work = work_of(task.base_version + 1);
  const double factor = mode_.compensation / (work.lr * effective_steps(work, task.steps));
  return AdjustUpdate(DelayCompensation(versions_.at(task.base_version),
                                        versions_.at(round_->record.base_version), factor,
                                        vector_.parameter_elements));
}

}  // namespace fl
