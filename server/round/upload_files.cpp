// SPDX-License-Identifier: Apache-2.0
#include "server/round/upload_files.hpp"

#include <fmt/format.h>

#include <utility>

namespace fl::server {

Awaitable<Result<std::shared_ptr<Upload>>> UploadFiles::open(TaskId task, std::uint64_t bytes,
                                                             Digest digest) {
  control_.expect_strand();
  auto work = [this, task, bytes, digest] { return spool_.open(task, bytes, digest); };
  auto upload = co_await compute_.run(std::move(work));
  if (upload) co_return upload;
  if (!will_pass(upload.error())) control_.fail(upload.error());
  report_if_full(fmt::format("task {}", task), upload.error());
  co_return upload;
}

void UploadFiles::discard(const Upload& upload) {
  if (auto removed = spool_.discard(upload); !removed) control_.fail(removed.error());
}

void UploadFiles::report_if_full(std::string_view whose, const Error& error) {
  if (error.code() == Errc::no_space)
    control_.store.report_full_disk(
        fmt::format("{}: upload postponed: {}", whose, error.message()));
}

}  // namespace fl::server
