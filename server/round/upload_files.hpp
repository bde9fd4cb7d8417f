// SPDX-License-Identifier: Apache-2.0
// The spool, as the engine's strand uses it for uploads: files are opened on a worker, and an error
// of the disk either passes, and is reported, or stops the run. On the engine's strand.
#pragma once

#include "server/round/run_control.hpp"
#include "server/round/spool.hpp"
#include "shared/base/async/offload.hpp"

#include <memory>
#include <string_view>

namespace fl::server {

class UploadFiles {
 public:
  UploadFiles(RunControl& control, Offload& compute, Spool& spool)
      : control_(control), compute_(compute), spool_(spool) {}

  /// Opens the file for a task's update (Spool::open). After an error that will pass the upload can
  /// be announced again; any other has stopped the run.
  Awaitable<Result<std::shared_ptr<Upload>>> open(TaskId task, std::uint64_t bytes, Digest digest);
  /// Removes the file of an upload that does not count. An error stops the run.
  void discard(const Upload& upload);
  /// Reports that the upload of `whose` is postponed, if the error is that of a full disk, and
  /// frees what can be freed.
  void report_if_full(std::string_view whose, const Error& error);

 private:
  RunControl& control_;
  Offload& compute_;
  Spool& spool_;
};

}  // namespace fl::server
