// SPDX-License-Identifier: Apache-2.0
#include "server/app/backup.hpp"

#include "server/app/run_queue.hpp"
#include "server/round/kept_round.hpp"
#include "server/versions/checkpoints.hpp"
#include "server/versions/make_version.hpp"
#include "shared/params/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace fl::server {

namespace {

constexpr std::size_t piece_bytes = 1 << 20;
/// A server whose rounds take milliseconds may be faster than a copy.
constexpr int tries_max = 5;

Error overtaken(const RunRecord& run, Version version) {
  return {Errc::unavailable,
          fmt::format("the server has dropped what run {} needs after round {}: it was faster than "
                      "the copy; try again",
                      run.id, version)};
}

/// One backup under way, into a folder that gets its name when it is complete.
class Backup {
 public:
  Backup(Files& files, std::filesystem::path state, std::filesystem::path folder)
      : files_(files), state_(std::move(state)), folder_(std::move(folder)) {}

  Result<BackupReport> make(Store& store);

 private:
  /// The bytes of a file that have a digest in the history, and that digest.
  struct Recorded {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    Digest digest;
  };
  Result<void> copy(const std::filesystem::path& name, const std::optional<Recorded>& recorded);
  Result<void> copy_if_there(const std::filesystem::path& name);
  Result<void> copy_all_of(const std::filesystem::path& folder);
  Result<void> copy_run(Store& copied, const RunRecord& run);
  Result<void> copy_newest_state(const std::filesystem::path& folder, Version newest);
  Result<void> copy_older_state(const std::filesystem::path& folder, Version newest);
  Result<void> copy_version(const std::filesystem::path& folder, const CheckpointRecord& version);
  Result<void> copy_open_round(Store& copied, RunId run);
  Result<void> copy_kept(Store& copied, const RunRecord& run);
  Result<void> copy_kept_round(const std::filesystem::path& folder, const KeptRound& round);

