// SPDX-License-Identifier: Apache-2.0
#include "server/app/prune.hpp"

#include "server/app/run_queue.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl {

namespace {

/// The names of a run's files. The first run of a state has its models in the folder in which those
/// of later runs have folders.
Result<std::vector<std::string>> files_of(Files& files, const std::filesystem::path& folder) {
  auto names = files.list(folder);
  if (!names && names.error().code() == Errc::not_found) return std::vector<std::string>();
  return names;
}

Result<PrunedRun> look_at(Files& files, const std::filesystem::path& folder, const EndedRun& run) {
  PrunedRun pruned{run, 0, 0};
  FL_TRY(const auto names, files_of(files, folder));
  for (const auto& name : names) {
    FL_TRY(const auto file, files.open(folder / name, OpenMode::read));
    FL_TRY(const std::uint64_t bytes, file->size());
    ++pruned.files;
    pruned.bytes += bytes;
  }
  return pruned;
}

}  // namespace

Result<std::vector<PrunedRun>> runs_to_prune(Files& files, Store& store,
                                             const std::filesystem::path& state,
                                             const PruneRule& rule, double now) {
  FL_TRY(const auto all, store.runs());
  FL_TRY(const auto ended, store.ended_runs());
  const std::size_t kept = std::max<std::size_t>(1, rule.keep_runs);
  std::vector<PrunedRun> found;
  for (const EndedRun& run : ended) {
    const auto at = std::ranges::find(all, run.id, [](const auto& each) { return each.run.id; });
    if (at == all.end() || static_cast<std::size_t>(all.end() - at) <= kept) continue;
    if (rule.older_than_s && now - run.ended_at < *rule.older_than_s) continue;
    FL_TRY(const PrunedRun pruned, look_at(files, checkpoints_of(state, at->run), run));
    found.push_back(pruned);
  }
  return found;
}

Result<void> prune_runs(Files& files, Store& store, const std::filesystem::path& state,
                        const std::vector<PrunedRun>& runs) {
  for (const PrunedRun& pruned : runs) {
    FL_TRY(const auto record, store.find_run(pruned.run.id));
    const bool is_over =
        record && (record->state == RunState::finished || record->state == RunState::stopped);
    if (!is_over)
      return Error(Errc::conflict, fmt::format("run {} is not over any more", pruned.run.id));
    const auto folder = checkpoints_of(state, *record);
    FL_TRY(const auto names, files_of(files, folder));
    for (const auto& name : names) FL_CHECK(files.remove(folder / name));
    if (!names.empty()) FL_CHECK(files.sync_folder(folder));
    FL_CHECK(store.remove_run(pruned.run.id));
    std::error_code in_use;  // The folder of the first run has those of the others.
    if (!record->checkpoints.empty()) std::filesystem::remove(folder, in_use);
  }
  return {};
}

}  // namespace fl
