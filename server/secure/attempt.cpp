// SPDX-License-Identifier: Apache-2.0
#include "server/secure/attempt.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl::server {

namespace {

Error bad_message(std::string text) { return {Errc::invalid_input, std::move(text)}; }

Error too_few(std::string_view have, std::size_t count, std::size_t needed) {
  return {Errc::unavailable, fmt::format("{} members {}, and {} are needed", count, have, needed)};
}

}  // namespace

Attempt::Attempt(std::uint32_t number, secure::Public context,
                 std::shared_ptr<const secure::MemberList> list)
    : number_(number), context_(context), list_(list), entrants_(context, std::move(list)) {}

Attempt::Stage Attempt::stage() const {
  if (!cohort_) return Stage::keys;
  if (!sharers_) return Stage::shares;
  if (!survivors_) return Stage::words;
  if (consents_.size() < secure::consent_threshold(size())) return Stage::consents;
  return unlocking_->missing().empty() ? Stage::opened : Stage::reveals;
}

std::string_view Attempt::answers_at(Stage stage) {
  switch (stage) {
    case Stage::shares: return "the shares";
    case Stage::words: return "the masked update";
    case Stage::consents: return "the signature";
    default: return "the answer that opens the sum";
  }
}

std::optional<std::uint32_t> Attempt::index_of(const std::string& client) const {
  if (!cohort_) return std::nullopt;
  const std::size_t index = cohort_->index_of(client);
  if (index == cohort_->members.size()) return std::nullopt;
  return static_cast<std::uint32_t>(index);
}

/// The members that have answered, as far as they are here.
template <class Value>
Attempt::Indices Attempt::indices_in(const std::map<std::uint32_t, Value>& answers,
                                     const std::set<std::string>& here) const {
  Indices indices;
  for (const auto& answer : answers) {
    if (here.contains(name_of(answer.first))) indices.push_back(answer.first);
  }
  return indices;
}

// Members' messages -----------------------------------------------------------------------------

Result<bool> Attempt::check(const std::string& client, const wire::Header& message) const {
  if (message.has_secure_keys()) {
    if (cohort_) return false;
    return entrants_.check(client, message.secure_keys());
  }
  const auto member = index_of(client);
  if (!member) return false;
  switch (message.kind_case()) {
    case wire::Header::kSecureShares: return check_shares(*member, message.secure_shares());
    case wire::Header::kBegin:
      if (!wants_words_of(client)) return false;
      FL_CHECK(check_begin(*member, message.begin()));
      return true;
    case wire::Header::kSecureConsent: return check_consent(*member, message.secure_consent());
    case wire::Header::kSecureReveal: return check_reveal(*member, message.secure_reveal());
    default: return bad_message("it is no message of a masked round");
  }
}

Result<bool> Attempt::check_shares(std::uint32_t member, const wire::SecureShares& message) const {
  if (stage() != Stage::shares || sealed_.contains(member)) return false;
  const auto others = static_cast<int>(size() - 1);
  if (message.sealed_size() != others) {
    return bad_message(
        fmt::format("it has sealed {} shares, not {}", message.sealed_size(), others));
  }
  for (const std::string& sealed : message.sealed()) {
    if (sealed.size() != secure::sealed_share_bytes) {
      return bad_message(fmt::format("a sealed share has {} bytes, not {}", sealed.size(),
                                     secure::sealed_share_bytes));
    }
  }
  return true;
}

Result<void> Attempt::check_begin(std::uint32_t member, const wire::UploadBegin& begin) const {
  const Indices unreadable = secure::read_indices(begin.unreadable());
  FL_CHECK(secure::check_indices(unreadable, size(), "members that it can't read"));
  for (const std::uint32_t about : unreadable) {
    if (about == member || !std::ranges::binary_search(*sharers_, about))
      return bad_message("it can't read shares of a member that has sent it none");
  }
  return {};
}

Result<bool> Attempt::check_consent(std::uint32_t member,
                                    const wire::SecureConsent& message) const {
  if (!survivors_ || consents_.contains(member)) return false;
  if (!std::ranges::binary_search(*survivors_, member))
    return bad_message("it signs a list of survivors that it is not in");
  FL_TRY(const auto signature, secure::read_signature(message.signature()));
  if (!secure::is_signed(cohort_->members[member].site_key,
                         secure::consent_digest(transcript_, *sharers_, *survivors_), signature))
    return bad_message("it has not signed this list of survivors");
  return true;
}

