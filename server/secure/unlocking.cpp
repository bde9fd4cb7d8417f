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
      transcript_(secure::transcript_of(cohort_)) {
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
    if (about == member) continue;
    const auto needed = is_survivor(about) ? SharedSecret::self_seed : SharedSecret::mask_key;
    if (share == reveal.shares.end() || share->about != about || share->of != needed)
      return refused("reveals other shares than those of the signed list");
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
  if (reveals_.size() >= cohort_.threshold()) return missing;
  for (const std::uint32_t member : survivors_) {
    if (!reveals_.contains(member)) missing.push_back(member);
  }
  return missing;
}

std::vector<Share> Unlocking::shares_about(std::uint32_t member) const {
  std::vector<Share> shares;
  for (const auto& [giver, reveal] : reveals_) {
    const auto share = std::ranges::find(reveal.shares, member, &secure::RevealedShare::about);
    if (share != reveal.shares.end()) shares.push_back({giver + 1, share->value});
  }
  return shares;
}

/// The secret of which the members have revealed shares. If it is not right, leaves out one giver
/// after the other: so one liar does no harm where there is one share more than needed.
template <class IsRight>
Result<Secret> Unlocking::put_together(std::uint32_t member, const IsRight& is_right) {
  const std::vector<Share> shares = shares_about(member);
  const std::size_t needed = cohort_.threshold();
  FL_ASSERT(shares.size() >= needed);
  FL_TRY(const Secret first, secure::combine(std::span(shares).first(needed)));
  if (is_right(first)) return first;
  for (std::size_t out = 0; out < needed && shares.size() > needed; ++out) {
    std::vector<Share> without = shares;
    without.erase(without.begin() + static_cast<std::ptrdiff_t>(out));
    FL_TRY(const Secret secret, secure::combine(std::span(without).first(needed)));
    if (!is_right(secret)) continue;
    liars_.push_back(shares[out].index - 1);
    return secret;
  }
  return Error(Errc::corrupt,
               fmt::format("the shares of the secrets of '{}' are wrong", name_of(member)));
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
  FL_ASSERT(missing().empty());
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
