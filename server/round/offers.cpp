// SPDX-License-Identifier: Apache-2.0
#include "server/round/offers.hpp"

#include "server/round/offer_terms.hpp"
#include "server/run/target.hpp"
#include "shared/base/failpoint.hpp"
#include "shared/base/log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace fl::server {

namespace {

Picker::Options picking_of(const RunPlan& plan) {
  const RunSettings& settings = plan.settings;
  return {plan.ladder, settings.sampling, settings.over_select, settings.deadline_s, settings.seed};
}

}  // namespace

Offers::Offers(const Parts& parts)
    : parts_(parts), picker_(picking_of(parts.control.plan), parts.control.plan.layout) {}

Awaitable<Result<void>> Offers::read_histories() {
  parts_.control.expect_strand();
  if (!picker_.needs_histories()) co_return success();
  auto read = [run = parts_.control.plan.run.id](Store& store) {
    return store.rounds().client_histories(run);
  };
  FL_CO_TRY(auto histories, co_await parts_.control.store.with_store(std::move(read)));
  picker_.set_histories(std::move(histories));
  co_return success();
}

Awaitable<Result<void>> Offers::open_round() {
  parts_.control.expect_strand();
  FL_ASSERT(!parts_.tasks.has_round());
  const RunPlan& plan = parts_.control.plan;
  const auto base = parts_.files.versions.newest();
  const std::size_t available = parts_.roster.trainers_to_ask(plan.settings.min_clients).size();
  OpenRound opening;
  opening.record.round = round_from(base->record.version);
  opening.record.base_version = base->record.version;
  opening.record.started_at = Clock::unix_seconds();
  opening.part = base->part;
  weigh_everyone(opening.record);
  opening.opened_at = Clock::now();
  if (!plan.mode.is_async) opening.deadline = plan.deadline_after(opening.opened_at);
  // Traffic between two rounds counts for the next round.
  opening.before = parts_.roster.recorded_traffic();
  parts_.tasks.open(std::move(opening));
  OpenRound& round = parts_.tasks.round();
  const auto all = plan.target_clients(available);
  const auto tasks = pick(cohort_size(all));
  const auto under_way = static_cast<std::uint32_t>(round.tasks.size() + tasks.size());
  round.record.target = !plan.mode.is_async                        ? all
                        : plan.mode.is_barrier(round.record.round) ? under_way
                                                                   : plan.mode.buffer;
  parts_.control.phase = Phase::collecting;

  auto open = [run = plan.run.id, record = round.record, tasks](Store& store) {
    return store.rounds().open(run, record, tasks);
  };
  FL_CO_TRY(auto opened, co_await parts_.control.store.with_store(std::move(open)));
  failpoint("round.opened");
  round.is_durable = true;
  for (auto& record : opened) {
    Task task;
    task.record = std::move(record);
    task.part = round.part;
    send(round.put(std::move(task)));
  }
  FL_CO_CHECK(co_await parts_.intake.open_round());
  parts_.decisions.end_tasks_of_expelled();
  log_info("round {}/{}: asked {} of {} clients", round.record.round, plan.settings.rounds,
           opened.size(), available);
  warn_of_settings(available);
  parts_.control.changed.notify();  // Wake the updates that came between two rounds.
  co_return success();
}

/// Sets what the clients that are here, or were asked in an earlier round, count in the round: each
/// one's limit, and all of them together.
void Offers::weigh_everyone(RoundRecord& round) {
  const RunPlan& plan = parts_.control.plan;
  auto everyone = parts_.past.totals.examples;
  for (const auto& peer : parts_.roster.trainers())
    everyone[peer->facts().name] = peer->facts().train_examples;
  std::vector<std::uint64_t> all;
  for (const auto& [client, examples] : everyone) all.push_back(examples);
  round.examples_max = plan.examples_max(std::move(all));
  round.population = 0;
  for (const auto& [client, examples] : everyone) {
    round.population += plan.weight_of(examples, round);
    const bool is_capped = RunPlan::counted_examples(examples, round) < examples;
    if (!is_capped || !capped_.insert(client).second) continue;
    parts_.control.report(
        EventLevel::notice,
        fmt::format("{} says that it has {} examples, and counts with {}: {} times the median "
                    "(--weight-cap)",
                    client, examples, round.examples_max, plan.settings.weight_cap));
  }
}

/// In the first round of this process: warns of settings that can't work with these clients.
void Offers::warn_of_settings(std::size_t available) {
  if (parts_.past.recorded_here > 0) return;
  const RunPlan& plan = parts_.control.plan;
  if (plan.mode.is_async && plan.mode.buffer > available) {
    parts_.control.report(
        EventLevel::warning,
        fmt::format("--mode async:buffer={} is more than the {} clients that are here: a version "
                    "is made when each has sent one update",
                    plan.mode.buffer, available));
  }
  const bool wants_evaluator = target_of(plan.settings) || plan.settings.patience > 0;
  if (wants_evaluator && parts_.roster.evaluator_count() == 0) {
    parts_.control.report(
        EventLevel::warning,
        "--target and --patience act on what an evaluator measures, and none is here: "
        "start one with fl-client --evaluate-only");
  }
}

