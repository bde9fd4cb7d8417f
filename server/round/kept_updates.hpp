// SPDX-License-Identifier: Apache-2.0
// Keeps the updates of the newest rounds (--keep-updates), for replays (replay.hpp): in
// STATE/kept-updates/run-N, with a description of each round (kept_round.hpp). The versions that
// these rounds began from stay too (RunPlan::is_for_replay()), and so do the files beside them. Of
// updates that are deltas (delta_references.hpp) the reference is kept with them: once such an
// update counts, nobody else needs it.
//
// The order is the contract. A round's description is durable before its row in the history: so the
// settings in it are those that it was closed with, whatever a restart changes. Its updates leave
// the spool, and their references the others, after the row: until then a restart adds them up
// again. A crash in between leaves them there, and the next start takes them. So restore() comes
// before others look what a crash has left. A round that goes loses its description
// first: so no description names updates that were removed.
//
// One thread at a time; each call blocks on the disk.
#pragma once

#include "server/round/kept_round.hpp"
#include "server/round/spool.hpp"
#include "server/round/tasks.hpp"
#include "server/run/run_plan.hpp"

#include <filesystem>
#include <string>
#include <vector>

namespace fl::server {

class KeptUpdates {
 public:
  struct Folders {
    std::filesystem::path kept;
    std::filesystem::path checkpoints;
    std::filesystem::path references;
  };
  KeptUpdates(const RunPlan& plan, Files& files, Spool& spool, Folders folders)
      : plan_(plan), files_(files), spool_(spool), folders_(std::move(folders)) {}

  /// At a start, before the spool is cleared and DeltaReferences::prepare(). `last` is the last
  /// recorded round, 0 without any, and `tasks` are its tasks: what a crash has left of its updates
  /// in the spool is taken. Removes rounds that are too old, and what a crash has left.
  [[nodiscard]] Result<void> restore(Round last, const std::vector<TaskRecord>& tasks);

  /// The description of a round that closes, without what lies beside its base. If nothing is kept
  /// it is empty, and describe() and take() do nothing.
  [[nodiscard]] KeptRound description_of(const OpenRound& round) const;
  /// Completes the description and writes it, before the round is recorded. It reads the files
  /// beside the base, and the references of deltas, once. Doing it again replaces the description.
  [[nodiscard]] Result<void> describe(KeptRound round) const;
  /// Call it when the round is recorded: takes its updates out of the spool, with their references,
  /// and removes the round that is too old now. Doing it again changes nothing.
  [[nodiscard]] Result<void> take(const KeptRound& round);

 private:
  [[nodiscard]] std::filesystem::path reference_of(const KeptUpdate& update) const;
  [[nodiscard]] Result<void> move(Round round, const std::vector<KeptUpdate>& updates);
  [[nodiscard]] Result<void> drop(Round round);
  [[nodiscard]] Result<void> tidy(Round last);
  [[nodiscard]] Result<void> drop_state_before(Version version);

  const RunPlan& plan_;
  Files& files_;
  Spool& spool_;
  Folders folders_;
};

}  // namespace fl::server
