// SPDX-License-Identifier: Apache-2.0
// Download: the version of the model that this agent has, and the one that is on its way. A client
// asks for a version with Fetch and gets it whole, or as coded deltas to the version that it has.
// A download that breaks goes on at the same byte: in the same process from memory, after a restart
// from the client's disk.
//
//   idle --request()--> asked --begin()--> receiving --take(), last chunk--> idle
//   asked, receiving --failed()--> idle; --connection_lost()--> idle, what was received stays
//
// All members are called on the agent's strand; what blocks runs as steps of the Worker.
#pragma once

#include "client/agent/model_cache.hpp"
#include "client/agent/worker.hpp"
#include "client/learn/trace.hpp"
#include "client/state/resumable_download.hpp"
#include "client/state/stored_values.hpp"
#include "proto/wire.pb.h"
#include "shared/base/error.hpp"
#include "shared/base/io/digest.hpp"
#include "shared/params/layout.hpp"
#include "shared/wire/message.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace fl::client {

/// How the server's answer to a Fetch continues.
enum class DownloadStart {
  go_on,      // The bytes that are in memory, from where they end.
  from_disk,  // The bytes that an earlier process has left on the disk, from where they end.
  anew,       // At byte 0.
  refused,    // At a byte that this client did not ask for.
};
/// The received part of a transfer.
struct ReceivedPart {
  std::uint32_t transfer = 0;
  bool full = false;           // The whole model, not deltas.
  std::uint64_t bytes = 0;     // The whole transfer; 0 for a part on the disk.
  std::uint64_t received = 0;  // How many bytes came, from the first on.
};
/// `in_memory`: the download that was broken off in this process, or null. `on_disk`: the part of a
/// full model in the client's folder; with 0 bytes if there is none.
[[nodiscard]] DownloadStart start_of(const wire::ModelHeader& answer, const ReceivedPart* in_memory,
                                     const ReceivedPart& on_disk);

class Download {
 public:
  /// All arguments must outlive it. `cache`: holds the versions' values; null: its own, in vectors
  /// of `pool`. `threads` decode deltas; 0: one per core. `trace` may be null.
  Download(Worker& worker, ValuePool& pool, ModelCache* cache, int threads, TraceFile* trace)
      : worker_(worker),
        own_models_(pool),
        models_(cache != nullptr ? *cache : own_models_),
        threads_(threads),
        trace_(trace) {}

  /// Looks for the part of a download in the client's folder. Call it once, before all others.
  [[nodiscard]] Result<void> open(Files& files, const std::filesystem::path& folder);
  [[nodiscard]] ModelCache& models() { return models_; }

  /// The values of a version, with what travels with the model; null if it must be fetched.
  [[nodiscard]] ModelCache::Model find(std::uint32_t version, const std::string& digest) const;
  [[nodiscard]] bool has_version() const { return replica_.has_value(); }
  /// This client has made version 0 itself.
  void keep_version_0(const Digest& digest, StoredValues values);

  /// A Fetch was sent on this connection and is not answered completely.
  [[nodiscard]] bool is_on() const { return is_on_; }
  /// Asks for a version. Returns the Fetch.
  [[nodiscard]] wire::Header request(std::uint32_t version);
  /// The server's answer begins. Returns how many bytes follow. `layout`: of the run's versions.
  /// Errors: protocol; unavailable, if the part on the disk can't be read.
  Awaitable<Result<std::uint64_t>> begin(const wire::ModelHeader& model, const Layout& layout);
  /// The next chunk. After the last one, checks the version and keeps it. Errors: protocol.
  Awaitable<Result<void>> take(const Message& message, const Layout& layout);
  /// The server no longer has the version.
  void failed();
  void connection_lost() { is_on_ = false; }
  /// Another run begins: forgets the version and what was received in memory.
  void forget_run();
  /// Removes the part on the disk. Blocks; on the worker.
  void drop_part() { partial_->drop(); }
  /// Before the client ends: saves what was received, so that its next start goes on there.
  Awaitable<void> save_before_end();

 private:
  struct Transfer {
    wire::ModelHeader model;
    ModelCache::Model known;     // Not null: the cache has the version, so bytes are dropped.
    StoredValues values;         // A full model: its values. Otherwise: the coded deltas' bytes.
    std::uint64_t received = 0;  // Bytes.
    Hasher hasher;               // Makes the digest of a full model while that arrives.
    TimePoint save_at = never;   // When to save the received bytes to the disk again.
  };
  /// The version that this agent has. Its values are in the ModelCache.
  struct Replica {
    std::uint32_t version = 0;
    Digest digest;
  };
  [[nodiscard]] Result<void> check(const wire::ModelHeader& model, const Layout& layout) const;
  Awaitable<Result<void>> make_room(const wire::ModelHeader& model, bool is_on_disk);
  [[nodiscard]] Result<void> copy_part(Transfer& transfer);
  Awaitable<Result<void>> keep(Bytes bytes);
  Awaitable<void> save();
  [[nodiscard]] Result<void> finish(const Layout& layout);
  [[nodiscard]] Result<StoredValues> apply_deltas(const Layout& layout);

  Worker& worker_;
  ModelCache own_models_;
  ModelCache& models_;
  int threads_;
  TraceFile* trace_;
  std::optional<ResumableDownload> partial_;  // The saved part of a slow download.
  std::optional<Replica> replica_;
  std::optional<Transfer> transfer_;  // Kept when the connection breaks, to resume it.
  TimePoint requested_at_{};
  bool is_on_ = false;
};

}  // namespace fl::client
