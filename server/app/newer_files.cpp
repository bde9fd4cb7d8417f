// SPDX-License-Identifier: Apache-2.0
#include "server/app/newer_files.hpp"

#include "server/history/extent.hpp"
#include "server/round/kept_round.hpp"
#include "server/round/spool.hpp"
#include "server/versions/checkpoints.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/io/file.hpp"
#include "shared/base/json.hpp"
#include "shared/base/log.hpp"
#include "shared/base/spec/spec_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace fl::server {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view note_name = "audit.json";
constexpr std::string_view run_folder = "run-";

/// The names in a folder, the last first; none where it is missing.
Result<std::vector<std::string>> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed))
    names.push_back(at->path().filename().string());
  if (failed && failed != std::errc::no_such_file_or_directory &&
      failed != std::errc::not_a_directory)
    return Error(Errc::io, fmt::format("{}: {}", folder.string(), failed.message()));
  std::ranges::sort(names, std::greater());
  return names;
}

/// The files of a state folder. They are listed before the history is read, which only ever gets
/// longer: so files that a running server makes meanwhile do not look newer.
struct OnDisk {
  struct Entry {
    fs::path folder;  // The folder, by its path in the state.
    std::string name;
    RunId run = 0;  // The run that the folder belongs to; 0: no single run.
  };
  std::vector<Entry> versions;  // Checkpoints, the files beside them, and kept updates.
  std::vector<Entry> runs;      // Folders of runs; `run` is the run's number.
  /// Uploads in the spool. References are not listed: a backup has newer ones.
  std::vector<Entry> updates;
  std::int64_t audit = 0;  // The noted number of the audit's rows.
};

std::optional<RunId> run_of_folder(std::string_view name) {
  if (!name.starts_with(run_folder)) return std::nullopt;
  return number_in<RunId>(name.substr(run_folder.size()));
}

Result<void> list_versions(const fs::path& state, const fs::path& folder, OnDisk& found) {
  FL_TRY(const auto names, names_in(state / folder));
  for (const std::string& name : names) {
    const auto run = run_of_folder(name);
    if (!run) {
      // Files in this folder belong to the first run.
      found.versions.push_back({folder, name, 1});
      continue;
    }
    found.runs.push_back({folder, name, *run});
    FL_TRY(const auto files, names_in(state / folder / name));
    for (const std::string& file : files) found.versions.push_back({folder / name, file, *run});
  }
  return {};
}

Result<std::int64_t> noted_audit(const fs::path& state) {
  const auto text = posix_files().read_all(state / note_name);
  if (!text && text.error().code() == Errc::not_found) return std::int64_t{0};
  if (!text) return text.error();
  const auto note = parse_json(*text);
  const auto rows = note.is_object() && note.contains("rows")
                        ? number_in<std::int64_t>(note["rows"])
                        : std::nullopt;
  if (rows && *rows >= 0) return *rows;
  return Error(Errc::corrupt,
               fmt::format("{} can't be read, which says how many rows the history's audit has: "
                           "restore it, or remove it",
                           (state / note_name).string()));
}

Result<OnDisk> list_files(const fs::path& state) {
  OnDisk found;
  for (const char* const folder : {"checkpoints", "kept-updates"})
    FL_CHECK(list_versions(state, folder, found));
  FL_TRY(const auto names, names_in(state / "spool"));
  for (const std::string& name : names) found.updates.push_back({"spool", name});
  FL_TRY(found.audit, noted_audit(state));
  return found;
}

/// The version that the file belongs to; none if it belongs to no version.
std::optional<Version> version_of(const OnDisk::Entry& file) {
  if (*file.folder.begin() == "kept-updates") return round_of_kept(file.name);
  const Version version = version_in_name(file.name);
  return version == 0 ? std::nullopt : std::optional(version);
}

std::optional<NewerFile> is_newer_version(const OnDisk::Entry& file, const HistoryExtent& known) {
  if (file.run > known.newest_run)
    return NewerFile{file.folder / file.name, "it knows no run that this is of"};
  const auto run = known.newest_versions.find(file.run);
  const auto version = version_of(file);
  if (!version || run == known.newest_versions.end()) return std::nullopt;
  const std::int64_t last = run->second ? std::int64_t{*run->second} : -1;
  // A crash leaves files of the version that was being made.
  if (std::int64_t{*version} <= last + 1) return std::nullopt;
  return NewerFile{file.folder / file.name,
                   last < 0 ? fmt::format("it knows no model of run {}", file.run)
                            : fmt::format("run {} ends there at version {}", file.run, last)};
}

