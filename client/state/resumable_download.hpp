// The beginning of a whole model that is being downloaded slowly, in a file of its own
// (STATE/download-TRANSFER), so that a client that is restarted goes on at that byte. It is not
// synced: what a power loss makes of it shows in the model's digest, and then it is downloaded
// anew.
//
// Blocking; one thread at a time (the agent's worker, while the agent waits for it).
#pragma once

#include "shared/base/io/file.hpp"

#include <cstdint>
#include <filesystem>
#include <memory>

namespace fl {

class ResumableDownload {
 public:
  /// Finds what an earlier process has left; of several files, and of one that can't be opened,
  /// none counts.
  static Result<ResumableDownload> open(Files& files, std::filesystem::path folder);

  /// What the bytes are (wire::ModelHeader::transfer), and how many; 0 when there is nothing.
  [[nodiscard]] std::uint32_t transfer() const { return transfer_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

  /// Appends; a new transfer begins at offset 0, in place of what was there.
  [[nodiscard]] Result<void> append(std::uint32_t transfer, Bytes bytes);
  /// The first out.size() bytes.
  [[nodiscard]] Result<void> read(MutableBytes out);
  /// Nothing is lost if the file can't be removed: the next one takes its place.
  void drop();

 private:
  ResumableDownload(Files& files, std::filesystem::path folder)
      : files_(&files), folder_(std::move(folder)) {}
  [[nodiscard]] std::filesystem::path path() const;

  Files* files_;
  std::filesystem::path folder_;
  std::unique_ptr<File> file_;
  std::uint32_t transfer_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace fl