Result<bool> Attempt::check_reveal(std::uint32_t member, const wire::SecureReveal& message) const {
  // More than are needed may serve, where some are wrong.
  const bool is_time = stage() == Stage::reveals || stage() == Stage::opened;
  if (!is_time || unlocking_->has_answer_of(member)) return false;
  FL_TRY(const auto reveal, secure::read_reveal(message, member, *sharers_, *survivors_));
  Unlocking trial = *unlocking_;
  FL_CHECK(trial.take(member, reveal));
  return true;
}

Result<void> Attempt::apply(const std::string& client, const wire::Header& message) {
  if (client.empty()) return apply_decision(message);
  // Two messages that passed while neither was applied may not fit each other: the first counts.
  const auto is_new = check(client, message);
  if (!is_new || !*is_new) return {};
  if (message.has_secure_keys()) return entrants_.take(client, message.secure_keys());
  const std::uint32_t member = *index_of(client);
  if (message.has_secure_shares()) {
    const auto& sealed = message.secure_shares().sealed();
    sealed_[member] = {sealed.begin(), sealed.end()};
  } else if (message.has_begin()) {
    words_[member] = message.begin();
  } else if (message.has_secure_consent()) {
    FL_TRY(consents_[member], secure::read_signature(message.secure_consent().signature()));
  } else {
    FL_TRY(const auto reveal,
           secure::read_reveal(message.secure_reveal(), member, *sharers_, *survivors_));
    FL_CHECK(unlocking_->take(member, reveal));
  }
  return {};
}

// The server's decisions -----------------------------------------------------------------------

Result<wire::Header> Attempt::decide(std::uint32_t quorum,
                                     const std::set<std::string>& here) const {
  const std::size_t wanted = cohort_ ? entrants_.least_of(*cohort_) : 0;
  const std::size_t least =
      std::max<std::size_t>({secure::cohort_min, quorum, list_->smallest_cohort, wanted});
  wire::Header header;
  switch (stage()) {
    case Stage::keys: {
      FL_TRY(const secure::Cohort cohort, entrants_.cohort(least, here));
      header.mutable_secure_cohort()->set_attempt(number_);
      secure::write_members(cohort, *header.mutable_secure_cohort());
      return header;
    }
    case Stage::shares: {
      const auto shared = indices_in(sealed_, here);
      const std::size_t needed = std::max(least, cohort_->threshold());
      if (shared.size() < needed)
        return too_few("have shared their secrets", shared.size(), needed);
      header.mutable_secure_inbox()->set_attempt(number_);
      header.mutable_secure_inbox()->mutable_sharers()->Assign(shared.begin(), shared.end());
      return header;
    }
    default: {
      FL_ASSERT(stage() == Stage::words);
      const auto counted = indices_in(words_, here);
      const std::size_t needed =
          std::max({least, cohort_->threshold(), secure::consent_threshold(size())});
      if (counted.size() < needed) return too_few("have sent their words", counted.size(), needed);
      if (!unread().empty())
        return Error(Errc::unavailable, "too few members can open what others have sealed");
      header.mutable_secure_survivors()->set_attempt(number_);
      header.mutable_secure_survivors()->mutable_survivors()->Assign(counted.begin(),
                                                                     counted.end());
      return header;
    }
  }
}

Result<void> Attempt::apply_decision(const wire::Header& decision) {
  if (decision.has_secure_cohort()) {
    FL_TRY(cohort_, secure::read_cohort(decision.secure_cohort(), context_, *list_));
    FL_CHECK(secure::check_cohort(*cohort_));
    transcript_ = secure::transcript_of(*cohort_);
  } else if (decision.has_secure_inbox()) {
    sharers_ = secure::read_indices(decision.secure_inbox().sharers());
    FL_CHECK(secure::check_indices(*sharers_, size(), "sharers"));
  } else if (decision.has_secure_survivors()) {
    survivors_ = secure::read_indices(decision.secure_survivors().survivors());
    FL_CHECK(secure::check_survivors(*cohort_, *sharers_, *survivors_));
    unlocking_.emplace(*cohort_, *sharers_, *survivors_);
  }
  return {};
}

/// The members whose answers the stage waits for.
Attempt::Indices Attempt::expected() const {
  switch (stage()) {
    case Stage::shares: {
      Indices all(size());
      for (std::uint32_t i = 0; i < all.size(); ++i) all[i] = i;
      return all;
    }
    case Stage::words: return *sharers_;
    case Stage::consents: return *survivors_;
    case Stage::reveals: return unlocking_->missing();
    default: return {};
  }
}

