// SPDX-License-Identifier: Apache-2.0
#include "server/round/tasks.hpp"

#include "server/history/counted_claims.hpp"
#include "server/round/loss_weight.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/printable.hpp"
#include "shared/codec/encode/codec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fl::server {

void Task::note_failure() {
  const Duration pause = limits::ask_again_min * (1 << std::min(failures, 10));
  ask_again_at = Clock::now() + std::min<Duration>(pause, limits::ask_again_max);
  ++failures;
}

void OpenRound::take(std::map<std::string, Task> carried) {
  FL_ASSERT(tasks.empty());
  tasks = std::move(carried);
  for (auto& [client, task] : tasks) {
    FL_ASSERT(task.record.state != TaskState::accepted);  // An update counts in its own round.
    FL_ASSERT(task.part == part);
    task.record.round = record.round;
    ++counts_[static_cast<std::size_t>(task.record.state)];
  }
}

Task& OpenRound::put(Task task) {
  FL_ASSERT(task.part == part);
  auto [place, is_new] = tasks.try_emplace(task.record.client);
  FL_ASSERT(is_new || (place->second.has_failed() && !place->second.is_deciding));
  if (!is_new) --counts_[static_cast<std::size_t>(place->second.record.state)];
  ++counts_[static_cast<std::size_t>(task.record.state)];
  place->second = std::move(task);
  return place->second;
}

void OpenRound::update_task(Task& task, TaskRecord changed) {
  FL_ASSERT(task.record.state == TaskState::offered && changed.state != TaskState::offered);
  FL_ASSERT(task.record.id == changed.id && task.record.client == changed.client);
  --counts_[static_cast<std::size_t>(task.record.state)];
  ++counts_[static_cast<std::size_t>(changed.state)];
  task.record = std::move(changed);
}

void OpenRound::begin_closing() {
  FL_ASSERT(!is_closing && !has_refused_updates);
  is_closing = is_frozen = true;
}

void OpenRound::reopen() {
  FL_ASSERT(is_closing && is_frozen && !is_deciding());
  is_closing = is_frozen = false;
  has_refused_updates = false;
  if (norms) norms->reopen();
}

bool OpenRound::is_deciding() const {
  return std::ranges::any_of(tasks, [](const auto& entry) { return entry.second.is_deciding; });
}

bool OpenRound::has_all_norms() const {
  return std::ranges::all_of(
      tasks, [](const auto& entry) { return !entry.second.is_deciding || entry.second.has_norm; });
}

void Tasks::open(OpenRound round) {
  FL_ASSERT(!round_);
  FL_ASSERT(round.tasks.empty() || carried_.empty());  // After a restart the round has its tasks.
  if (!carried_.empty()) round.take(std::exchange(carried_, {}));
  round_ = std::move(round);
}

void Tasks::close(Version oldest_base) {
  FL_ASSERT(round_ && round_->is_closing && !round_->is_deciding() && carried_.empty());
  for (auto& [client, task] : round_->tasks) {
    if (task.record.state != TaskState::offered || task.record.base_version < oldest_base) continue;
    task.before = roster_.traffic_of(client);
    carried_[client] = std::move(task);
  }
  round_.reset();
}

void Tasks::carry(TaskRecord record) {
  FL_ASSERT(!round_ && record.state == TaskState::offered);
  Task& task = carried_[record.client];
  task.offered_at = Clock::now();
  task.record = std::move(record);
}

Task* Tasks::task_of(const std::string& client) {
  auto& tasks = round_ ? round_->tasks : carried_;
  const auto found = tasks.find(client);
  return found != tasks.end() ? &found->second : nullptr;
}

Task* Tasks::find(const std::string& client, TaskId id) {
  Task* const task = task_of(client);
  return task != nullptr && task->record.id == id ? task : nullptr;
}

std::uint32_t Tasks::quorum() const {
  return std::min(plan_.settings.min_clients, round_->record.target);
}

