// SPDX-License-Identifier: Apache-2.0
#include "server/round/kept_updates.hpp"

#include "server/versions/delta_references.hpp"
#include "server/versions/make_version.hpp"
#include "shared/base/failpoint.hpp"
#include "shared/base/log.hpp"
#include "shared/base/version.hpp"

#include <algorithm>
#include <set>
#include <utility>

namespace fl::server {

namespace {

/// Describes a file that replays read: its name in the description, its size and its digest.
Result<KeptState> kept_file(Files& files, const std::filesystem::path& path, std::string name) {
  FL_TRY(const auto file, files.open(path, OpenMode::read));
  FL_TRY(const std::uint64_t bytes, file->size());
  FL_TRY(const Digest digest, digest_of_file(files, path, bytes));
  return KeptState{std::move(name), bytes, digest};
}

}  // namespace

KeptRound KeptUpdates::description_of(const OpenRound& round) const {
  KeptRound kept;
  if (plan_.kept_rounds == 0) return kept;
  kept.run_key = plan_.run.key;
  kept.round = round.record.round;
  kept.software = software_version_and_commit;
  kept.settings = to_json(plan_.settings);
  for (const auto& [client, task] : round.tasks) {
    if (task.record.state == TaskState::accepted)
      kept.updates.push_back(kept_update_of(kept.round, task.record));
  }
  return kept;
}

Result<void> KeptUpdates::describe(KeptRound round) const {
  if (plan_.kept_rounds == 0) return {};
  FL_CHECK(files_.make_folder(folders_.kept));
  for (const std::string& name : state_names(base_of(round.round))) {
    const auto path = folders_.checkpoints / name;
    if (!files_.exists(path)) continue;
    FL_TRY(round.state.emplace_back(), kept_file(files_, path, name));
  }
  for (const KeptUpdate& update : round.updates) {
    if (update.reference == TaskId::none) continue;
    FL_TRY(round.references.emplace_back(),
           kept_file(files_, reference_of(update),
                     kept_reference_name(round.round, update.reference)));
  }
  FL_CHECK(write_description(files_, folders_.kept, round));
  failpoint("kept.described");
  return {};
}

Result<void> KeptUpdates::take(const KeptRound& round) {
  if (plan_.kept_rounds == 0) return {};
  FL_CHECK(move(round.round, round.updates));
  return round.round > plan_.kept_rounds ? drop(round.round - plan_.kept_rounds) : success();
}

Result<void> KeptUpdates::move(Round round, const std::vector<KeptUpdate>& updates) {
  const std::size_t spool_name = kept_update_name(round, "").size();
  for (const KeptUpdate& update : updates) {
    FL_CHECK(spool_.move_out(update.file.substr(spool_name), folders_.kept / update.file));
    if (update.reference == TaskId::none || !files_.exists(reference_of(update))) continue;
    FL_CHECK(move_file(files_, reference_of(update),
                       folders_.kept / kept_reference_name(round, update.reference)));
  }
  failpoint("kept.moved");
  return files_.sync_folder(folders_.kept);
}

std::filesystem::path KeptUpdates::reference_of(const KeptUpdate& update) const {
  return DeltaReferences::path_of(folders_.references, update.reference);
}

/// Removes a round: its description, the updates that this names, and the files beside its base.
/// Updates without a description are found by the next start.
Result<void> KeptUpdates::drop(Round round) {
  const auto described = read_description(files_, folders_.kept, round);
  FL_CHECK(files_.remove(folders_.kept / description_name(round)));
  if (described) {
    for (const KeptUpdate& update : described->updates) {
      if (round_of_kept(update.file) != round) continue;
      FL_CHECK(files_.remove(folders_.kept / update.file));
      if (update.reference == TaskId::none) continue;
      FL_CHECK(files_.remove(folders_.kept / kept_reference_name(round, update.reference)));
    }
  }
  for (const std::string& name : state_names(base_of(round)))
    FL_CHECK(files_.remove(folders_.checkpoints / name));
  return {};
}

Result<void> KeptUpdates::restore(Round last, const std::vector<TaskRecord>& tasks) {
  const bool is_on = plan_.kept_rounds > 0;
  if (!is_on && !files_.exists(folders_.kept)) return {};
  FL_CHECK(files_.make_folder(folders_.kept));
  if (is_on && files_.exists(folders_.kept / description_name(last))) {
    std::vector<KeptUpdate> updates;
    for (const TaskRecord& task : tasks) {
      if (task.state == TaskState::accepted) updates.push_back(kept_update_of(last, task));
    }
    FL_CHECK(move(last, updates));
  }
  FL_CHECK(tidy(last));
  // Keeps the state of the oldest replay's base, and always that of the version before the last.
  const Version oldest = is_on ? base_of(plan_.first_kept(last)) : made_by(last);
  return drop_state_before(std::min<Version>(oldest, last > 0 ? base_of(last) : 0));
}

/// Removes all files that belong to no kept round: descriptions of rounds that were never recorded,
/// and updates without a description. Descriptions go first.
Result<void> KeptUpdates::tidy(Round last) {
  FL_TRY(const auto names, files_.list(folders_.kept));
  std::set<Round> described;
  for (const auto& name : names) {
    const auto round = round_of_kept(name);
    if (!round || name != description_name(*round)) continue;
    if (*round <= last && *round >= plan_.first_kept(last)) {
      described.insert(*round);
    } else {
      FL_CHECK(files_.remove(folders_.kept / name));
    }
  }
  for (const auto& name : names) {
    const auto round = round_of_kept(name);
    const bool is_update = round && name != description_name(*round);
    const bool is_unfinished = name.ends_with(".tmp");
    if (!is_unfinished && (!is_update || described.contains(*round))) continue;
    FL_CHECK(files_.remove(folders_.kept / name));
  }
  return {};
}

Result<void> KeptUpdates::drop_state_before(Version version) {
  const auto names = files_.list(folders_.checkpoints);
  if (!names && names.error().code() == Errc::not_found) return {};
  FL_CHECK(names);
  for (const auto& name : *names) {
    const auto of = version_of_state(name);
    if (!of || *of >= version) continue;
    FL_CHECK(files_.remove(folders_.checkpoints / name));
  }
  return {};
}

}  // namespace fl::server
