// SPDX-License-Identifier: Apache-2.0
#include "shared/secure/cohort.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace fl::secure {

namespace {

constexpr Public no_transcript{};

Error not_a_cohort(std::string text) { return {Errc::invalid_input, std::move(text)}; }

Bytes number_bytes(const std::uint64_t& number) { return std::as_bytes(std::span(&number, 1)); }

Public keys_digest(const Public& context, std::string_view name, const MemberKeys& keys) {
  return digest_of({bytes_of("tributary keys 1"), context, bytes_of(name), keys.mask_key,
                    keys.share_key, keys.self_digest});
}

Bytes indices_bytes(const std::vector<std::uint32_t>& indices) {
  return std::as_bytes(std::span(indices));
}

}  // namespace

AttemptSecrets::AttemptSecrets(const Secret& seed)
    : seed_(seed),
      mask_(derive(seed.bytes(), no_transcript, "tributary mask key 1")),
      share_(derive(seed.bytes(), no_transcript, "tributary share key 1")),
      self_(derive(seed.bytes(), no_transcript, "tributary self seed 1")) {}

MemberKeys AttemptSecrets::keys(const Public& context, std::string_view name,
                                const Secret& site_secret) const {
  MemberKeys keys{.mask_key = agreement_key(mask_),
                  .share_key = agreement_key(share_),
                  .self_digest = self_digest_of(self_),
                  .signature = {}};
  keys.signature = sign(site_secret, keys_digest(context, name, keys));
  return keys;
}

Sharing AttemptSecrets::mask_sharing(std::size_t threshold, const Public& transcript) const {
  return {mask_, threshold, derive(seed_.bytes(), transcript, "tributary mask coefficients 1")};
}

Sharing AttemptSecrets::self_sharing(std::size_t threshold, const Public& transcript) const {
  return {self_, threshold, derive(seed_.bytes(), transcript, "tributary self coefficients 1")};
}

Public self_digest_of(const Secret& self_seed) {
  return digest_of({bytes_of("tributary self seed 1"), self_seed.bytes()});
}

std::size_t Cohort::index_of(std::string_view name) const {
  const auto found = std::ranges::find(members, name, &Member::name);
  return static_cast<std::size_t>(found - members.begin());
}

Result<void> check_keys(const Public& context, const Member& member) {
  if (is_signed(member.site_key, keys_digest(context, member.name, member.keys),
                member.keys.signature))
    return {};
  return not_a_cohort(
      fmt::format("the keys of '{}' are not signed by its site key for this attempt", member.name));
}

Result<void> check_cohort(const Cohort& cohort) {
  const auto& members = cohort.members;
  if (members.size() < cohort_min || members.size() > cohort_max) {
    return not_a_cohort(fmt::format("a cohort has {} to {} members, not {}", cohort_min, cohort_max,
                                    members.size()));
  }
  std::set<Public> seen;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Member& member = members[i];
    if (i > 0 && member.name <= members[i - 1].name) {
      return not_a_cohort(fmt::format("'{}' and '{}' are one name, or not in order",
                                      members[i - 1].name, member.name));
    }
    for (const Public& key :
         {member.site_key, member.keys.mask_key, member.keys.share_key, member.keys.self_digest}) {
      if (!seen.insert(key).second)
        return not_a_cohort(fmt::format("'{}' has a key that is in the cohort twice", member.name));
    }
    FL_CHECK(check_keys(cohort.context, member));
  }
  return {};
}

Public transcript_of(const Cohort& cohort) {
  // The digest of each member's part goes into the next one's, so the order counts, too.
  Public chain = digest_of({bytes_of("tributary cohort 1"), cohort.context,
                            number_bytes(cohort.members.size()), number_bytes(cohort.threshold())});
  for (const Member& member : cohort.members) {
    chain = digest_of({chain, bytes_of(member.name), member.site_key, member.keys.mask_key,
                       member.keys.share_key, member.keys.self_digest});
  }
  return chain;
}

Result<Secret> pair_mask_key(const Secret& own, const Public& other, const Public& transcript) {
  FL_TRY(const Secret shared, agree(own, other));
  return derive(shared.bytes(), transcript, "tributary pair mask 1");
}

Secret self_mask_key(const Secret& self_seed, const Public& transcript) {
  return derive(self_seed.bytes(), transcript, "tributary self mask 1");
}

Result<Secret> sealing_key(const Secret& own, const Public& other, const Public& transcript,
                           std::size_t from, std::size_t to) {
  FL_TRY(const Secret shared, agree(own, other));
  return derive(shared.bytes(), transcript,
                fmt::format("tributary shares 1 from {} to {}", from, to));
}

Public consent_digest(const Public& transcript, const std::vector<std::uint32_t>& sharers,
                      const std::vector<std::uint32_t>& survivors) {
  return digest_of({bytes_of("tributary consent 1"), transcript, indices_bytes(sharers),
                    indices_bytes(survivors)});
}

Result<void> check_indices(const std::vector<std::uint32_t>& indices, std::size_t members,
                           std::string_view what) {
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] >= members || (i > 0 && indices[i] <= indices[i - 1]))
      return not_a_cohort(
          fmt::format("the {} are not ascending indices of {} members", what, members));
  }
  return {};
}

Result<void> check_survivors(const Cohort& cohort, const std::vector<std::uint32_t>& sharers,
                             const std::vector<std::uint32_t>& survivors) {
  FL_CHECK(check_indices(sharers, cohort.members.size(), "sharers"));
  FL_CHECK(check_indices(survivors, cohort.members.size(), "survivors"));
  if (!std::ranges::includes(sharers, survivors))
    return not_a_cohort("a survivor has not shared its secrets");
  // Fewer than the threshold could not open what the others hid.
  const std::size_t least =
      std::max({cohort_min, consent_threshold(cohort.members.size()), cohort.threshold()});
  if (sharers.size() < least || survivors.size() < least) {
    return not_a_cohort(fmt::format("{} of {} members are left, and {} are the fewest",
                                    survivors.size(), cohort.members.size(), least));
  }
  return {};
}

Result<void> check_consents(const Cohort& cohort, const Public& transcript,
                            const std::vector<std::uint32_t>& sharers,
                            const std::vector<std::uint32_t>& survivors,
                            const std::vector<Consent>& consents) {
  FL_CHECK(check_survivors(cohort, sharers, survivors));
  const Public digest = consent_digest(transcript, sharers, survivors);
  std::set<std::uint32_t> signers;
  for (const Consent& consent : consents) {
    if (!std::ranges::binary_search(sharers, consent.member))
      return not_a_cohort("somebody has signed the survivors who has not shared its secrets");
    const Member& member = cohort.members[consent.member];
    if (!is_signed(member.site_key, digest, consent.signature))
      return not_a_cohort(fmt::format("'{}' has not signed this list of survivors", member.name));
    if (!signers.insert(consent.member).second)
      return not_a_cohort(fmt::format("'{}' has signed the survivors twice", member.name));
  }
  const std::size_t needed = consent_threshold(cohort.members.size());
  if (signers.size() < needed) {
    return not_a_cohort(
        fmt::format("{} members have signed the survivors, and {} must", signers.size(), needed));
  }
  return {};
}

}  // namespace fl::secure