std::uint32_t Tasks::ready() const {
  const auto waiting = std::ranges::count_if(round_->tasks, [](const auto& entry) {
    const Task& task = entry.second;
    return task.waits_for_others || (task.has_keys && task.record.state == TaskState::offered);
  });
  return round_->count(TaskState::accepted) + static_cast<std::uint32_t>(waiting);
}

bool Tasks::has_enough(TimePoint now) const {
  const std::uint32_t all = ready();
  const std::uint32_t waiting = all - round_->count(TaskState::accepted);
  const bool none_to_come = round_->count(TaskState::offered) == waiting || now >= round_->deadline;
  return all >= round_->record.target || (all >= quorum() && none_to_come);
}

bool Tasks::may_end(TimePoint now) const {
  FL_ASSERT(round_->is_closing && !round_->is_deciding());
  const bool is_full = round_->count(TaskState::accepted) >= round_->record.target;
  const bool is_enough = is_full || (has_enough(now) && !plan_.mode.is_async);
  return is_enough || !round_->has_refused_updates;
}

std::size_t Tasks::to_ask(TimePoint now) const {
  if (round_->is_frozen) return 0;
  if (now < round_->deadline) return missing();
  return quorum() - std::min(quorum(), ready());
}

/// How many updates the round lacks, its deadline aside.
std::size_t Tasks::missing() const {
  if (plan_.mode.is_async) return ready() < round_->record.target ? free_places() : 0;
  return round_->record.target - std::min(round_->record.target, expected());
}

std::uint32_t Tasks::expected() const {
  return round_->count(TaskState::accepted) + round_->count(TaskState::offered);
}

std::uint32_t Tasks::expected_in_time() const {
  const auto late = std::ranges::count_if(round_->tasks, [](const auto& entry) {
    return entry.second.has_missed && entry.second.record.state == TaskState::offered;
  });
  return expected() - static_cast<std::uint32_t>(late);
}

TimePoint Tasks::due(const Task& task) const {
  if (plan_.mode.is_async) return plan_.deadline_after(task.offered_at);
  return round_ ? round_->deadline : never;
}

TimePoint Tasks::next_event(TimePoint now, bool asks_others) const {
  TimePoint next = round_->deadline;
  for (const auto& [client, task] : round_->tasks) {
    if (task.is_open() && !task.has_arrived) next = std::min(next, due(task));
    // A client that could already be asked, and was not, does not wait for time to pass.
    const bool may_come = asks_others && task.has_failed() && task.ask_again_at > now;
    if (may_come && roster_.find(client) != nullptr) next = std::min(next, task.ask_again_at);
  }
  return next;
}

std::vector<Task*> Tasks::overdue(TimePoint now) {
  std::vector<Task*> found;
  for (auto& [client, task] : round_->tasks) {
    if (task.is_open() && !task.has_arrived && now >= due(task)) found.push_back(&task);
  }
  return found;
}

bool Tasks::takes_updates() const {
  if (!round_ || !round_->is_durable || round_->is_closing) return false;
  if (!plan_.mode.is_async) return true;
  const auto taken = std::ranges::count_if(round_->tasks, [](const auto& entry) {
    return entry.second.is_deciding || entry.second.record.state == TaskState::accepted;
  });
  return static_cast<std::size_t>(taken) < round_->record.target;
}

bool Tasks::may_be_asked(const std::string& client) const {
  const auto found = round_->tasks.find(client);
  if (found == round_->tasks.end()) return true;
  const bool may_try = found->second.has_failed() && Clock::now() >= found->second.ask_again_at;
  // A member that stays silent does not keep a client that failed once from being asked again.
  return may_try && (plan_.mode.is_async || expected_in_time() < quorum());
}

std::size_t Tasks::free_places() const {
  const std::uint32_t accepted = round_->count(TaskState::accepted);
  const std::uint32_t open = round_->count(TaskState::offered);
  // Once a round that waits for all has its tasks, others are asked only to reach the quorum.
  if (plan_.mode.is_barrier(round_->record.round) && round_->record.target > 0)
    return accepted + open < quorum() ? quorum() - accepted - open : 0;
  const auto busy = std::ranges::count_if(round_->tasks, [this](const auto& entry) {
    return entry.second.record.state == TaskState::offered && roster_.find(entry.first) != nullptr;
  });
  const std::size_t wanted = plan_.target_clients(roster_.trainer_count());
  return wanted - std::min(wanted, static_cast<std::size_t>(busy));
}