  Files& files_;
  std::filesystem::path state_;
  std::filesystem::path folder_;
  BackupReport report_;
};

/// Copies STATE/name durably. `corrupt`: its recorded bytes do not have their digest.
Result<void> Backup::copy(const std::filesystem::path& name,
                          const std::optional<Recorded>& recorded) {
  FL_TRY(const auto from, files_.open(state_ / name, OpenMode::read));
  FL_TRY(const auto to, files_.open(folder_ / name, OpenMode::fresh));
  Hasher hasher;
  std::vector<std::byte> piece(piece_bytes);
  Writeback writeback;
  std::uint64_t at = 0;
  for (;;) {
    FL_TRY(const std::size_t got, from->read_at(at, piece));
    const Bytes bytes = Bytes(piece).first(got);
    FL_CHECK(to->write_at(at, bytes));
    if (recorded) {
      const std::uint64_t first = std::clamp(recorded->begin, at, at + got);
      const std::uint64_t last = std::clamp(recorded->end, first, at + got);
      hasher.update(bytes.subspan(first - at, last - first));
    }
    at += got;
    writeback.reached(*to, at);
    if (got < piece.size()) break;
  }
  const bool differs = recorded && (at < recorded->end || hasher.digest() != recorded->digest);
  if (differs) {
    FL_CHECK(files_.remove(folder_ / name));
    return Error(Errc::corrupt, fmt::format("{} has not the digest that the history has",
                                            (state_ / name).string()));
  }
  FL_CHECK(to->sync());
  ++report_.files;
  report_.bytes += at;
  return {};
}

/// Copies a file, or leaves it out silently if the server has removed it meanwhile.
Result<void> Backup::copy_if_there(const std::filesystem::path& name) {
  auto copied = copy(name, std::nullopt);
  return !copied && copied.error().code() == Errc::not_found ? success() : copied;
}

/// All files of STATE/folder. One that vanishes meanwhile is left out.
Result<void> Backup::copy_all_of(const std::filesystem::path& folder) {
  const auto names = files_.list(state_ / folder);
  if (!names && names.error().code() == Errc::not_found) return {};
  if (!names) return names.error();
  FL_CHECK(files_.make_folder(folder_ / folder));
  for (const auto& name : *names) {
    if (name.ends_with(".tmp")) continue;
    FL_CHECK(copy_if_there(folder / name));
  }
  return files_.sync_folder(folder_ / folder);
}

/// Copies the state from which the next round starts. `not_found`: the server has removed some of
/// it, as it does once it has made two more versions.
Result<void> Backup::copy_newest_state(const std::filesystem::path& folder, Version newest) {
  FL_TRY(const auto names, files_.list(state_ / folder));
  // If the server had removed a file before the first list, the version that it made just before
  // would stand in the second list.
  FL_TRY(const auto names_now, files_.list(state_ / folder));
  for (const std::string& name : names_now) {
    const auto version = version_of_checkpoint(name);
    if (version && *version > newest + 1) return Error(Errc::not_found, "the next round's state");
  }
  for (const std::string& name : names) {
    if (version_of_state(name) == newest) FL_CHECK(copy(folder / name, std::nullopt));
  }
  return {};
}

/// Copies the state of older versions, which only replays read. A file that vanishes meanwhile is
/// left out.
Result<void> Backup::copy_older_state(const std::filesystem::path& folder, Version newest) {
  FL_TRY(const auto names, files_.list(state_ / folder));
  for (const std::string& name : names) {
    const auto version = version_of_state(name);
    if (version && *version < newest) FL_CHECK(copy_if_there(folder / name));
  }
  return {};
}

/// The version's model, and the coded step to it.
Result<void> Backup::copy_version(const std::filesystem::path& folder,
                                  const CheckpointRecord& version) {
  FL_TRY(const auto model, files_.open(state_ / folder / version.file, OpenMode::read));
  const auto info = read_safetensors_header(*model);
  if (!info) return info.error().at((state_ / folder / version.file).string());
  const std::uint64_t begin = info->begin.front();
  if (!version.delta_file.empty()) FL_CHECK(copy(folder / version.delta_file, std::nullopt));
  FL_CHECK(
      copy(folder / version.file, Recorded{begin, begin + info->layout.bytes(), version.digest}));
  ++report_.models;
  return {};
}

/// The newest version's state goes first, because the server removes it first. Then the versions,
/// from the newest to the oldest, because the server removes the oldest ones first.
Result<void> Backup::copy_run(Store& copied, const RunRecord& run) {
  FL_TRY(auto versions, copied.rounds().checkpoints(run.id));
  if (versions.empty()) return {};
  std::ranges::reverse(versions);
  const Version newest = versions.front().version;
  const bool is_over = run.state == RunState::finished || run.state == RunState::stopped;
  const auto folder = checkpoints_of("", run);
  FL_CHECK(files_.make_folder(folder_ / folder));
  const auto is_gone = [](const Result<void>& copy) {
    return !copy && copy.error().code() == Errc::not_found;
  };
  const auto state = copy_newest_state(folder, newest);
  if (is_gone(state) && !is_over) return overtaken(run, newest);
  if (!is_gone(state)) FL_CHECK(state);
  for (const CheckpointRecord& version : versions) {
    const auto done = copy_version(folder, version);
    if (done) continue;
    const Error& why = done.error();
    if (!is_gone(done) && why.code() != Errc::corrupt) return why;
    if (version.version == newest && !is_over) return is_gone(done) ? overtaken(run, newest) : why;
    report_.left_out.push_back(
        fmt::format("the model of run {} after round {}: {}", run.id, version.version,
                    is_gone(done) ? "the server has dropped it meanwhile" : why.message()));
    FL_CHECK(copied.archive().forget_checkpoint(run.id, version.version));
  }
  const auto older = copy_older_state(folder, newest);
  if (!is_gone(older)) FL_CHECK(older);
  return files_.sync_folder(folder_ / folder);
}

/// The updates that the open round has counted so far.
Result<void> Backup::copy_open_round(Store& copied, RunId run) {
  FL_TRY(const auto open, copied.rounds().unfinished(run));
  if (!open) return {};
  FL_CHECK(files_.make_folder(folder_ / "spool"));
  for (const TaskRecord& task : open->tasks) {
    if (task.state != TaskState::accepted) continue;
    const bool has_reference =
        task.reference == TaskId::none ||
        files_.exists(folder_ / "references" / std::to_string(number_of(task.reference)));
    auto done = has_reference ? copy(std::filesystem::path("spool") / task.spool_file,
                                     Recorded{0, task.update_bytes, task.update_digest})
                              : Result<void>(Error(Errc::not_found, "what it refers to is gone"));
    if (done) continue;
    if (done.error().code() != Errc::not_found && done.error().code() != Errc::corrupt) return done;
    report_.left_out.push_back(
        fmt::format("an update of {} for round {}: the server has used it up meanwhile",
                    task.client, open->round.round));
    FL_CHECK(copied.archive().forget_update(task.id, "it was not in the backup that was restored"));
  }
  return files_.sync_folder(folder_ / "spool");
}

/// The description goes last: a round without one is not kept.
Result<void> Backup::copy_kept_round(const std::filesystem::path& folder, const KeptRound& round) {
  for (const KeptState& each : files_beside(round)) {
    if (round_of_kept(each.file) != round.round)
      return Error(Errc::corrupt, fmt::format("its description names {}", each.file));
    FL_CHECK(copy(folder / each.file, Recorded{0, each.bytes, each.digest}));
  }
  return copy(folder / description_name(round.round), std::nullopt);
}

/// The kept updates of the rounds that are recorded in the copy. A round that can't be copied whole
/// is left out.
Result<void> Backup::copy_kept(Store& copied, const RunRecord& run) {
  const auto folder = kept_updates_of("", run);
  FL_TRY(const auto rounds, described_rounds(files_, state_ / folder));
  FL_TRY(const auto recorded, copied.summaries().rounds(run.id));
  const Round last = recorded.empty() ? 0 : recorded.back().round;
  if (rounds.empty()) return {};
  FL_CHECK(files_.make_folder(folder_ / folder));
  for (const Round round : rounds) {
    if (round > last) continue;
    const auto described = read_description(files_, state_ / folder, round);
    const auto done =
        described ? copy_kept_round(folder, *described) : Result<void>(described.error());
    if (done) continue;
    const Errc why = done.error().code();
    if (why != Errc::not_found && why != Errc::corrupt) return done;
    report_.left_out.push_back(fmt::format(
        "the kept updates of run {}, round {}: {}", run.id, round,
        why == Errc::not_found ? "the server has dropped them meanwhile, or they are lost"
                               : done.error().message()));
    if (!described) continue;
    for (const KeptState& each : files_beside(*described)) {
      if (round_of_kept(each.file) != round) continue;
      FL_CHECK(files_.remove(folder_ / folder / each.file));
    }
  }
  return files_.sync_folder(folder_ / folder);
}

Result<BackupReport> Backup::make(Store& store) {
  FL_CHECK(files_.make_folder(folder_));
  const auto database = folder_ / "history.sqlite";
  FL_CHECK(store.archive().copy_into(database));
  {
    FL_TRY(const auto copied, Store::open({database, "", false, false, true}));
    FL_TRY(const auto runs, copied->runs().all());
    // The files that are used up soonest go first: an open round's updates, then the newest models.
    FL_CHECK(copy_all_of("references"));
    for (const RunSummary& each : runs) FL_CHECK(copy_open_round(*copied, each.run.id));
    for (const RunSummary& each : runs) FL_CHECK(copy_run(*copied, each.run));
    for (const RunSummary& each : runs) FL_CHECK(copy_kept(*copied, each.run));
  }
  FL_CHECK(copy_all_of("identity"));
  FL_TRY(const auto file, files_.open(database, OpenMode::update));
  FL_CHECK(file->sync());
  FL_TRY(const std::uint64_t database_bytes, file->size());
  ++report_.files;
  report_.bytes += database_bytes;
  FL_CHECK(files_.sync_folder(folder_));
  return report_;
}

}  // namespace

Result<BackupReport> back_up(Files& files, Store& store, const std::filesystem::path& state,
                             const std::filesystem::path& to) {
  std::error_code failed;
  const std::filesystem::path folder = to.string() + ".tmp";
  for (const auto& path : {to, folder}) {
    if (!std::filesystem::exists(path, failed)) continue;
    return Error(
        Errc::conflict,
        fmt::format("{} is there already: name another folder, or remove it", path.string()));
  }
  auto made = Backup(files, state, folder).make(store);
  for (int tries = 1; !made; ++tries) {
    std::filesystem::remove_all(folder, failed);
    if (made.error().code() != Errc::unavailable || tries == tries_max) return made;
    made = Backup(files, state, folder).make(store);
  }
  FL_CHECK(files.rename(folder, to));
  FL_CHECK(files.sync_folder(std::filesystem::absolute(to).parent_path()));
  return made;
}

}  // namespace fl::server
