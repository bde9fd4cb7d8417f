// SPDX-License-Identifier: Apache-2.0
// An attempt to add up the masked updates of a round, as the server sees it: which members have
// said what, what comes next, and who has yet to answer. A state that follows from a log of
// messages alone: the members', and the server's own decisions. Whoever uses it makes a message
// durable between check() and apply(), so that a restart which applies the log comes to the same
// state. docs/design/secure-aggregation.md has the messages. Pure; one thread at a time.
#pragma once

#include "proto/wire.pb.h"
#include "server/secure/unlocking.hpp"
#include "shared/secure/messages.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace fl::server {

class Attempt {
 public:
  /// Named after what it waits for.
  enum class Stage {
    keys,      // Of members that have trained. The server ends it by SecureCohort.
    shares,    // Sealed shares. The server ends it by SecureInbox, which says who has shared.
    words,     // Masked words. The server ends it by SecureSurvivors, which says whose count.
    consents,  // Signatures of that list. It ends when enough have signed.
    reveals,   // What takes the masks off. It ends when enough have answered.
    opened,
  };

  /// `number`: from 1, in each round. `context`: secure::attempt_context() of the round's offers.
  Attempt(std::uint32_t number, secure::Public context,
          std::shared_ptr<const secure::MemberList> list);

  [[nodiscard]] std::uint32_t number() const { return number_; }
  [[nodiscard]] Stage stage() const;

  /// Whether a member's message can be applied now. False: it was applied before, or came too late,
  /// and changes nothing. Errors: invalid_input or protocol, which say what is wrong with it.
  /// `message`: SecureKeys, SecureShares, UploadBegin (the words are durable), SecureConsent or
  /// SecureReveal.
  [[nodiscard]] Result<bool> check(const std::string& client, const wire::Header& message) const;
  /// Applies a message that has passed check(), if it still does, or a decision of the server's:
  /// then `client` is empty. Errors: corrupt or invalid_input, if the log was changed.
  [[nodiscard]] Result<void> apply(const std::string& client, const wire::Header& message);

  /// The decision that ends the stage, with those that have answered so far: SecureCohort,
  /// SecureInbox or SecureSurvivors. `quorum`: the fewest that the round may close with. `here`:
  /// the members whose answers may count. Errors: unavailable, if these are too few: the attempt
  /// has failed.
  [[nodiscard]] Result<wire::Header> decide(std::uint32_t quorum,
                                            const std::set<std::string>& here) const;
  /// The members that have yet to answer in this stage; empty before there is a cohort, and if
  /// nobody's answer is needed any more.
  [[nodiscard]] std::vector<std::string> missing() const;
  /// What the server says to a member in this stage; none, if nothing.
  [[nodiscard]] std::optional<wire::Header> message_for(const std::string& client) const;

  /// Whether the member has sent its keys in this attempt.
  [[nodiscard]] bool has_keys(const std::string& client) const { return keys_.contains(client); }
  /// The announcement of a member's words, once they are here; or null.
  [[nodiscard]] const wire::UploadBegin* words_of(const std::string& client) const;
  /// Whether the member may send its words now.
  [[nodiscard]] bool wants_words_of(const std::string& client) const;
  /// All members; before there is a cohort nobody.
  [[nodiscard]] std::size_t size() const { return cohort_ ? cohort_->members.size() : 0; }
  /// The members that a decision of the server's names: SecureSurvivors.
  [[nodiscard]] std::vector<std::string> names_in(const wire::Header& decision) const;
  /// Those whose words count, once that is decided, in the order of their names.
  [[nodiscard]] std::vector<std::string> survivors() const;
  /// The keys of the masks on the sum of the survivors' words. Requires: Stage::opened. Errors:
  /// those of Unlocking::removals().
  [[nodiscard]] Result<std::vector<Unlocking::Removal>> removals();
  /// Members that have revealed a wrong share, as far as removals() has found out.
  [[nodiscard]] std::vector<std::string> liars() const;

 private:
  using Indices = std::vector<std::uint32_t>;

  [[nodiscard]] std::optional<std::uint32_t> index_of(const std::string& client) const;
  [[nodiscard]] const std::string& name_of(std::uint32_t member) const {
    return cohort_->members[member].name;
  }
  [[nodiscard]] Result<bool> check_keys(const std::string& client,
                                        const wire::SecureKeys& message) const;
  [[nodiscard]] Result<bool> check_shares(std::uint32_t member,
                                          const wire::SecureShares& message) const;
  [[nodiscard]] Result<bool> check_consent(std::uint32_t member,
                                           const wire::SecureConsent& message) const;
  [[nodiscard]] Result<bool> check_reveal(std::uint32_t member,
                                          const wire::SecureReveal& message) const;
  [[nodiscard]] Result<void> apply_decision(const wire::Header& decision);
  [[nodiscard]] wire::Header cohort_message() const;
  [[nodiscard]] wire::Header inbox_of(std::uint32_t member) const;
  [[nodiscard]] wire::Header survivors_message() const;
  [[nodiscard]] wire::Header ask_message() const;
  template <class Value>
  [[nodiscard]] Indices indices_in(const std::map<std::uint32_t, Value>& answers,
                                   const std::set<std::string>& here) const;
  [[nodiscard]] Indices expected() const;

  std::uint32_t number_;
  secure::Public context_;
  std::shared_ptr<const secure::MemberList> list_;
  struct Keys {
    std::int64_t task = 0;
    secure::MemberKeys keys;
  };
  std::map<std::string, Keys> keys_;  // By member: those of its newest task.
  std::optional<secure::Cohort> cohort_;
  secure::Public transcript_{};
  // By the members' indices.
  std::map<std::uint32_t, std::vector<std::string>> sealed_;  // As SecureShares has them.
  std::optional<Indices> sharers_;
  std::map<std::uint32_t, wire::UploadBegin> words_;
  std::map<std::uint32_t, secure::Signature> consents_;
  std::optional<Indices> survivors_;
  std::optional<Unlocking> unlocking_;  // Once there are survivors.
};

}  // namespace fl::server
