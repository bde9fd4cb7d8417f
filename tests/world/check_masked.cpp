// SPDX-License-Identifier: Apache-2.0
#include "tests/world/check_masked.hpp"

#include <fmt/format.h>

#include <set>

namespace fl::test {

namespace {

Error not_right(std::string text) { return {Errc::internal, std::move(text)}; }

/// The accepted tasks of a round.
Result<std::set<TaskId>> check_round(World& world, History& history, Round round) {
  FL_TRY(const auto tasks, history.store->rounds().tasks(history.run.id, round));
  std::set<TaskId> accepted;
  std::set<std::string> clients;
  double loss = 0;
  for (const TaskRecord& task : tasks) {
    if (task.state == TaskState::offered)
      return not_right(fmt::format("task {} is undecided", task.id));
    if (task.state != TaskState::accepted) continue;
    accepted.insert(task.id);
    if (!clients.insert(task.client).second)
      return not_right(fmt::format("{} was counted twice", task.client));
    if (loss != 0 && task.loss != loss)
      return not_right("a round's tasks have different losses, and only their mean can be known");
    loss = task.loss;
  }
  if (accepted.size() < world.options().settings.min_clients)
    return not_right(fmt::format("round {} has {} updates", round, accepted.size()));
  FL_TRY(const auto said, history.store->masked_messages().of_round(history.run.id, round));
  if (!said.empty()) return not_right(fmt::format("round {} has left its messages", round));
  return accepted;
}

}  // namespace

Result<void> check_masked(World& world, History& history) {
  if (history.run.state != RunState::finished) return not_right("the run is not finished");
  std::set<TaskId> accepted;
  for (Round round = 1; round <= world.options().settings.rounds; ++round) {
    FL_TRY(const auto of_round, check_round(world, history, round));
    accepted.insert(of_round.begin(), of_round.end());
  }
  for (auto& [name, client] : world.clients()) {
    for (const std::int64_t task : client.acknowledged)
      if (!accepted.contains(TaskId{task}))
        return not_right(
            fmt::format("task {} of {} was acknowledged but does not count", task, name));
  }
  FL_TRY(const auto spool, world.server_disk().list("/state/spool"));
  if (!spool.empty() && !world.has_lost_power())
    return not_right(spool.front() + " is left in the spool");
  return {};
}

}  // namespace fl::test
