// SPDX-License-Identifier: Apache-2.0
#include "server/secure/unlocking.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl::server {

namespace {

using secure::MaskStream;
using secure::Reveal;
using secure::Secret;
using secure::Share;
using secure::SharedSecret;

}  // namespace

Unlocking::Unlocking(secure::Cohort cohort, std::vector<std::uint32_t> sharers,
                     std::vector<std::uint32_t> survivors)
    : cohort_(std::move(cohort)),
      sharers_(std::move(sharers)),
      survivors_(std::move(survivors)),
      transcript_(secure::transcript_of(cohort_)),
      needed_(cohort_.threshold()) {
  FL_ASSERT(secure::check_survivors(cohort_, sharers_, survivors_));
}

bool Unlocking::is_survivor(std::uint32_t member) const {
  return std::ranges::binary_search(survivors_, member);
}

Result<void> Unlocking::take(std::uint32_t member, const Reveal& reveal) {
  if (!is_survivor(member))
    return Error(Errc::invalid_input, "somebody reveals shares who is no survivor");
  const auto refused = [&](std::string_view what) {
    return Error(Errc::invalid_input, fmt::format("'{}' {}", name_of(member), what));
  };
  if (secure::self_digest_of(reveal.self_seed) != cohort_.members[member].keys.self_digest)
    return refused("reveals another self seed than it has announced");
  auto share = reveal.shares.begin();
  for (const std::uint32_t about : sharers_) {
    const bool is_here = share != reveal.shares.end() && share->about == about;
    if (about == member || !is_here) continue;
    const auto needed = is_survivor(about) ? SharedSecret::self_seed : SharedSecret::mask_key;
    if (share->of != needed) return refused("reveals other shares than those of the signed list");
    ++share;
  }
  if (share != reveal.shares.end())
    return refused("reveals other shares than those of the signed list");
  reveals_.emplace(member, reveal);
  return {};
}

std::vector<std::uint32_t> Unlocking::missing() const {
  // A survivor's own answer gives its seed; as many answers as the threshold give those of all.
  std::vector<std::uint32_t> missing;
  if (lacks() == 0) return missing;
  for (const std::uint32_t member : survivors_) {
    if (!reveals_.contains(member)) missing.push_back(member);
  }
  return missing;
}

bool Unlocking::want_more() {
  FL_ASSERT(lacks() == 0);
  if (reveals_.size() == survivors_.size()) return false;
  needed_ = reveals_.size() + 1;
  return true;
}

/// What those have revealed that have not lied yet.
std::vector<Share> Unlocking::shares_about(std::uint32_t member) const {
  std::vector<Share> shares;
  for (const auto& [giver, reveal] : reveals_) {
    if (std::ranges::find(liars_, giver) != liars_.end()) continue;
    const auto share = std::ranges::find(reveal.shares, member, &secure::RevealedShare::about);
    if (share != reveal.shares.end()) shares.push_back({giver + 1, share->value});
  }
  return shares;
}

void Unlocking::note_liar(std::uint32_t member) {
  if (std::ranges::find(liars_, member) == liars_.end()) liars_.push_back(member);
}

/// The secret of which the members have revealed shares. If it is not right, leaves out one giver
/// after the other, and then each two: so two liars do no harm where there are two shares more than
/// needed. Whoever has been found out is not asked for other secrets.
template <class IsRight>
Result<Secret> Unlocking::put_together(std::uint32_t member, const IsRight& is_right) {
  const std::vector<Share> shares = shares_about(member);
  const std::size_t needed = cohort_.threshold();
  const std::size_t count = shares.size();
  const auto corrupt = [&](std::string_view what) {
    return Error(Errc::corrupt, fmt::format("{} shares of the secrets of '{}' are {}", count,
                                            name_of(member), what));
  };
  if (count < needed) return corrupt(fmt::format("too few: {} are needed", needed));
  // The shares but those at two places; both may be behind the last one.
  const auto without = [&](std::size_t one, std::size_t other) -> Result<Secret> {
    std::vector<Share> rest;
    for (std::size_t i = 0; i < count && rest.size() < needed; ++i) {
      if (i != one && i != other) rest.push_back(shares[i]);
    }
    return secure::combine(rest);
  };
  FL_TRY(const Secret first, without(count, count));
  if (is_right(first)) return first;
  for (std::size_t one = 0; one < needed && count > needed; ++one) {
    FL_TRY(const Secret secret, without(one, count));
    if (!is_right(secret)) continue;
    note_liar(shares[one].index - 1);
    return secret;
  }
  for (std::size_t one = 0; one < needed && count > needed + 1; ++one) {
    for (std::size_t other = one + 1; other <= needed; ++other) {
      FL_TRY(const Secret secret, without(one, other));
      if (!is_right(secret)) continue;
      note_liar(shares[one].index - 1);
      note_liar(shares[other].index - 1);
      return secret;
    }
  }
  return corrupt("not right, or some of them");
}

Result<Secret> Unlocking::self_seed_of(std::uint32_t member) {
  const auto own = reveals_.find(member);
  if (own != reveals_.end()) return own->second.self_seed;
  return put_together(member, [&](const Secret& seed) {
    return secure::self_digest_of(seed) == cohort_.members[member].keys.self_digest;
  });
}

Result<Secret> Unlocking::mask_key_of(std::uint32_t member) {
  return put_together(member, [&](const Secret& key) {
    return secure::agreement_key(key) == cohort_.members[member].keys.mask_key;
  });
}

Result<std::vector<Unlocking::Removal>> Unlocking::removals() {
  FL_ASSERT(lacks() == 0);
  liars_.clear();
  std::vector<Removal> removals;
  for (const std::uint32_t member : survivors_) {
    FL_TRY(const Secret seed, self_seed_of(member));
    removals.emplace_back(secure::self_mask_key(seed, transcript_), MaskStream::Way::subtract);
  }
  for (const std::uint32_t gone : sharers_) {
    if (is_survivor(gone)) continue;
    FL_TRY(const Secret key, mask_key_of(gone));
    for (const std::uint32_t member : survivors_) {
      FL_TRY(const Secret pair,
             secure::pair_mask_key(key, cohort_.members[member].keys.mask_key, transcript_));
      // The survivor with the lower index has added the mask that they have in common.
      removals.emplace_back(pair, member < gone ? MaskStream::Way::subtract : MaskStream::Way::add);
    }
  }
  return removals;
}

}  // namespace fl::server
