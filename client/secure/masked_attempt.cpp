// SPDX-License-Identifier: Apache-2.0
#include "client/secure/masked_attempt.hpp"

#include "shared/base/failpoint.hpp"
#include "shared/base/log.hpp"
#include "shared/secure/lane_words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace fl::client {

namespace {

using secure::AttemptSecrets;

Error refused_by_member(std::string text) { return {Errc::invalid_input, std::move(text)}; }
/// The reason for which a message of the server's is refused, as invalid_input: errors of the disk
/// have other codes.
Error refused_by_member(const Error& why) { return refused_by_member(why.message()); }

template <class Message>
bool is_equal(const Message& a, const Message& b) {
  return a.SerializeAsString() == b.SerializeAsString();
}

/// The answer to a message that follows from one of this member's, which it has no record of: its
/// state folder is not what it was.
Error lost() {
  return refused_by_member("this client has lost what it said in the attempt before");
}

/// An offer without what may differ between two attempts at one task.
wire::Offer training_of(wire::Offer offer) {
  offer.clear_secure();
  offer.clear_deadline_ms();
  offer.clear_evaluate_holdout();
  offer.clear_initial_digest();
  return offer;
}

}  // namespace

Result<void> MaskedAttempt::load() {
  FL_CHECK(file_.load());
  return contributions_.load();
}

MaskedAttempt::Stage MaskedAttempt::stage() const {
  const AttemptRecord& now = record();
  if (now.ask) return Stage::reveal;
  if (now.survivors) return Stage::consent;
  if (now.inbox) return Stage::words;
  return now.cohort ? Stage::shares : Stage::keys;
}

// Beginning ------------------------------------------------------------------------------------

Result<void> MaskedAttempt::begin(wire::Offer offer, const secure::Public& weights,
                                  const secure::RunTerms& terms, double loss) {
  FL_CHECK(check_version(weights));
  AttemptRecord fresh;
  FL_TRY(fresh.seed, secure::Secret::draw());
  fresh.weights = weights;
  fresh.terms = terms.digest();
  fresh.offer = std::move(offer);
  fresh.loss = std::isfinite(loss) ? loss : secure::masked_loss_max;
  FL_CHECK(file_.write(std::move(fresh)));
  seat_.reset();
  return {};
}

Result<void> MaskedAttempt::begin_again(const wire::Offer& offer) {
  const AttemptRecord& before = record();
  if (offer.task() != before.task() || offer.secure().attempt() <= before.attempt()) return {};
  if (before.survivors) {
    log_info(
        "round {}: not in attempt {}, because this client has signed whose updates count in "
        "attempt {}",
        offer.round(), offer.secure().attempt(), before.attempt());
    return {};
  }
  if (!is_equal(training_of(offer), training_of(before.offer))) {
    return refused_by_member(
        fmt::format("attempt {} has other settings for the training than attempt {} had",
                    offer.secure().attempt(), before.attempt()));
  }
  AttemptRecord fresh;
  FL_TRY(fresh.seed, secure::Secret::draw());
  fresh.weights = before.weights;
  fresh.terms = before.terms;
  fresh.offer = offer;
  fresh.loss = before.loss;
  FL_CHECK(file_.write(std::move(fresh)));
  seat_.reset();
  return {};
}

Result<void> MaskedAttempt::open(Run run) {
  const AttemptRecord& now = record();
  run_ = std::move(run);
  seat_.reset();
  if (now.offer.secure().members() != secure::raw(run_.list->digest()))
    return refused_by_member("the member list has changed since this attempt began");
  if (now.terms != run_.terms.digest())
    return refused_by_member("the update was trained for another run, or another strategy");
  context_ = secure::attempt_context(run_.terms, now.offer, now.weights);
  if (!now.cohort) return {};
  FL_TRY(seat_, sit(*now.cohort));
  if (now.inbox) FL_CHECK(fill(*seat_, *now.inbox));
  return now.survivors ? add_contribution() : success();
}

Result<void> MaskedAttempt::remove() {
  seat_.reset();
  return file_.remove();
}

// Messages of the server -----------------------------------------------------------------------

Result<bool> MaskedAttempt::take(const wire::Header& message) {
  const auto take = [this](const auto& said, auto member) -> Result<bool> {
    if (said.task() != record().task() || said.attempt() != record().attempt()) return false;
    FL_TRY(const bool is_new, (this->*member)(said));
    if (is_new) failpoint("attempt.recorded");
    return is_new;
  };
  switch (message.kind_case()) {
    case wire::Header::kSecureCohort:
      return take(message.secure_cohort(), &MaskedAttempt::take_cohort);
    case wire::Header::kSecureInbox:
      return take(message.secure_inbox(), &MaskedAttempt::take_inbox);
    case wire::Header::kSecureSurvivors:
      return take(message.secure_survivors(), &MaskedAttempt::take_survivors);
    default: return take(message.secure_ask(), &MaskedAttempt::take_ask);
  }
}

Result<bool> MaskedAttempt::take_cohort(const wire::SecureCohort& message) {
  if (const auto& before = record().cohort) {
    if (is_equal(message, *before)) return false;
    return refused_by_member("the server has named a second cohort for the keys of one attempt");
  }
  FL_TRY(auto seat, sit(message));
  AttemptRecord next = record();
  next.cohort = message;
  FL_CHECK(file_.write(std::move(next)));
  seat_ = std::move(seat);
  return true;
}

