// SPDX-License-Identifier: Apache-2.0
#include "server/round/run_view.hpp"

#include "shared/base/limits.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl::server {

namespace {

/// Seconds until this moment; none for `never`.
std::optional<double> seconds_until(TimePoint time, TimePoint now) {
  if (time == never) return std::nullopt;
  return seconds(time - now);
}

}  // namespace

std::string RunView::phase_text() const {
  const std::size_t here = parts_.roster.trainer_count();
  switch (parts_.control.phase) {
    case Phase::starting: return "starting";
    case Phase::restoring: return "restoring";
    case Phase::waiting_for_clients: {
      const std::size_t unfit = parts_.roster.turned_away().size();
      return fmt::format("waiting for {} clients ({} {} here{})",
                         parts_.control.plan.settings.min_clients, here, here == 1 ? "is" : "are",
                         unfit > 0 ? fmt::format("; {} can't take part", unfit) : "");
    }
    case Phase::collecting: return "collecting";
    case Phase::making_model: return "making the new model";
    case Phase::waiting_for_absent: return "the run is over: waiting for its clients";
    case Phase::waiting_for_evaluations: return "waiting for the last evaluations";
    case Phase::dismissing: return "the run is over";
    case Phase::finished: {
      const std::size_t present = parts_.newcomers.count();
      if (present == 0) return "finished";
      return fmt::format("finished; {} member{} for another run", present,
                         present == 1 ? " waits" : "s wait");
    }
    case Phase::stopping: return "stopping";
  }
  return "";
}

std::string RunView::why_unfit() const {
  const bool is_enough = parts_.roster.trainer_count() >= parts_.control.plan.settings.min_clients;
  if (!parts_.versions.empty() || is_enough) return "";
  constexpr std::size_t shown_max = 3;
  const auto turned_away = parts_.roster.turned_away();
  std::string text;
  for (const auto& [name, why] :
       std::span(turned_away).first(std::min(shown_max, turned_away.size())))
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", name, why);
  if (turned_away.size() > shown_max)
    text += fmt::format("; and {} more clients", turned_away.size() - shown_max);
  return text;
}

EngineStatus RunView::status() const {
  const RunPlan& plan = parts_.control.plan;
  EngineStatus status;
  status.run = plan.run.id;
  status.run_key = plan.run.key;
  status.model = plan.run.model;
  status.strategy = plan.settings.strategy;
  status.codec = plan.settings.codec;
  const std::string paused = parts_.control.store.why_paused();
  status.phase = paused.empty() ? phase_text() : paused;
  status.rounds_total = plan.settings.rounds;
  if (!parts_.versions.empty()) status.round = round_of(parts_.versions.newest_number());
  status.clients = static_cast<std::uint32_t>(parts_.roster.trainer_count());
  status.evaluators = static_cast<std::uint32_t>(parts_.roster.evaluator_count());
  status.present = static_cast<std::uint32_t>(parts_.newcomers.count());
  if (parts_.tasks.has_round()) {
    const OpenRound& round = parts_.tasks.round();
    status.round = round.record.round;
    status.asked = static_cast<std::uint32_t>(round.tasks.size());
    status.accepted = parts_.tasks.ready();
  }
  const Traffic total = parts_.roster.traffic();
  status.bytes_up = total.up;
  status.bytes_down = total.down;
  status.metric = parts_.evaluations.main_metric();
  status.metrics = parts_.evaluations.newest_figures();
  status.round_seconds =
      parts_.past.recorded_here > 0 ? parts_.past.seconds_here / parts_.past.recorded_here : 0;
  status.started_at = parts_.control.started_at;
  status.queues = queues();
  return status;
}

QueueLengths RunView::queues() const {
  QueueLengths queues;
  queues.store = parts_.control.store.calls_under_way();
  queues.events = parts_.control.store.events_under_way();
  queues.verdicts = parts_.verdicts.waiting();
  if (parts_.tasks.has_round()) {
    for (const auto& [client, task] : parts_.tasks.round().tasks)
      queues.checks += task.is_deciding ? 1 : 0;
  }
  for (const auto& [key, transfer] : parts_.transfers.all())
    ++(key.second == TransferWay::up ? queues.uploads : queues.downloads);
  queues.buffer_bytes = parts_.transfers.budget().bytes();
  return queues;
}

const Task* RunView::task_of(const std::string& client) const {
  const auto& tasks =
      parts_.tasks.has_round() ? parts_.tasks.round().tasks : parts_.tasks.carried();
  const auto found = tasks.find(client);
  return found != tasks.end() ? &found->second : nullptr;
}

Activity RunView::activity_of(const std::string& client, const Peer* peer, const Task* task) const {
  if (peer == nullptr)
    return parts_.newcomers.find(client) != nullptr ? Activity::present : Activity::away;
  if (task != nullptr && task->record.state == TaskState::accepted) return Activity::accepted;
  if (task != nullptr && (task->is_deciding || task->has_norm)) return Activity::checking;
  if (parts_.transfers.find(client, TransferWay::up) != nullptr) return Activity::uploading;
  if (parts_.transfers.find(client, TransferWay::down) != nullptr) return Activity::downloading;
  if (task != nullptr && task->is_open()) {
    if (task->has_arrived) return Activity::waiting;
    return task->begun_at == TimePoint{} ? Activity::training : Activity::interrupted;
  }
  if (!peer->facts().evaluator && parts_.roster.bench().until(client) > Clock::now())
    return Activity::paused;
  return task != nullptr ? Activity::failed : Activity::idle;
}

