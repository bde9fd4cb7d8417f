// SPDX-License-Identifier: Apache-2.0
// ResumableDownload: the part of a full model that was already downloaded, in the file
// STATE/download-TRANSFER. A client that restarts during a slow download continues at that byte.
// The file is not synced. If a power loss damages it, the model's digest shows that, and the client
// downloads the model again.
//
// All calls block. One thread at a time (the agent's worker, while the agent waits for it).
#pragma once

#include "shared/base/io/file.hpp"

#include <cstdint>
#include <filesystem>
#include <memory>

namespace fl::client {

class ResumableDownload {
 public:
  /// Looks for the file of an earlier process. If there are several, or it can't be opened, they
  /// are removed and the download starts from byte 0.
  static Result<ResumableDownload> open(Files& files, std::filesystem::path folder);

  /// The transfer of the saved bytes (wire::ModelHeader::transfer) and their number. Both are 0 if
  /// there are none.
  [[nodiscard]] std::uint32_t transfer() const { return transfer_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

  /// Appends bytes. The first bytes of another transfer replace the saved ones.
  [[nodiscard]] Result<void> append(std::uint32_t transfer, Bytes bytes);
  /// Reads the bytes from `offset` on; they must be among the saved ones.
  [[nodiscard]] Result<void> read(std::uint64_t offset, MutableBytes out);
  /// Removes the saved bytes. If the file can't be removed, the next open() or append() deals with
  /// it.
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

}  // namespace fl::client