Result<bool> MaskedAttempt::take_inbox(const wire::SecureInbox& message) {
  if (!seat_) return lost();
  if (const auto& before = record().inbox) {
    if (is_equal(message, *before)) return false;
    return refused_by_member("the server has said twice, and not the same, who has shared");
  }
  Seat seat = *seat_;
  FL_CHECK(fill(seat, message));
  AttemptRecord next = record();
  next.inbox = message;
  FL_CHECK(file_.write(std::move(next)));
  seat_ = std::move(seat);
  return true;
}

/// The list becomes durable before the contribution: a restart adds that if it is not there yet.
Result<bool> MaskedAttempt::take_survivors(const wire::SecureSurvivors& message) {
  if (!record().inbox) return lost();
  if (const auto& before = record().survivors) {
    if (is_equal(message, *before)) return false;
    return refused_by_member("the server wants a second list of those that count to be signed");
  }
  FL_CHECK(sign(message));
  FL_CHECK(check_version(record().weights));
  AttemptRecord next = record();
  next.survivors = message;
  FL_CHECK(file_.write(std::move(next)));
  FL_CHECK(add_contribution());
  return true;
}

/// A second ask is answered by what is revealed already.
Result<bool> MaskedAttempt::take_ask(const wire::SecureAsk& message) {
  if (!record().survivors) return lost();
  if (record().ask) return false;
  FL_CHECK(answer(message));
  AttemptRecord next = record();
  next.ask = message;
  FL_CHECK(file_.write(std::move(next)));
  return true;
}

/// The fewest members that this one takes part with.
std::size_t MaskedAttempt::least() const {
  return std::max<std::size_t>(options_.cohort_min, run_.list->smallest_cohort);
}

Result<Seat> MaskedAttempt::sit(const wire::SecureCohort& message) const {
  auto cohort = secure::read_cohort(message, context_, *run_.list);
  if (!cohort) return refused_by_member(cohort.error());
  return Seat::take(std::move(*cohort), run_.name, AttemptSecrets(record().seed), least(),
                    [list = run_.list](std::string_view name) { return list->find(name); });
}

Result<void> MaskedAttempt::fill(Seat& seat, const wire::SecureInbox& message) const {
  auto sharers = secure::read_indices(message.sharers());
  const auto& members = record().cohort->members();
  std::vector<InboxItem> items;
  int next = 0;
  for (const std::uint32_t from : sharers) {
    // A member seals nothing for itself.
    const bool is_own = from < static_cast<std::uint32_t>(members.size()) &&
                        members[static_cast<int>(from)].name() == run_.name;
    if (is_own) continue;
    if (next == message.sealed_size())
      return refused_by_member("the server has fewer sealed shares than members have shared");
    const Bytes bytes = bytes_of(std::string_view(message.sealed(next++)));
    items.push_back({from, {bytes.begin(), bytes.end()}});
  }
  if (next != message.sealed_size())
    return refused_by_member("the server has more sealed shares than members have shared");
  const auto read = seat.read_inbox(std::move(sharers), items);
  return read ? success() : refused_by_member(read.error());
}

Result<secure::Consent> MaskedAttempt::sign(const wire::SecureSurvivors& message) const {
  return seat_->consent(secure::read_indices(message.survivors()), options_.site_key);
}

Result<secure::Reveal> MaskedAttempt::answer(const wire::SecureAsk& message) const {
  const auto consents = secure::read_consents(message);
  if (!consents) return refused_by_member(consents.error());
  return seat_->reveal(secure::read_indices(record().survivors->survivors()), *consents);
}

Result<void> MaskedAttempt::add_contribution() {
  return contributions_.add({.weights = record().weights,
                             .transcript = seat_->transcript(),
                             .run_key = run_.terms.run_key,
                             .task = record().task()});
}

// Messages of this member ----------------------------------------------------------------------

Result<wire::Header> MaskedAttempt::message() const {
  wire::Header header;
  const auto begin = [this](auto& message) -> auto& {
    message.set_task(record().task());
    message.set_attempt(record().attempt());
    return message;
  };
  switch (stage()) {
    case Stage::keys: {
      auto& message = begin(*header.mutable_secure_keys());
      secure::write_keys(AttemptSecrets(record().seed).keys(context_, run_.name, options_.site_key),
                         message);
      message.set_cohort_min(static_cast<std::uint32_t>(least()));
      break;
    }
    case Stage::shares: {
      FL_TRY(const auto shares, seat_->sealed_shares());
      auto& message = begin(*header.mutable_secure_shares());
      for (const SealedShares& share : shares) message.add_sealed(secure::raw(share.bytes));
      break;
    }
    case Stage::consent: {
      FL_TRY(const auto consent, sign(*record().survivors));
      begin(*header.mutable_secure_consent()).set_signature(secure::raw(consent.signature));
      break;
    }
    case Stage::reveal: {
      FL_TRY(const auto reveal, answer(*record().ask));
      secure::write_reveal(reveal, seat_->own(), secure::read_indices(record().inbox->sharers()),
                           begin(*header.mutable_secure_reveal()));
      break;
    }
    case Stage::words: FL_ASSERT(false);
  }
  return header;
}

Result<void> MaskedAttempt::mask(std::span<std::uint64_t> words) const {
  FL_ASSERT(stage() == Stage::words && seat_);
  FL_TRY(auto masks, seat_->masks());
  masks.apply(0, words);
  return {};
}

}  // namespace fl::client
