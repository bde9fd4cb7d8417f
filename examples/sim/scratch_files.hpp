// SPDX-License-Identifier: Apache-2.0
// ScratchFiles: the disk of a federation in one process. Such a federation is never resumed after a
// crash, so nothing is synced. There are two kinds of files:
//   - Passing files (updates on both ends, partial downloads, clients' manifests) are in memory
//     while somebody has them open. When the last user closes one, its bytes are dropped and only
//     its name stays, except for a round's uploads, which are kept until the server removes
//     them: 2 MiB of them in memory, the others on the disk. So the memory needed depends on the
//     clients at work, not on all clients.
//   - Lasting files (checkpoints, residuals of error feedback, references of deltas, states of
//     codecs) are files of the operating system.
//
// Any thread; one thread at a time uses a passing File. A range of a passing file that was never
// written has arbitrary contents, not zeros.
#pragma once

#include "shared/base/async/mutex.hpp"
#include "shared/base/io/file.hpp"

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace fl::sim {

class ScratchFiles final : public Files {
 public:
  ScratchFiles();
  Result<std::unique_ptr<File>> open(const std::filesystem::path& path, OpenMode mode) override;
  Result<void> rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  Result<void> remove(const std::filesystem::path& path) override;
  bool exists(const std::filesystem::path& path) override;
  Result<std::vector<std::string>> list(const std::filesystem::path& folder) override;
  Result<void> make_folder(const std::filesystem::path& folder) override;
  Result<void> sync_folder(const std::filesystem::path& folder) override;

 private:
  class Passing;
  class Kept;
  struct Contents;
  struct Buffers;
  using Names = std::map<std::string, std::weak_ptr<Contents>>;

  /// Whether a file of this name is a passing file, in memory.
  [[nodiscard]] bool is_passing(const std::filesystem::path& path) const;

  Files& disk_ = posix_files();
  std::shared_ptr<Buffers> buffers_;
  std::shared_ptr<Kept> kept_;
  Mutex mutex_;
  std::map<std::string, Names> folders_ FL_GUARDED_BY(mutex_);  // The passing files by folder.
};

}  // namespace fl::sim
