// SPDX-License-Identifier: Apache-2.0
// Which versions of a run are kept, and which go: --keep-checkpoints, --keep-best, and what tasks,
// evaluators and replays still need.
//
// The best version is looked for among the kept ones in the call of the store that marks versions
// as dropped. All measurements come in by the same thread, so none is missed. A file goes only
// after that transaction: so the best version's file is there until a better version is durable,
// whatever happens in between. Trainers measure a version while it is the newest, and the versions
// that evaluators have yet to measure are kept for them: so a version's figures are known before it
// may go.
#pragma once

#include "server/history/store_thread.hpp"
#include "server/round/evaluations.hpp"
#include "server/round/tasks.hpp"
#include "server/run/run_plan.hpp"
#include "server/versions/versions.hpp"

#include <vector>

namespace fl::server {

/// On the engine's strand.
struct Retention {
  const RunPlan& plan;
  const Tasks& tasks;
  const Evaluations& evaluations;
  const Versions& versions;

  /// The versions that go when version `made` is recorded, unless one of them is the best. Tasks
  /// that train from a version before `oldest_base` need it no more.
  [[nodiscard]] std::vector<Version> outdated(Version made, Version oldest_base) const;

  /// Once the last evaluations have come: drops `from` the versions what was the best before them.
  Awaitable<Result<void>> drop_at_end(StoreThread& store, Versions& from) const;
};

/// Records the end of a round (Rounds::commit), without dropping the run's best version if the run
/// keeps that. Returns the versions that are dropped. On the store's thread.
[[nodiscard]] Result<std::vector<Version>> commit_round(Store& store, const RunPlan& plan,
                                                        RoundCommit commit);

}  // namespace fl::server
