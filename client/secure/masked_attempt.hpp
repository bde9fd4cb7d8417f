// SPDX-License-Identifier: Apache-2.0
// MaskedAttempt: a member's part in the present attempt of a masked round, with what it keeps of it
// on the disk. It says what the member sends at each stage, and takes what the server says.
// Whatever follows from a message is sent only once the message is durable here, so a restart says
// the same again. client/secure/seat.hpp has what is refused. Blocking; one thread at a time.
//
//   begin() --> keys --cohort--> shares --inbox--> words --survivors--> consent --ask--> reveal
//   keys, shares, words --begin_again()--> keys
//   any --remove()--> no attempt
#pragma once

#include "client/secure/attempt_record.hpp"
#include "client/secure/seat.hpp"
#include "client/secure/secure_options.hpp"
#include "proto/wire.pb.h"
#include "shared/base/error.hpp"
#include "shared/base/io/file.hpp"
#include "shared/secure/messages.hpp"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fl::client {

class MaskedAttempt {
 public:
  enum class Stage { keys, shares, words, consent, reveal };
  /// The run that it takes part in.
  struct Run {
    secure::RunTerms terms;
    std::string name;                                // This member's.
    std::shared_ptr<const secure::MemberList> list;  // The accepted one.
  };

  /// The references must outlive it.
  MaskedAttempt(Files& files, const std::filesystem::path& folder, const SecureOptions& options)
      : options_(options), file_(files, folder), contributions_(files, folder) {}
  /// Reads what is on the disk. Errors: corrupt, naming the file; those of the disk.
  [[nodiscard]] Result<void> load();

  [[nodiscard]] bool exists() const { return file_.record().has_value(); }
  [[nodiscard]] bool is_of(std::int64_t task) const {
    return exists() && file_.record()->task() == task;
  }
  /// Requires exists(), as all below do but begin() and remove().
  [[nodiscard]] const AttemptRecord& record() const { return *file_.record(); }
  [[nodiscard]] Stage stage() const;

  /// Whether this site may train from these weights (secure::ValuesDigest). Errors: invalid_input.
  [[nodiscard]] Result<void> check_version(const secure::Public& weights) const {
    return options_.allows_same_version ? success() : contributions_.check(weights);
  }
  /// Begins an attempt with new keys, in place of the one before, for an update that was trained
  /// from these weights with this loss, for the run of these terms.
  [[nodiscard]] Result<void> begin(wire::Offer offer, const secure::Public& weights,
                                   const secure::RunTerms& terms, double loss);
  /// Begins the next attempt with the same update, if the offer is of one and this member has not
  /// signed a list of survivors; else does nothing. Call open() next. Errors: invalid_input, if the
  /// offer would have trained otherwise; those of the disk.
  [[nodiscard]] Result<void> begin_again(const wire::Offer& offer);
  /// Takes the seat again that the record says. Call it before all below. Errors: as take().
  [[nodiscard]] Result<void> open(Run run);

  /// Takes a message of the server's and makes it durable. Returns false for one that changes
  /// nothing: of another attempt, too early, or taken already. Errors: invalid_input, for what this
  /// member refuses; those of the disk.
  [[nodiscard]] Result<bool> take(const wire::Header& message);
  /// Members whose shares this one can't open, ascending. Requires Stage::words, or a later one.
  [[nodiscard]] std::vector<std::uint32_t> unreadable() const { return seat_->unreadable(); }
  /// The message that this member sends at this stage. Not at Stage::words. Errors: invalid_input.
  [[nodiscard]] Result<wire::Header> message() const;
  /// How many members have shared their secrets. Requires Stage::words, or a later one.
  [[nodiscard]] std::size_t sharers() const {
    return static_cast<std::size_t>(record().inbox->sharers_size());
  }
  /// Masks all words. Requires Stage::words.
  [[nodiscard]] Result<void> mask(std::span<std::uint64_t> words) const;

  /// Ends the attempt and removes its secrets from the disk.
  [[nodiscard]] Result<void> remove();

 private:
  [[nodiscard]] Result<bool> take_cohort(const wire::SecureCohort& message);
  [[nodiscard]] Result<bool> take_inbox(const wire::SecureInbox& message);
  [[nodiscard]] Result<bool> take_survivors(const wire::SecureSurvivors& message);
  [[nodiscard]] Result<bool> take_ask(const wire::SecureAsk& message);
  [[nodiscard]] Result<Seat> sit(const wire::SecureCohort& message) const;
  [[nodiscard]] Result<void> fill(Seat& seat, const wire::SecureInbox& message) const;
  [[nodiscard]] Result<secure::Consent> sign(const wire::SecureSurvivors& message) const;
  [[nodiscard]] Result<secure::Reveal> answer(const wire::SecureAsk& message) const;
  [[nodiscard]] Result<void> add_contribution();
  [[nodiscard]] std::size_t least() const;

  const SecureOptions& options_;
  AttemptFile file_;
  Contributions contributions_;
  Run run_;                   // Set by open().
  secure::Public context_{};  // Set by open(), too.
  std::optional<Seat> seat_;  // Once there is a cohort.
};

}  // namespace fl::client
