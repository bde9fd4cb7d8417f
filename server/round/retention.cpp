// SPDX-License-Identifier: Apache-2.0
#include "server/round/retention.hpp"

#include "server/run/best_of_run.hpp"
#include "shared/base/failpoint.hpp"

#include <utility>

namespace fl::server {

namespace {

/// Takes the run's best version out of those that would go, if the run keeps it.
Result<std::vector<Version>> without_best(Store& store, const RunPlan& plan,
                                          std::vector<Version> outdated) {
  if (outdated.empty() || !plan.settings.keep_best) return outdated;
  FL_TRY(const auto best, best_of_run(store, plan.run.id, plan.settings, Measurements::Of::kept));
  if (best) std::erase(outdated, best->version);
  return outdated;
}

}  // namespace

std::vector<Version> Retention::outdated(Version made, Version oldest_base) const {
  std::vector<Version> found;
  const std::uint32_t keep = plan.settings.keep_checkpoints;
  if (keep == 0) return found;
  const Version awaited = evaluations.oldest_awaited(made);
  for (const auto& [version, files] : versions.all()) {
    const bool is_base = version >= oldest_base && tasks.is_base(version);
    const bool is_kept = is_base || plan.is_for_replay(version, round_of(made));
    if (version + keep <= made && version < awaited && !is_kept) found.push_back(version);
  }
  return found;
}

Awaitable<Result<void>> Retention::drop_at_end(StoreThread& store, Versions& from) const {
  if (versions.empty()) co_return success();
  const auto old = outdated(versions.newest_number(), 0);
  auto mark = [this, &old](Store& of) -> Result<std::vector<Version>> {
    FL_TRY(auto dropped, without_best(of, plan, old));
    FL_CHECK(of.rounds().drop(plan.run.id, dropped));
    return dropped;
  };
  FL_CO_TRY(const auto dropped, co_await store.with_store(std::move(mark)));
  failpoint("run.versions_dropped");
  for (const Version version : dropped) FL_CO_CHECK(from.drop(version));
  co_return success();
}

Result<std::vector<Version>> commit_round(Store& store, const RunPlan& plan, RoundCommit commit) {
  FL_TRY(commit.dropped_versions, without_best(store, plan, std::move(commit.dropped_versions)));
  FL_CHECK(store.rounds().commit(commit));
  return commit.dropped_versions;
}

}  // namespace fl::server
