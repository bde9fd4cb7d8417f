// SPDX-License-Identifier: Apache-2.0
#include "server/app/prune.hpp"

#include "server/app/run_queue.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace fl::server {

namespace {

/// The names of the files in one of a run's folders. The first run's models lie in the folder in
/// which later runs have folders of their own.
Result<std::vector<std::string>> files_of(Files& files, const std::filesystem::path& folder) {
  auto names = files.list(folder);
  if (!names && names.error().code() == Errc::not_found) return std::vector<std::string>();
  return names;
}

/// The folders of the run's models and of its kept updates.
std::array<std::filesystem::path, 2> folders_of(const std::filesystem::path& state,
                                                const RunRecord& run) {
  return {checkpoints_of(state, run), kept_updates_of(state, run)};
}

Result<PrunedRun> look_at(Files& files, const std::filesystem::path& state, const RunRecord& record,
                          const EndedRun& run) {
  PrunedRun pruned{run, 0, 0};
  for (const auto& folder : folders_of(state, record)) {
    FL_TRY(const auto names, files_of(files, folder));
    for (const auto& name : names) {
      FL_TRY(const auto file, files.open(folder / name, OpenMode::read));
      FL_TRY(const std::uint64_t bytes, file->size());
      ++pruned.files;
      pruned.bytes += bytes;
    }
  }
  return pruned;
}

Result<void> remove_files(Files& files, const std::filesystem::path& folder) {
  FL_TRY(const auto names, files_of(files, folder));
  for (const auto& name : names) FL_CHECK(files.remove(folder / name));
  return names.empty() ? success() : files.sync_folder(folder);
}

}  // namespace

Result<std::vector<PrunedRun>> runs_to_prune(Files& files, Store& store,
                                             const std::filesystem::path& state,
                                             const PruneRule& rule, double now) {
  FL_TRY(const auto all, store.runs().all());
  FL_TRY(const auto ended, store.archive().ended_runs());
  const std::size_t kept = std::max<std::size_t>(1, rule.keep_runs);
  std::vector<PrunedRun> found;
  for (const EndedRun& run : ended) {
    const auto at = std::ranges::find(all, run.id, [](const auto& each) { return each.run.id; });
    if (at == all.end() || static_cast<std::size_t>(all.end() - at) <= kept) continue;
    if (rule.older_than_s && now - run.ended_at < *rule.older_than_s) continue;
    FL_TRY(const PrunedRun pruned, look_at(files, state, at->run, run));
    found.push_back(pruned);
  }
  return found;
}

Result<void> prune_runs(Files& files, Store& store, const std::filesystem::path& state,
                        const std::vector<PrunedRun>& runs) {
  for (const PrunedRun& pruned : runs) {
    FL_TRY(const auto record, store.runs().find(pruned.run.id));
    const bool is_over =
        record && (record->state == RunState::finished || record->state == RunState::stopped);
    if (!is_over)
      return Error(Errc::conflict, fmt::format("run {} is not over any more", pruned.run.id));
    for (const auto& folder : folders_of(state, *record)) FL_CHECK(remove_files(files, folder));
    FL_CHECK(store.archive().remove_run(pruned.run.id));
    // The folder of the first run's models also has the folders of later runs.
    std::error_code in_use;
    for (const auto& folder : folders_of(state, *record)) {
      if (folder != state / "checkpoints") std::filesystem::remove(folder, in_use);
    }
  }
  return {};
}

}  // namespace fl::server
