// SPDX-License-Identifier: Apache-2.0
// Masking: how an agent takes part in masked runs (docs/design/secure-aggregation.md). It decides
// whether to join one, takes a trained update through the attempts to add it up with others', and
// makes the masked words that Upload sends in its place. Of runs in the clear it passes everything
// on to Upload.
//
//   begin(), on the worker thread, before the update is pending
//   prepare() -> announce() -> take() -> announce() ... -> verdict of Upload's -> prepare()
//
// All else is called on the agent's strand; what blocks runs as steps of the Worker.
#pragma once

#include "client/agent/conversation.hpp"
#include "client/agent/upload.hpp"
#include "client/agent/worker.hpp"
#include "client/secure/masked_attempt.hpp"
#include "client/secure/membership.hpp"
#include "client/secure/secure_options.hpp"
#include "client/state/client_state.hpp"
#include "client/state/stored_values.hpp"
#include "proto/wire.pb.h"
#include "shared/base/error.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace fl::client {

class Masking {
 public:
  /// All arguments must outlive it. Without options it joins no masked run.
  Masking(const std::optional<SecureOptions>& options, Worker& worker, ClientState& state,
          Upload& upload, Conversation& conversation);
  /// Reads what is on the disk; the client's state is loaded. Errors: corrupt, naming the file;
  /// those of the disk. Blocking.
  [[nodiscard]] Result<void> load();

  /// Decides whether this client takes part in the run, and with which member list. May end the job
  /// that runs. Errors: invalid_input, with what a person can do; cancelled, if the client was
  /// stopped; those of the disk.
  Awaitable<Result<void>> join(const wire::Welcome& welcome);
  /// Whether the run that was joined is a masked one. A job may ask, too.
  [[nodiscard]] bool is_masked() const { return run_.list != nullptr; }
  /// Whether an offer is one of the run that was joined. Errors: invalid_input.
  [[nodiscard]] Result<void> check(const wire::Offer& offer) const;

  /// Whether this site may train from a version: it contributes to each one once. Call it before
  /// begin(). On the worker thread, as is begin(). Requires is_masked(). Errors: invalid_input.
  [[nodiscard]] Result<void> check_version(const StoredValues& version);
  /// Begins the first attempt with an update that was trained from that version.
  [[nodiscard]] Result<void> begin(const wire::Offer& offer, double loss);
  /// Takes another offer of the task whose update is pending or being made: it may begin the next
  /// attempt.
  Awaitable<Result<void>> take_again(const wire::Offer& offer);
  /// Opens the pending update, if there is one; without one, ends the attempt that it was in.
  /// `layout`: of the run, until the connection ends. Errors: unavailable, if the update has to be
  /// trained again.
  Awaitable<Result<void>> prepare(const RunLayout& layout);
  /// Says what comes next of the update, when Upload::announce_at() has come.
  Awaitable<Result<void>> announce();
  /// Takes a message of the attempt. What this client refuses ends its part in the task.
  Awaitable<Result<void>> take(const wire::Header& message);

 private:
  /// Only clients that mask have one.
  struct Member {
    Member(ClientState& state, const SecureOptions& options)
        : membership(state.files(), state.folder(), options),
          attempt(state.files(), state.folder(), options) {}
    Membership membership;
    MaskedAttempt attempt;
  };

  [[nodiscard]] MaskedAttempt& attempt() { return member_->attempt; }
  [[nodiscard]] std::filesystem::path words_path() const;
  [[nodiscard]] Result<bool> open();
  [[nodiscard]] Result<void> make_message();
  [[nodiscard]] Result<void> make_words();
  [[nodiscard]] Result<void> remove_attempt();
  Awaitable<Result<void>> proceed(Result<void> made);
  Awaitable<Result<void>> say_why(Error why);
  Awaitable<Result<void>> refuse(Error why);
  Awaitable<Result<void>> train_again();
  Awaitable<Result<void>> leave(const wire::Header& message);

  Worker& worker_;
  ClientState& state_;
  Upload& upload_;
  Conversation& conversation_;
  std::optional<Member> member_;
  std::string members_;       // The text of the list that was accepted last.
  MaskedAttempt::Run run_;    // Without a list: in the clear.
  secure::Public weights_{};  // The digest of the version that check_version() was asked for.
  std::optional<wire::Offer> newer_;  // An offer that is to begin the next attempt.
  // About the pending update, since prepare().
  const RunLayout* layout_ = nullptr;
  bool is_damaged_ = false;      // The update's file can't be read.
  wire::Header message_;         // The message to send at this stage,
  wire::UploadBegin begin_;      // or the announcement of the words to send,
  std::shared_ptr<File> words_;  // and their file.
};

}  // namespace fl::client