MemberStatus RunView::member(const std::string& name) const {
  const TimePoint now = Clock::now();
  const auto peer = parts_.roster.find(name);
  const Task* const task = task_of(name);
  MemberStatus member;
  member.name = name;
  member.activity = activity_of(name, peer.get(), task);
  member.is_awaited = parts_.roster.is_awaited(name);
  member.expelled = parts_.roster.why_expelled(name);
  if (peer) {
    const auto& facts = peer->facts();
    member.said = facts;
    member.examples = facts.evaluator ? facts.holdout_examples : facts.train_examples;
    member.certificate_ends_at = facts.certificate_ends_at;
  }
  if (const Newcomer* const newcomer = parts_.newcomers.find(name)) {
    member.waits_for = newcomer->waits_for;
    member.said = newcomer->said;
  }
  const Traffic traffic = parts_.roster.traffic_of(name);
  member.bytes_up = traffic.up;
  member.bytes_down = traffic.down;
  if (task != nullptr) {
    member.round =
        parts_.tasks.has_round() ? parts_.tasks.round().record.round : task->record.round;
    // A task that was offered before this process began has no time of its offer here.
    if (task->offered_at != TimePoint{}) member.task_s = seconds(now - task->offered_at);
    if (task->is_open()) member.due_s = seconds_until(parts_.tasks.due(*task), now);
  }
  if (const TimePoint until = parts_.roster.bench().until(name); until > now)
    member.pause_s = seconds(until - now);
  member.misses = parts_.roster.bench().misses_of(name);
  if (const auto* const trouble = parts_.control.trouble_of(name)) {
    member.trouble = trouble->text;
    member.trouble_at = trouble->at;
  }
  return member;
}

std::vector<MemberStatus> RunView::members(const std::vector<std::string>& names) const {
  parts_.control.expect_strand();
  std::vector<MemberStatus> found;
  found.reserve(names.size());
  for (const std::string& name : names) found.push_back(member(name));
  return found;
}

std::vector<ClientHere> RunView::present() const {
  parts_.control.expect_strand();
  std::vector<ClientHere> found;
  const auto add = [&found](const std::string& name, const HelloFacts& said) {
    found.push_back({name, said.evaluator, said.model, said.tensors});
  };
  for (const auto& peer : parts_.roster.here()) add(peer->facts().name, peer->facts());
  for (const auto& [name, newcomer] : parts_.newcomers.all()) add(name, newcomer.said);
  return found;
}

LiveStatus RunView::live_status() const {
  parts_.control.expect_strand();
  const TimePoint now = Clock::now();
  LiveStatus live;
  live.status = status();
  live.phase = parts_.control.phase;
  live.paused = parts_.control.store.why_paused();
  live.is_async = parts_.control.plan.mode.is_async;
  live.min_clients = parts_.control.plan.settings.min_clients;
  live.unfit = why_unfit();
  live.absent = parts_.roster.absent_count();
  if (!parts_.versions.empty()) live.version = parts_.versions.newest_number();
  if (parts_.tasks.has_round()) {
    const OpenRound& round = parts_.tasks.round();
    live.target = round.record.target;
    live.quorum = parts_.tasks.quorum();
    live.refused = round.count(TaskState::refused);
    live.lost = round.count(TaskState::lost);
    live.due_s = seconds_until(round.deadline, now);
  }
  for (const auto& peer : parts_.roster.here()) {
    const std::string& name = peer->facts().name;
    ++live.activities[static_cast<std::size_t>(activity_of(name, peer.get(), task_of(name)))];
    const double ends_at = peer->facts().certificate_ends_at;
    if (ends_at == 0 || (live.certificate_ends_at != 0 && ends_at >= live.certificate_ends_at))
      continue;
    live.certificate_ends_at = ends_at;
    live.certificate_of = name;
  }
  live.activities[static_cast<std::size_t>(Activity::present)] = live.status.present;
  live.transfers_total = parts_.transfers.all().size();
  for (const auto& [key, transfer] : parts_.transfers.all()) {
    if (live.transfers.size() >= limits::admin_transfers_max) break;
    const auto& [client, way] = key;
    const Task* const task = task_of(client);
    TransferStatus& shown = live.transfers.emplace_back();
    shown.client = client;
    shown.is_up = way == TransferWay::up;
    shown.number = transfer.number;
    shown.bytes = transfer.size.bytes;
    shown.offset = transfer.size.offset;
    shown.done = transfer.done(way);
    shown.seconds = seconds(now - transfer.began_at);
    if (task != nullptr && task->is_open())
      shown.due_s = seconds_until(parts_.tasks.due(*task), now);
  }
  return live;
}

}  // namespace fl::server