std::vector<std::string> Attempt::missing() const {
  const Stage now = stage();
  std::vector<std::string> names;
  for (const std::uint32_t member : expected()) {
    const bool is_here = (now == Stage::shares && sealed_.contains(member)) ||
                         (now == Stage::words && words_.contains(member)) ||
                         (now == Stage::consents && consents_.contains(member));
    if (!is_here) names.push_back(name_of(member));
  }
  return names;
}

// What the server says --------------------------------------------------------------------------

std::optional<wire::Header> Attempt::message_for(const std::string& client) const {
  const auto member = index_of(client);
  if (!member) return std::nullopt;
  const auto is_in = [&](const Indices& indices) {
    return std::ranges::binary_search(indices, *member);
  };
  switch (stage()) {
    case Stage::shares: return cohort_message();
    case Stage::words:
      if (!is_in(*sharers_)) return std::nullopt;
      return inbox_of(*member);
    case Stage::consents:
      if (!is_in(*survivors_)) return std::nullopt;
      return survivors_message();
    case Stage::reveals:
      if (!is_in(*survivors_)) return std::nullopt;
      // A member that has not signed the list yet reveals nothing before.
      return consents_.contains(*member) ? ask_message() : survivors_message();
    default: return std::nullopt;
  }
}

wire::Header Attempt::cohort_message() const {
  wire::Header header;
  header.mutable_secure_cohort()->set_attempt(number_);
  secure::write_members(*cohort_, *header.mutable_secure_cohort());
  return header;
}

wire::Header Attempt::inbox_of(std::uint32_t member) const {
  wire::Header header;
  wire::SecureInbox& inbox = *header.mutable_secure_inbox();
  inbox.set_attempt(number_);
  inbox.mutable_sharers()->Assign(sharers_->begin(), sharers_->end());
  for (const std::uint32_t from : *sharers_) {
    // A member has sealed nothing for itself.
    if (from != member) inbox.add_sealed(sealed_.at(from)[member < from ? member : member - 1]);
  }
  return header;
}

wire::Header Attempt::survivors_message() const {
  wire::Header header;
  wire::SecureSurvivors& message = *header.mutable_secure_survivors();
  message.set_attempt(number_);
  message.mutable_survivors()->Assign(survivors_->begin(), survivors_->end());
  return header;
}

wire::Header Attempt::ask_message() const {
  wire::Header header;
  wire::SecureAsk& ask = *header.mutable_secure_ask();
  ask.set_attempt(number_);
  for (const auto& [member, signature] : consents_) {
    wire::SecureSignature& one = *ask.add_consents();
    one.set_member(member);
    one.set_signature(secure::raw(signature));
  }
  return header;
}

// Words and survivors ----------------------------------------------------------------------------

const wire::UploadBegin* Attempt::words_of(const std::string& client) const {
  const auto member = index_of(client);
  if (!member) return nullptr;
  const auto found = words_.find(*member);
  return found != words_.end() ? &found->second : nullptr;
}

bool Attempt::wants_words_of(const std::string& client) const {
  const auto member = index_of(client);
  return member && stage() == Stage::words && !words_.contains(*member) &&
         std::ranges::binary_search(*sharers_, *member);
}

std::vector<std::string> Attempt::names_of(const std::vector<std::uint32_t>& members) const {
  std::vector<std::string> names;
  for (const std::uint32_t member : members) names.push_back(name_of(member));
  return names;
}

std::vector<std::string> Attempt::survivors() const {
  return survivors_ ? names_of(*survivors_) : std::vector<std::string>();
}

bool Attempt::can_open_without(const std::set<std::string>& gone) const {
  std::size_t signatures = consents_.size();
  std::size_t answers = 0;  // To come.
  for (const std::uint32_t member : *survivors_) {
    if (gone.contains(name_of(member))) continue;
    if (!consents_.contains(member)) ++signatures;
    if (!unlocking_->has_answer_of(member)) ++answers;
  }
  return signatures >= secure::consent_threshold(size()) && answers >= unlocking_->lacks();
}

std::map<std::string, std::vector<std::string>> Attempt::unread() const {
  std::map<std::string, std::vector<std::string>> unread;
  for (const std::uint32_t about : *sharers_) {
    Indices readers;
    std::size_t reading = 0;
    for (const auto& [member, begin] : words_) {
      const auto unreadable = secure::read_indices(begin.unreadable());
      const bool reads = !std::ranges::binary_search(unreadable, about);
      if (!reads) readers.push_back(member);
      if (reads && member != about) ++reading;
    }
    // Where nobody complains, check_survivors() has the rule.
    if (!readers.empty() && reading < cohort_->threshold())
      unread.emplace(name_of(about), names_of(readers));
  }
  return unread;
}

}  // namespace fl::server
