// The disk of a federation in one process, which never goes on after a crash: nothing is synced,
// and what only passes through (updates on both ends, partial downloads, clients' manifests) lies
// in memory, for as long as somebody has the file open: then its bytes are forgotten and its name
// stays, but for two MiB of small uploads. So memory is that of the clients at work, not of all.
// What lasts (checkpoints, residuals of error feedback, references of deltas, states of codecs)
// lies in files of the operating system.
//
// Any thread; one File of the passing kind is used by one thread at a time. A range of it that was
// jumped over holds anything, not zeros.
#pragma once

#include "shared/base/io/file.hpp"

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace fl {

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
  class Recent;
  struct Contents;
  struct Buffers;
  using Names = std::map<std::string, std::weak_ptr<Contents>>;

  /// Whether a file of this name lies in memory.
  static bool is_passing(const std::filesystem::path& path);

  Files& disk_ = posix_files();
  std::shared_ptr<Buffers> buffers_;
  std::shared_ptr<Recent> recent_;
  std::mutex mutex_;                      // Guards what follows.
  std::map<std::string, Names> folders_;  // Of the passing files.
};

}  // namespace fl
