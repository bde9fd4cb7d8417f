// SPDX-License-Identifier: Apache-2.0
// The model's versions that the server keeps: which there are, what a client downloads of them, and
// which files go. The values stay in the files (checkpoints.hpp). On the engine's strand; RoundSums
// calls at() on workers too, while nothing changes.
#pragma once

#include "server/host/download.hpp"
#include "server/versions/checkpoints.hpp"

#include <filesystem>
#include <map>
#include <memory>
#include <vector>

namespace fl::server {

class Versions {
 public:
  /// `layout` must outlive it.
  Versions(Files& files, std::filesystem::path folder, const Layout& layout)
      : files_(files), folder_(std::move(folder)), layout_(layout) {}

  /// Opens the recorded versions, at a start. Errors name the file and say what to do.
  [[nodiscard]] Result<void> open_all(const std::vector<CheckpointRecord>& records);
  /// Publishes the version that was just made and recorded. Doing it again changes nothing.
  [[nodiscard]] Result<void> publish(const CheckpointRecord& record);

  [[nodiscard]] bool empty() const { return versions_.empty(); }
  /// Requires: a version exists.
  [[nodiscard]] std::shared_ptr<const ModelVersion> newest() const {
    return versions_.rbegin()->second;
  }
  [[nodiscard]] Version newest_number() const { return versions_.rbegin()->first; }
  [[nodiscard]] bool contains(Version version) const { return versions_.contains(version); }
  /// Requires: contains(version).
  [[nodiscard]] std::shared_ptr<const ModelVersion> at(Version version) const {
    return versions_.at(version);
  }
  /// The kept versions, by number.
  [[nodiscard]] const std::map<Version, std::shared_ptr<const ModelVersion>>& all() const {
    return versions_;
  }
  [[nodiscard]] Files& files() const { return files_; }
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }

  /// What answers the Fetch: the requested version, whole or as the coded steps that lead to it
  /// from the client's version, whichever is shorter. Errors: not_found; unavailable, while too
  /// many files are open.
  [[nodiscard]] Result<Download> download(const wire::Fetch& fetch) const;

  /// Removes the files of a version that is not kept any more. Sessions that still send it keep
  /// them open.
  [[nodiscard]] Result<void> drop(Version version);
  [[nodiscard]] Result<void> remove_files(const CheckpointRecord& record) const;

 private:
  [[nodiscard]] Result<std::vector<Segment>> coded_steps(const wire::Fetch& fetch) const;

  Files& files_;
  std::filesystem::path folder_;
  const Layout& layout_;
  std::map<Version, std::shared_ptr<const ModelVersion>> versions_;
};

}  // namespace fl::server
