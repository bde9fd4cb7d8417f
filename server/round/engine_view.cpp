// SPDX-License-Identifier: Apache-2.0
// What the engine shows of itself to the admin pages, beside status().
#include "server/round/engine.hpp"
#include "shared/base/limits.hpp"

#include <algorithm>

namespace fl {

namespace {

/// Seconds until this moment; none for `never`.
std::optional<double> seconds_until(TimePoint time, TimePoint now) {
  if (time == never) return std::nullopt;
  return seconds(time - now);
}

}  // namespace

const Task* RoundEngine::task_of(const std::string& client) const {
  const auto& tasks = tasks_.has_round() ? tasks_.round().tasks : tasks_.carried();
  const auto found = tasks.find(client);
  return found != tasks.end() ? &found->second : nullptr;
}

Activity RoundEngine::activity_of(const std::string& client, const Peer* peer,
                                  const Task* task) const {
  if (peer == nullptr) return Activity::away;
  if (task != nullptr && task->record.state == TaskState::accepted) return Activity::accepted;
  if (task != nullptr && (task->is_verifying || task->has_norm)) return Activity::checking;
  if (transfers_.find(client, Transfers::Way::up) != nullptr) return Activity::uploading;
  if (transfers_.find(client, Transfers::Way::down) != nullptr) return Activity::downloading;
  if (task != nullptr && task->is_open()) {
    if (task->has_arrived) return Activity::waiting;
    return task->begun_at == TimePoint{} ? Activity::training : Activity::interrupted;
  }
  if (!peer->facts().evaluator && roster_.benched_until(client) > Clock::now())
    return Activity::paused;
  return task != nullptr ? Activity::failed : Activity::idle;
}

MemberStatus RoundEngine::member(const std::string& name) const {
  const TimePoint now = Clock::now();
  const auto peer = roster_.find(name);
  const Task* const task = task_of(name);
  MemberStatus member;
  member.name = name;
  member.activity = activity_of(name, peer.get(), task);
  member.is_awaited = roster_.is_awaited(name);
  member.expelled = roster_.why_expelled(name);
  if (peer) {
    member.evaluator = peer->facts().evaluator;
    member.software = peer->facts().software;
    member.certificate_ends_at = peer->facts().certificate_ends_at;
  }
  const Traffic traffic = roster_.traffic_of(name);
  member.bytes_up = traffic.up;
  member.bytes_down = traffic.down;
  if (task != nullptr) {
    member.round = tasks_.has_round() ? tasks_.round().record.round : task->record.round;
    // A task that was offered before this process began has no time of its offer here.
    if (task->offered_at != TimePoint{}) member.task_s = seconds(now - task->offered_at);
    if (task->is_open()) member.due_s = seconds_until(tasks_.due(*task), now);
  }
  if (const TimePoint until = roster_.benched_until(name); until > now)
    member.pause_s = seconds(until - now);
  member.misses = roster_.misses_of(name);
  if (const auto* const trouble = control_.trouble_of(name)) {
    member.trouble = trouble->text;
    member.trouble_at = trouble->at;
  }
  return member;
}

std::vector<MemberStatus> RoundEngine::members(const std::vector<std::string>& names) const {
  control_.expect_strand();
  std::vector<MemberStatus> found;
  found.reserve(names.size());
  for (const std::string& name : names) found.push_back(member(name));
  return found;
}

LiveStatus RoundEngine::live_status() const {
  control_.expect_strand();
  const TimePoint now = Clock::now();
  LiveStatus live;
  live.status = status();
  live.phase = control_.phase;
  live.paused = store_.why_paused();
  live.is_async = plan_.mode.is_async;
  live.min_clients = plan_.settings.min_clients;
  live.absent = roster_.absent_count();
  if (!versions_.empty()) live.version = versions_.newest_number();
  if (tasks_.has_round()) {
    const OpenRound& round = tasks_.round();
    live.target = round.record.target;
    live.quorum = tasks_.quorum();
    live.refused = round.count(TaskState::refused);
    live.lost = round.count(TaskState::lost);
    live.due_s = seconds_until(round.deadline, now);
  }
  for (const auto& peer : roster_.here()) {
    const std::string& name = peer->facts().name;
    ++live.activities[static_cast<std::size_t>(activity_of(name, peer.get(), task_of(name)))];
    const double ends_at = peer->facts().certificate_ends_at;
    if (ends_at == 0 || (live.certificate_ends_at != 0 && ends_at >= live.certificate_ends_at))
      continue;
    live.certificate_ends_at = ends_at;
    live.certificate_of = name;
  }
  live.transfers_total = transfers_.all().size();
  for (const auto& [key, transfer] : transfers_.all()) {
    if (live.transfers.size() >= limits::admin_transfers_max) break;
    const auto& [client, way] = key;
    const Task* const task = task_of(client);
    TransferStatus& shown = live.transfers.emplace_back();
    shown.client = client;
    shown.is_up = way == Transfers::Way::up;
    shown.number = transfer.number;
    shown.bytes = transfer.size.bytes;
    shown.offset = transfer.size.offset;
    shown.done = transfer.done(way);
    shown.seconds = seconds(now - transfer.began_at);
    if (task != nullptr && task->is_open()) shown.due_s = seconds_until(tasks_.due(*task), now);
  }
  return live;
}

}  // namespace fl