std::string Tasks::names_missing() const {
  std::vector<std::string> names;
  for (const auto& [client, task] : round_->tasks)
    if (task.record.state == TaskState::offered) names.push_back(client);
  return first_names(names, names_shown_max);
}

std::uint64_t Tasks::accepted_weight() const {
  std::uint64_t sum = 0;
  for (const auto& [client, task] : round_->tasks) {
    if (task.record.state == TaskState::accepted) sum += weight_of(task.record);
  }
  return sum;
}

std::map<std::string, TaskId> Tasks::accepted_deltas() const {
  std::map<std::string, TaskId> accepted;
  for (const auto& [client, task] : round_->tasks) {
    if (task.record.state == TaskState::accepted &&
        task.record.codec.starts_with(codec::delta_prefix))
      accepted[client] = task.record.id;
  }
  return accepted;
}

double Tasks::loss_limit() const {
  std::vector<double> losses;
  for (const auto& [client, task] : round_->tasks)
    if (task.record.state == TaskState::accepted) losses.push_back(task.record.loss);
  return figure_limit(losses);
}

std::vector<std::pair<std::string, std::string>> Tasks::wild_losses() const {
  const double limit = loss_limit();
  std::vector<std::pair<std::string, std::string>> wild;
  for (const auto& [client, task] : round_->tasks) {
    const double loss = task.record.loss;
    if (task.record.state != TaskState::accepted || std::fabs(loss) <= limit) continue;
    wild.emplace_back(
        client,
        fmt::format("{} says that its training loss is {:.4g}, far from the others': in the "
                    "mean of round {} it counts as {:.4g}",
                    client, loss, round_->record.round, std::copysign(limit, loss)));
  }
  return wild;
}

double Tasks::training_loss() const {
  const double limit = loss_limit();
  std::vector<LossWeight> losses;
  for (const auto& [client, task] : round_->tasks) {
    if (task.record.state != TaskState::accepted) continue;
    const auto counted =
        static_cast<double>(RunPlan::counted_examples(task.record.examples, round_->record));
    losses.push_back({counted_figure(task.record.loss, limit), counted, task.record.predictions});
  }
  return mean_loss(losses, plan_.settings.weight_cap);
}

RoundFacts Tasks::facts(const PastRounds& past) const {
  const TrainSettings work = plan_.work_of(round_->record.round, past.losses);
  const auto accepted = static_cast<double>(accepted_weight());
  RoundFacts facts;
  facts.round = round_->record.round;
  facts.lr = work.lr;
  const auto all = static_cast<double>(std::max<std::uint64_t>(1, round_->record.population));
  facts.share = accepted / all;
  if (past.totals.population > 0)
    facts.regrouped = static_cast<double>(past.totals.population) / all;
  if (!work.optimizer.is_sgd()) return facts;
  std::vector<double> all_steps;
  for (const auto& [client, task] : round_->tasks) {
    if (task.record.state == TaskState::accepted)
      all_steps.push_back(effective_steps(work, task.record.steps));
  }
  const double limit = figure_limit(all_steps);
  double steps = 0;
  auto own_steps = all_steps.begin();
  for (const auto& [client, task] : round_->tasks) {
    if (task.record.state != TaskState::accepted) continue;
    const auto weight = static_cast<double>(weight_of(task.record));
    steps += weight / accepted * counted_figure(*own_steps++, limit);
  }
  facts.effective_steps = steps;
  return facts;
}

bool Tasks::is_base(Version version) const {
  return std::ranges::any_of(round_ ? round_->tasks : carried_, [version](const auto& entry) {
    return entry.second.is_open() && entry.second.record.base_version == version;
  });
}

}  // namespace fl::server
