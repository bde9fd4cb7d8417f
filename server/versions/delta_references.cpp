// SPDX-License-Identifier: Apache-2.0
#include "server/versions/delta_references.hpp"

#include "shared/base/log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>
#include <vector>

namespace fl::server {

namespace {

/// Adds an update's reference to it, and writes the result to the update's file.
struct Keeping {
  std::shared_ptr<File> from;  // Null: the update refers to nothing, which counts as zeros.
  std::shared_ptr<File> to;    // Null: nothing is written.
  std::string from_path;
  std::string to_path;
  std::uint64_t kept = 0;  // Bytes that are in the file already.
  bool has_failed = false;
  std::vector<float> reference;

  Result<void> operator()(std::uint64_t first, std::span<float> values) {
    reference.assign(values.size(), 0.0f);
    const std::uint64_t at = first * sizeof(float);
    if (from) {
      auto read = from->read_exactly(at, std::as_writable_bytes(std::span(reference)));
      if (!read) return read.error().at(from_path);
    }
    // The order of the sum is that of add_decoded(), with which the client makes its own copy.
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = reference[i] + values[i];
    // After a failed write (a full disk), or a bad block, the update is taken out of the sums
    // again: that still needs the values, but not the file.
    if (!to || has_failed || at < kept) return {};
    auto written = to->write_at(at, std::as_bytes(values));
    has_failed = written.has_error();
    if (has_failed) return written.error().at(to_path);
    kept = at + values.size_bytes();
    return {};
  }
};

}  // namespace

std::filesystem::path DeltaReferences::path_of(const std::filesystem::path& folder, TaskId task) {
  return folder / std::to_string(number_of(task));
}

std::filesystem::path DeltaReferences::path_of(TaskId task) const {
  const auto place = places_.find(task);
  return place != places_.end() ? place->second : path_of(folder_, task);
}

Result<void> DeltaReferences::prepare(Tasks newest) {
  FL_CHECK(files_.make_folder(folder_));
  newest_ = std::move(newest);
  for (auto at = newest_.begin(); at != newest_.end();) {
    FL_TRY(const bool is_there, is_whole(at->second));
    if (is_there) {
      ++at;
      continue;
    }
    log_warn("{} is missing, or cut off: the next update of {} is coded without a reference",
             path_of(at->second).string(), at->first);
    at = newest_.erase(at);
  }
  return remove_others();
}

Result<bool> DeltaReferences::is_whole(TaskId task) const {
  if (!files_.exists(path_of(task))) return false;
  FL_TRY(const auto file, files_.open(path_of(task), OpenMode::read));
  FL_TRY(const std::uint64_t size, file->size());
  return size == bytes_;
}

TaskId DeltaReferences::of(const std::string& client) const {
  const auto found = newest_.find(client);
  return found != newest_.end() ? found->second : TaskId::none;
}

Result<AdjustUpdate> DeltaReferences::keep(TaskId task, TaskId reference) const {
  return adjust(is_replay_ ? TaskId::none : task, reference);
}

Result<AdjustUpdate> DeltaReferences::apply(TaskId reference) const {
  return adjust(TaskId::none, reference);
}

Result<AdjustUpdate> DeltaReferences::adjust(TaskId to, TaskId reference) const {
  auto keeping = std::make_shared<Keeping>();
  keeping->from_path = path_of(reference).string();
  keeping->to_path = path_of(to).string();
  if (reference != TaskId::none) {
    FL_TRY(keeping->from, files_.open(path_of(reference), OpenMode::read));
  }
  if (to != TaskId::none) {
    FL_TRY(keeping->to, files_.open(path_of(to), OpenMode::create));
  }
  return AdjustUpdate([keeping](std::uint64_t first, std::span<float> values) {
    return (*keeping)(first, values);
  });
}

Result<void> DeltaReferences::refuse(const std::string& client, TaskId task,
                                     bool is_reference_bad) {
  if (is_reference_bad) newest_.erase(client);
  return files_.remove(path_of(task));
}

Result<void> DeltaReferences::sync(const Tasks& tasks) const {
  if (tasks.empty() || is_replay_) return {};
  const auto once = [](const Result<void>& synced) -> Result<void> {
    if (synced) return {};
    return Error(Errc::io, synced.error().message());
  };
  for (const auto& [client, task] : tasks) {
    FL_TRY(const auto file, files_.open(path_of(task), OpenMode::update));
    FL_CHECK(once(file->sync()));
  }
  return once(files_.sync_folder(folder_));
}

Result<void> DeltaReferences::advance(const Tasks& tasks) {
  if (tasks.empty() && newest_.empty()) return {};
  for (const auto& [client, task] : tasks) newest_[client] = task;
  return remove_others();
}

/// The removed files are of no use any more. If the server dies first, the next start removes them.
Result<void> DeltaReferences::remove_others() const {
  std::set<std::string> wanted;
  for (const auto& [client, task] : newest_) wanted.insert(std::to_string(number_of(task)));
  FL_TRY(const auto names, files_.list(folder_));
  for (const auto& name : names) {
    if (!wanted.contains(name)) FL_CHECK(files_.remove(folder_ / name));
  }
  return {};
}

}  // namespace fl::server
