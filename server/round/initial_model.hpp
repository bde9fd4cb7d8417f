// SPDX-License-Identifier: Apache-2.0
// Version 0 of the model: from a file of the user's, or made from the seed by a client that is
// asked for it. On the engine's strand.
#pragma once

#include "server/round/uploads.hpp"

#include <memory>
#include <set>
#include <string>

namespace fl {

class InitialModel {
 public:
  struct Parts {
    RunControl& control;
    StoreThread& store;
    Offload& compute;
    const RunPlan& plan;
    Files& files;
    Spool& spool;
    const Roster& roster;
    Versions& versions;
    Uploads& uploads;
    Evaluations& evaluations;
  };
  explicit InitialModel(const Parts& parts) : parts_(parts) {}

  /// Asks a trainer for the initial weights, and after limits::initialiser_patience another: the
  /// first may have lost its connection without our noticing. All make the same weights, so the
  /// first to bring them will do.
  void ask_next();
  /// When ask_next() would ask another; `never` while nobody was asked.
  [[nodiscard]] TimePoint next_ask_at() const;
  /// The client left, so it can be asked again.
  void forget(const std::string& client) { asked_.erase(client); }
  /// The client says that it can't make them.
  void note_failure(const std::string& client);

  /// As Uploads::begin() and finish(), for the initial weights, which have task 0.
  Awaitable<UploadGrant> begin(std::shared_ptr<Peer> peer, wire::UploadBegin begin);
  Awaitable<wire::Verdict> finish(std::shared_ptr<Peer> peer, UploadGrant grant);
  /// Reads the file that --initial-weights names. Errors name it.
  Awaitable<Result<void>> take_file();

 private:
  [[nodiscard]] Result<CheckpointRecord> write_upload(Upload& upload) const;
  [[nodiscard]] Result<CheckpointRecord> write_file() const;
  Awaitable<Result<void>> record(CheckpointRecord made);
  [[nodiscard]] Result<void> publish(const CheckpointRecord& made);

  Parts parts_;
  std::set<std::string> asked_;
  TimePoint next_ask_at_{};
  bool is_being_made_ = false;
};

}  // namespace fl