Awaitable<Result<bool>> Offers::add(std::size_t count) {
  parts_.control.expect_strand();
  const RunPlan& plan = parts_.control.plan;
  Tasks& open = parts_.tasks;
  OpenRound& round = open.round();
  FL_ASSERT(!round.is_frozen && round.is_durable);
  auto tasks = pick(count);
  std::uint64_t weight = 0;
  for (const auto& [client, task] : round.tasks) {
    const TaskState state = task.record.state;
    if (state == TaskState::offered || state == TaskState::accepted)
      weight += open.discounted_weight_of(task.record);
  }
  std::erase_if(tasks, [&](const TaskRecord& task) {
    const std::uint64_t more = open.discounted_weight_of(task);
    if (weight > total_weight_max - more) return true;
    weight += more;
    return false;
  });
  if (tasks.empty()) co_return false;
  auto write = [run = plan.run.id, number = round.record.round, tasks](Store& store) {
    return store.rounds().add_tasks(run, number, tasks);
  };
  failpoint("replacement.before_added");
  FL_CO_TRY(auto added, co_await parts_.control.store.with_store(std::move(write)));
  failpoint("replacement.added");
  for (auto& record : added) {
    if (!plan.mode.is_async)
      log_info("round {}: asked {} in place of another", record.round, record.client);
    Task task;
    task.record = std::move(record);
    task.part = round.part;
    if (const Task* const before = open.task_of(task.record.client))
      task.failures = before->failures;
    send(round.put(std::move(task)));
  }
  parts_.decisions.end_tasks_of_expelled();
  co_return true;
}

std::size_t Offers::cohort_size(std::uint32_t target) const {
  const RunPlan& plan = parts_.control.plan;
  if (plan.mode.is_async) return parts_.tasks.free_places();
  std::vector<Candidate> everyone;
  for (const auto& peer : parts_.roster.trainers_to_ask(plan.settings.min_clients))
    everyone.push_back(picker_.candidate(peer->facts().name, peer->facts().train_examples));
  return picker_.cohort_size(target, everyone);
}

/// Tasks for up to `count` of the trainers that may be asked in the open round.
std::vector<TaskRecord> Offers::pick(std::size_t count) const {
  const OpenRound& round = parts_.tasks.round();
  std::vector<Candidate> candidates;
  for (const auto& peer :
       parts_.roster.trainers_in_pace(parts_.control.plan.settings.min_clients)) {
    const auto& facts = peer->facts();
    if (parts_.tasks.may_be_asked(facts.name))
      candidates.push_back(
          picker_.candidate(facts.name, facts.train_examples, round.record.examples_max));
  }
  auto tasks = picker_.pick(candidates, count, round.record.round, round.tasks.size());
  for (TaskRecord& task : tasks) {
    task.base_version = round.record.base_version;
    if (task.codec.starts_with(codec::delta_prefix))
      task.reference = parts_.files.references.of(task.client);
  }
  return tasks;
}

void Offers::send(Task& task) {
  parts_.control.expect_strand();
  const RunPlan& plan = parts_.control.plan;
  const std::string& client = task.record.client;
  if (task.offered_at == TimePoint{}) {
    task.offered_at = Clock::now();
    task.before = parts_.roster.traffic_of(client);
  }
  const auto peer = parts_.roster.find(client);
  if (!peer) return;
  const auto& base = *parts_.files.versions.at(task.record.base_version);
  wire::Header header;
  auto& offer = *header.mutable_offer();
  offer = common_offer(plan, base, parts_.past.losses);
  offer.set_task(number_of(task.record.id));
  offer.set_seed(plan.client_seed_of(round_from(base.record.version), client));
  if (const TimePoint deadline = parts_.tasks.due(task); deadline != never) {
    const auto left = std::max(Duration::zero(), deadline - Clock::now());
    const auto left_ms = std::chrono::duration_cast<std::chrono::milliseconds>(left).count();
    offer.set_deadline_ms(static_cast<std::uint64_t>(left_ms));
  }
  offer.set_codec(task.record.codec);
  offer.set_reference(number_of(task.record.reference));
  offer.set_evaluate_holdout(peer->facts().holdout_examples > 0);
  if (plan.came_from_seed() && parts_.files.versions.contains(0) &&
      parts_.roster.take_initial_notice(client))
    offer.set_initial_digest(parts_.files.versions.at(0)->record.digest.raw());
  if (parts_.masked != nullptr) parts_.masked->add_terms(offer);
  peer->post(std::move(header));
  if (parts_.masked != nullptr) parts_.masked->repeat(*peer);
}

void Offers::send_all() {
  for (auto& [client, task] : parts_.tasks.round().tasks)
    if (task.record.state == TaskState::offered) send(task);
}

}  // namespace fl::server
