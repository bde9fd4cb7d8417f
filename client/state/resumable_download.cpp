// SPDX-License-Identifier: Apache-2.0
#include "client/state/resumable_download.hpp"

#include <fmt/format.h>

#include <charconv>
#include <optional>

namespace fl::client {

namespace {

constexpr std::string_view prefix = "download-";

/// The transfer that a file's name contains, if it is such a name.
std::optional<std::uint32_t> transfer_of(std::string_view name) {
  std::uint32_t transfer = 0;
  if (!name.starts_with(prefix)) return std::nullopt;
  const char* const end = name.data() + name.size();
  const auto [at, failed] = std::from_chars(name.data() + prefix.size(), end, transfer, 16);
  if (failed != std::errc{} || at != end || transfer == 0) return std::nullopt;
  return transfer;
}

}  // namespace

Result<ResumableDownload> ResumableDownload::open(Files& files, std::filesystem::path folder) {
  ResumableDownload partial(files, std::move(folder));
  FL_TRY(const auto names, files.list(partial.folder_));
  std::size_t found = 0;
  for (const auto& name : names) {
    const auto transfer = transfer_of(name);
    if (!transfer) {
      if (name.starts_with(prefix)) FL_CHECK(files.remove(partial.folder_ / name));
      continue;
    }
    if (++found > 1) partial.drop();
    partial.transfer_ = *transfer;
  }
  if (found != 1) {
    partial.drop();
    return partial;
  }
  auto file = files.open(partial.path(), OpenMode::update);
  auto bytes = file ? (*file)->size() : file.error();
  if (!bytes) {
    partial.drop();
    return partial;
  }
  partial.file_ = std::move(*file);
  partial.bytes_ = *bytes;
  return partial;
}

std::filesystem::path ResumableDownload::path() const {
  return folder_ / fmt::format("{}{:08x}", prefix, transfer_);
}

Result<void> ResumableDownload::append(std::uint32_t transfer, Bytes bytes) {
  if (transfer != transfer_ || !file_) {
    drop();
    transfer_ = transfer;
    FL_TRY(file_, files_->open(path(), OpenMode::truncate));
  }
  FL_CHECK(file_->write_at(bytes_, bytes));
  bytes_ += bytes.size();
  return {};
}

Result<void> ResumableDownload::read(std::uint64_t offset, MutableBytes out) {
  FL_ASSERT(file_ && offset + out.size() <= bytes_);
  return file_->read_exactly(offset, out);
}

void ResumableDownload::drop() {
  file_.reset();
  bytes_ = 0;
  if (transfer_ == 0) return;
  [[maybe_unused]] const auto removed = files_->remove(path());
  transfer_ = 0;
}

}  // namespace fl::client
