// SPDX-License-Identifier: Apache-2.0
// An attempt to add up the masked updates of a round, as the server sees it: which members have
// said what, what comes next, and who has yet to answer. A state that follows from a log of
// messages alone: the members', and the server's own decisions. Whoever uses it makes a message
// durable between check() and apply(), so that a restart which applies the log comes to the same
// state. docs/design/secure-aggregation.md has the messages. Pure; one thread at a time.
#pragma once

#include "proto/wire.pb.h"
#include "server/secure/entrants.hpp"
#include "server/secure/unlocking.hpp"
#include "shared/secure/messages.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
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

  /// Of a stage that has members' answers, what these are, for people.
  [[nodiscard]] static std::string_view answers_at(Stage stage);

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
  /// the members whose answers may count. A member that takes part with more than there are is left
  /// out of the cohort. Errors: unavailable, if these are too few, or could not open the sum (see
  /// unread()): the attempt has failed.
  [[nodiscard]] Result<wire::Header> decide(std::uint32_t quorum,
                                            const std::set<std::string>& here) const;
  /// The members that have yet to answer in this stage; empty before there is a cohort, and if
  /// nobody's answer is needed any more.
  [[nodiscard]] std::vector<std::string> missing() const;
  /// What the server says to a member in this stage; none, if nothing.
  [[nodiscard]] std::optional<wire::Header> message_for(const std::string& client) const;

  /// Whether the member has sent its keys in this attempt, for this task.
  [[nodiscard]] bool has_keys(const std::string& client, std::int64_t task) const {
    return entrants_.has_keys(client, task);
  }
  /// The announcement of a member's words, once they are here; or null.
  [[nodiscard]] const wire::UploadBegin* words_of(const std::string& client) const;
  /// Whether the member may send its words now.
  [[nodiscard]] bool wants_words_of(const std::string& client) const;
  /// All members; before there is a cohort nobody.
  [[nodiscard]] std::size_t size() const { return cohort_ ? cohort_->members.size() : 0; }
  /// Those whose words count, once that is decided, in the order of their names.
  [[nodiscard]] std::vector<std::string> survivors() const;
  /// Whether the list of survivors can still be signed, and the sum opened, if nothing more comes
  /// from `gone`. Requires: there are survivors.
  [[nodiscard]] bool can_open_without(const std::set<std::string>& gone) const;
  /// What takes the masks off the sum. Requires: Stage::opened.
  [[nodiscard]] const Unlocking& unlocking() const { return *unlocking_; }
  /// The sum could not be opened: goes back to Stage::reveals for one answer more. Returns false if
  /// all survivors have answered.
  [[nodiscard]] bool want_more() { return unlocking_->want_more(); }
  /// The sharers whose shares so many of those whose words are here can't open that their secrets
  /// could not be put together; each with the names of those.
  [[nodiscard]] std::map<std::string, std::vector<std::string>> unread() const;
  [[nodiscard]] std::vector<std::string> names_of(const std::vector<std::uint32_t>& members) const;

 private:
  using Indices = std::vector<std::uint32_t>;

  [[nodiscard]] std::optional<std::uint32_t> index_of(const std::string& client) const;
  [[nodiscard]] const std::string& name_of(std::uint32_t member) const {
    return cohort_->members[member].name;
  }
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
  [[nodiscard]] Result<void> check_begin(std::uint32_t member,
                                         const wire::UploadBegin& begin) const;

  std::uint32_t number_;
  secure::Public context_;
  std::shared_ptr<const secure::MemberList> list_;
  Entrants entrants_;
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
