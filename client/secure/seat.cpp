// SPDX-License-Identifier: Apache-2.0
#include "client/secure/seat.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fl::client {

namespace {

using secure::Cohort;
using secure::Member;
using secure::Secret;

Error refused(std::string text) { return {Errc::invalid_input, std::move(text)}; }

}  // namespace

void Masks::apply(std::uint64_t first, std::span<std::uint64_t> words) {
  constexpr std::size_t piece_max = 1 << 14;  // Words that stay in a core's cache for all masks.
  while (!words.empty()) {
    const auto piece = words.first(std::min(words.size(), piece_max));
    for (auto& [stream, way] : streams_) stream.apply(way, first, piece);
    first += piece.size();
    words = words.subspan(piece.size());
  }
}

Result<Seat> Seat::take(Cohort cohort, std::string_view own_name, secure::AttemptSecrets secrets,
                        std::size_t least, const FindSiteKey& site_key_of) {
  FL_CHECK(secure::check_cohort(cohort));
  if (cohort.members.size() < least) {
    return refused(
        fmt::format("the cohort has {} members, and this one takes part with {} at least",
                    cohort.members.size(), least));
  }
  for (const Member& member : cohort.members) {
    const auto listed = site_key_of(member.name);
    if (!listed) return refused(fmt::format("'{}' is not in the member list", member.name));
    if (*listed != member.site_key)
      return refused(fmt::format("'{}' has another site key in the member list", member.name));
  }
  const std::size_t own = cohort.index_of(own_name);
  if (own == cohort.members.size()) return refused("the cohort lacks this member");
  const secure::MemberKeys& keys = cohort.members[own].keys;
  if (keys.mask_key != secure::agreement_key(secrets.mask()) ||
      keys.share_key != secure::agreement_key(secrets.share()) ||
      keys.self_digest != secure::self_digest_of(secrets.self()))
    return refused("the cohort has other keys of this member than it has made");
  return Seat(std::move(cohort), std::move(secrets), own, least);
}

Result<std::vector<SealedShares>> Seat::sealed_shares() const {
  const std::size_t threshold = cohort_.threshold();
  const auto of_mask = secrets_.mask_sharing(threshold, transcript_);
  const auto of_self = secrets_.self_sharing(threshold, transcript_);
  std::vector<SealedShares> sealed;
  for (std::uint32_t to = 0; to < cohort_.members.size(); ++to) {
    if (to == own_) continue;
    FL_TRY(const Secret key,
           secure::sealing_key(secrets_.share(), cohort_.members[to].keys.share_key, transcript_,
                               own_, to));
    // Both shares lie in memory that is overwritten afterwards.
    std::array<Secret, 2> shares{of_mask.at(to + 1).value, of_self.at(to + 1).value};
    static_assert(sizeof shares == 2 * secure::key_bytes);
    sealed.push_back({to, secure::seal(key, std::as_bytes(std::span(shares)), transcript_)});
  }
  return sealed;
}

Result<Seat::Entrusted> Seat::open_shares(std::uint32_t from, Bytes sealed) const {
  const Member& sender = cohort_.members[from];
  FL_TRY(const auto key,
         secure::sealing_key(secrets_.share(), sender.keys.share_key, transcript_, from, own_));
  auto opened = secure::open_sealed(key, sealed, transcript_);
  if (!opened) return opened.error();
  if (opened->size() != 2 * secure::key_bytes)
    return Error(Errc::corrupt, fmt::format("they have {} bytes", opened->size()));
  const Bytes bytes = *opened;
  Entrusted entrusted{Secret(bytes.first(secure::key_bytes)),
                      Secret(bytes.last(secure::key_bytes))};
  std::ranges::fill(*opened, std::byte{0});
  return entrusted;
}

Result<void> Seat::read_inbox(std::vector<std::uint32_t> sharers,
                              std::span<const InboxItem> inbox) {
  // All sharers may survive, so the rules for survivors hold for them, too.
  FL_CHECK(secure::check_survivors(cohort_, sharers, sharers));
  if (sharers.size() < least_) {
    return refused(fmt::format(
        "{} members have shared their secrets, and this one takes part with {} at least",
        sharers.size(), least_));
  }
  if (!std::ranges::binary_search(sharers, own_))
    return refused("this member is not among those that have shared their secrets");
  std::vector<std::optional<Entrusted>> entrusted;
  std::optional<Error> unread;
  bool reads_any = false;
  for (const std::uint32_t from : sharers) {
    entrusted.emplace_back();
    if (from == own_) continue;
    const auto item = std::ranges::find(inbox, from, &InboxItem::from);
    if (item == inbox.end()) {
      return Error(Errc::corrupt,
                   fmt::format("the shares of '{}' are missing", cohort_.members[from].name));
    }
    auto opened = open_shares(from, item->bytes);
    if (opened) {
      entrusted.back() = std::move(*opened);
      reads_any = true;
    } else if (!unread) {
      unread = opened.error().at(fmt::format("the shares of '{}'", cohort_.members[from].name));
    }
  }
  if (!reads_any) return *unread;
  sharers_ = std::move(sharers);
  entrusted_ = std::move(entrusted);
  return {};
}

std::vector<std::uint32_t> Seat::unreadable() const {
  std::vector<std::uint32_t> unreadable;
  for (std::size_t i = 0; i < sharers_.size(); ++i) {
    if (sharers_[i] != own_ && !entrusted_[i]) unreadable.push_back(sharers_[i]);
  }
  return unreadable;
}

Result<Masks> Seat::masks() const {
  FL_ASSERT(!sharers_.empty());
  Masks masks;
  masks.add(secure::self_mask_key(secrets_.self(), transcript_), Masks::Way::add);
  for (const std::uint32_t other : sharers_) {
    if (other == own_) continue;
    FL_TRY(
        const Secret key,
        secure::pair_mask_key(secrets_.mask(), cohort_.members[other].keys.mask_key, transcript_));
    masks.add(key, own_ < other ? Masks::Way::add : Masks::Way::subtract);
  }
  return masks;
}

Result<secure::Consent> Seat::consent(const std::vector<std::uint32_t>& survivors,
                                      const Secret& site_secret) const {
  FL_ASSERT(!sharers_.empty());
  FL_CHECK(secure::check_survivors(cohort_, sharers_, survivors));
  if (survivors.size() < least_) {
    return refused(fmt::format("{} members are left, and this one takes part with {} at least",
                               survivors.size(), least_));
  }
  if (!std::ranges::binary_search(survivors, own_))
    return refused("this member is not among the survivors that it is to sign");
  return secure::Consent{
      own_, secure::sign(site_secret, secure::consent_digest(transcript_, sharers_, survivors))};
}

Result<secure::Reveal> Seat::reveal(const std::vector<std::uint32_t>& survivors,
                                    const std::vector<secure::Consent>& consents) const {
  FL_ASSERT(!sharers_.empty());
  FL_CHECK(secure::check_consents(cohort_, transcript_, sharers_, survivors, consents));
  secure::Reveal reveal{.self_seed = secrets_.self(), .shares = {}};
  for (std::size_t i = 0; i < sharers_.size(); ++i) {
    const std::uint32_t about = sharers_[i];
    if (!entrusted_[i]) continue;
    const bool has_survived = std::ranges::binary_search(survivors, about);
    reveal.shares.push_back(
        {about, has_survived ? secure::SharedSecret::self_seed : secure::SharedSecret::mask_key,
         has_survived ? entrusted_[i]->self_share : entrusted_[i]->mask_share});
  }
  return reveal;
}

}  // namespace fl::client
