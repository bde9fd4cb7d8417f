// SPDX-License-Identifier: Apache-2.0
// How a round takes updates in. Those in the clear are decoded, judged and added at once
// (decoded_intake.hpp). Masked ones, which the server can't read, are held until it is known whose
// count (masked_intake.hpp). Whatever depends on the kind stands behind this interface: what an
// announcement must fit, what is checked of a whole upload, what the sums are, what the mean is
// read from, and what the history says of single updates. Uploads, Offers and the main loop know
// only the interface.
//
// All functions run on the engine's strand, but mean() on a worker. An implementation may block
// only on workers.
#pragma once

#include "server/host/upload_grant.hpp"
#include "server/round/mean_sample.hpp"
#include "server/round/spool.hpp"
#include "server/round/tasks.hpp"
#include "shared/base/async/asio.hpp"
#include "shared/codec/core/lane_step.hpp"
#include "shared/params/read_values.hpp"
#include "shared/wire/message.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace fl::server {

class UpdateIntake {
 public:
  virtual ~UpdateIntake() = default;

  /// The open round begins, and nothing counts in it yet. Before the first call, and after
  /// release(), nothing else may be called, except rebuild().
  virtual Awaitable<Result<void>> open_round() = 0;
  /// Takes the open round's accepted updates in again, from the spool: a restart comes to what was
  /// there before. While the disk is full it waits.
  virtual Awaitable<Result<void>> rebuild() = 0;

  /// What an announcement for an open task is answered where none of its bytes are needed now.
  [[nodiscard]] virtual std::optional<wire::Verdict> answer_to(
      [[maybe_unused]] const wire::UploadBegin& begin,
      [[maybe_unused]] const std::string& client) const {
    return std::nullopt;
  }
  /// Whether an announcement fits its task, which is open, in all that depends on the kind: its
  /// codec and its length. The rest is checked beside it (announcement.hpp). An error refuses the
  /// update.
  [[nodiscard]] virtual Result<void> check(const wire::UploadBegin& begin,
                                           const Task& task) const = 0;
  /// Whether announcements say what the training was like.
  [[nodiscard]] virtual bool reads_figures() const { return true; }

  enum class Taken {
    counts,  // The update is to be accepted.
    held,    // It is durable, and decided with others.
  };
  /// Takes a complete upload in, once or not at all: checks its digest, makes its bytes durable
  /// (Spool::finish()), and adds it. May take until the round closes. The caller holds a
  /// DecidingGuard of the task, and has put the announcement's figures into `record`, to which
  /// this adds its own; it keeps `grant` until this returns.
  /// Errors: `cancelled` when the server goes down. `io` and `internal` stop the run: the disk
  /// failed, or what was added can't be taken back, and a restart begins with rebuild(). After an
  /// error that will pass, or when the bytes differ from the announced digest (Upload::differs()),
  /// the client may send the update again. Any other error refuses it.
  virtual Awaitable<Result<Taken>> take(Task& task, TaskRecord& record,
                                        const UploadGrant& grant) = 0;
  /// An update was refused for an error of take(), and its file is gone: forgets what the client's
  /// next updates would refer to.
  [[nodiscard]] virtual Result<void> forget(const TaskRecord& refused, const Error& error) = 0;

  /// The round is closed: makes the result of its accepted updates final. Only while nothing is
  /// being taken in. While the disk is full it waits.
  virtual Awaitable<Result<void>> settle() = 0;
  /// Reads the mean of the accepted updates, or what counts as it. After settle(), and valid until
  /// the next open_round(). Errors: those of reading the spool.
  [[nodiscard]] virtual Result<ReadValues> mean() const = 0;
  /// The cosine of each accepted update with the mean, on a sample of the elements, for the
  /// history. After mean() was read. Updates without a cosine are left out: all of them, where the
  /// server can't read updates. Errors: those of reading the spool.
  virtual Awaitable<Result<std::vector<TaskCosine>>> cosines(
      [[maybe_unused]] const MeanSample& sample) {
    co_return std::vector<TaskCosine>();
  }
  /// The tally of each tensor, over all accepted updates with these steps of "lanes" (one for each
  /// tensor). After settle(). Errors: those of reading the spool.
  virtual Awaitable<Result<std::vector<codec::LaneTally>>> lane_tallies(codec::LaneSteps steps) = 0;
  /// Frees the memory. Only while no round is open.
  virtual void release() = 0;
};

}  // namespace fl::server
