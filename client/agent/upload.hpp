// SPDX-License-Identifier: Apache-2.0
// Upload: sends the update that is trained and has no verdict yet, and acts on the verdict. The
// update itself is kept by ClientState.
//
//   none --prepare()--> waiting --announce()--> announced --resume()--> sending --last chunk-->
//   announced --take_verdict()--> none
//   announced, sending --put off, or the server says "later"--> waiting
//   any --connection_lost()--> none
//
// In a masked round it sends masked words instead (send_words()). Before and after that an update
// is held (hold()): it waits for its verdict, and nothing of it is sent. Masking decides which.
//
// All members are called on the agent's strand; what blocks runs as steps of the Worker.
#pragma once

#include "client/agent/conversation.hpp"
#include "client/agent/worker.hpp"
#include "client/learn/trace.hpp"
#include "client/state/client_state.hpp"
#include "proto/wire.pb.h"
#include "shared/base/error.hpp"
#include "shared/wire/transfer.hpp"

#include <cstdint>
#include <memory>
#include <optional>

namespace fl::client {

class Upload {
 public:
  /// All arguments must outlive it. `trace` may be null.
  Upload(Worker& worker, ClientState& state, TraceFile* trace)
      : worker_(worker), state_(state), trace_(trace) {}

  /// An update waits for its turn, for a verdict, or is on its way.
  [[nodiscard]] bool is_on() const { return sending_.has_value(); }
  /// The next chunk can be sent.
  [[nodiscard]] bool can_send() const { return sending_ && sending_->size; }
  /// When an update that is not announced is to be announced; never, if there is none.
  [[nodiscard]] TimePoint announce_at() const {
    return sending_ && !sending_->is_announced ? sending_->begin_at : never;
  }

  /// Opens the pending update of the client's state, if there is one.
  Awaitable<Result<void>> prepare();
  /// The pending update waits for its verdict, and something else is announced in its place.
  /// `is_damaged`: its file can't be read.
  void hold(bool is_damaged);
  /// Sends this file in place of the pending update. `begin` is its announcement.
  void send_words(wire::UploadBegin begin, std::shared_ptr<File> words);
  /// Announces the update. Not for one that is held.
  Awaitable<Result<void>> announce(Conversation& conversation);
  /// Says this instead, for an update that is held. A verdict "later" asks for it again.
  Awaitable<Result<void>> announce(Conversation& conversation, wire::Header instead);
  /// The server says from which byte on it needs the update. Errors: protocol; unavailable, if the
  /// saved update is damaged: then it is forgotten, and trained again.
  Awaitable<Result<void>> resume(const wire::Resume& resume);
  /// Sends a chunk. can_send() must be true.
  Awaitable<Result<void>> send_some(Conversation& conversation);
  /// Returns false for a verdict that leaves the task open ("later", "held"), or is about another
  /// one. After any other the task need not be done again, even if a full disk delays what the
  /// verdict asks for: the update is then announced again. `layout`: of the run.
  Awaitable<Result<bool>> take_verdict(const wire::Verdict& verdict, const RunLayout& layout);
  void connection_lost() { sending_.reset(); }
  /// The update was settled without a verdict.
  void forget() { sending_.reset(); }

 private:
  struct Sending {
    wire::UploadBegin begin;
    SegmentSource source;
    std::uint64_t offset = 0;
    std::optional<ChunkSize> size;  // Set by the server's Resume: chunks may be sent.
    TimePoint begin_at{};           // When to announce it (again).
    TimePoint announced_at{};
    bool is_announced = false;  // And the server has not said "later".
    bool is_damaged = false;    // The file can't be read, so there is nothing to send.
    bool is_held = false;       // Nothing may be sent.
  };
  Awaitable<Result<void>> announce_by(Conversation& conversation, wire::Header header);
  void announce_again_after(Duration pause);
  /// This client's disk is full: the connection stays, and the update is announced again later.
  void put_off(const Error& error);
  [[nodiscard]] bool keeps_mass(const wire::Verdict& verdict);

  Worker& worker_;
  ClientState& state_;
  TraceFile* trace_;
  std::optional<Sending> sending_;
  int refusals_ = 0;               // Updates that were refused one after the other.
  std::int64_t refused_task_ = 0;  // The last refused one; its verdict may arrive twice.
};

}  // namespace fl::client