std::vector<NewerFile> newer_than(const HistoryExtent& known, const OnDisk& found) {
  std::vector<NewerFile> newer;
  for (const auto& folder : found.runs)
    if (folder.run > known.newest_run)
      newer.push_back({folder.folder / folder.name, "it knows no run of this number"});
  for (const auto& file : found.versions) {
    const bool has_folder = file.folder.has_parent_path();
    if (has_folder && file.run > known.newest_run)
      continue;  // The list has the whole folder already.
    if (auto one = is_newer_version(file, known)) newer.push_back(std::move(*one));
  }
  // Uploads of a pruned run stay until the next run has its first task, so nothing is compared
  // before.
  for (const auto& file : found.updates) {
    const auto task = task_of_upload(file.name);
    if (task && known.newest_task && *task > *known.newest_task)
      newer.push_back({file.folder / file.name,
                       fmt::format("its newest task there is {}", number_of(*known.newest_task))});
  }
  if (found.audit > known.newest_audit)
    newer.push_back({note_name, fmt::format("its audit has {} rows, and had {}: who joined or was "
                                            "revoked since then is forgotten",
                                            known.newest_audit, found.audit)});
  return newer;
}

void warn_of_note(const Result<void>& written) {
  log_warn("the note of the audit's rows can't be written: {}", written.error().message());
}

}  // namespace

Result<std::vector<NewerFile>> find_newer_files(const fs::path& state) {
  FL_TRY(const OnDisk found, list_files(state));
  FL_TRY(const HistoryExtent known, read_extent(state / "history.sqlite"));
  return newer_than(known, found);
}

Result<void> check_nothing_newer(const fs::path& state) {
  FL_TRY(const auto newer, find_newer_files(state));
  if (newer.empty()) return {};
  const auto& first = newer.front();
  return Error(
      Errc::conflict,
      fmt::format(
          "{} is older than {} ({}){}, so a part of it is missing. If it was copied from another "
          "place, bring its file history.sqlite-wal too, which belongs to it; or restore a backup "
          "into another --state. 'fl-server --older-history' goes on from what there is, mostly "
          "with --new-run: it moves the newer files aside, and what was recorded since then is "
          "forgotten, members and "
          "revocations too",
          (state / "history.sqlite").string(), first.path.string(), first.why,
          newer.size() == 1 ? "" : fmt::format(", and than {} more", newer.size() - 1)));
}

Result<void> set_newer_aside(const fs::path& state) {
  FL_TRY(const auto newer, find_newer_files(state));
  if (newer.empty()) return {};
  const auto aside =
      fmt::format("newer-than-history-{}", static_cast<std::int64_t>(Clock::unix_seconds()));
  Files& files = posix_files();
  for (const NewerFile& file : newer) {
    const auto to = state / aside / file.path;
    FL_CHECK(files.make_folder(to.parent_path()));
    FL_CHECK(files.rename(state / file.path, to));
  }
  log_warn("--older-history: {} newer files were moved into {}", newer.size(),
           (state / aside).string());
  return {};
}

Result<void> note_audit(const fs::path& state, std::int64_t rows) {
  const std::string text = json_text(nlohmann::json{{"rows", rows}}) + "\n";
  return posix_files().write_atomically(state / note_name, bytes_of(std::string_view(text)));
}

Awaitable<void> keep_audit_note(StoreThread& store, HistoryChanges& changes, fs::path state,
                                std::shared_ptr<std::atomic<bool>> stop) {
  struct Noted {
    std::int64_t rows = 0;
    Result<void> written;
  };
  std::int64_t last = -1;
  std::uint64_t changes_seen = 0;
  bool has_warned = false;
  while (!*stop) {
    // An error of the note is not returned as the store's, because that would end the run.
    auto note = [state, last](Store& of) -> Result<Noted> {
      FL_TRY(const std::int64_t rows, of.audit().rows());
      return Noted{rows, rows == last ? success() : note_audit(state, rows)};
    };
    const auto noted = co_await store.with_store(std::move(note));
    if (noted && noted->written) last = noted->rows;
    if (noted && !noted->written && !std::exchange(has_warned, true)) warn_of_note(noted->written);
    co_await changes.wait(changes_seen);
  }
}

void note_last_audit(Audit& audit, const fs::path& state) {
  const auto rows = audit.rows();
  const Result<void> written = rows ? note_audit(state, *rows) : Result<void>(rows.error());
  if (!written) warn_of_note(written);
}

}  // namespace fl::server
