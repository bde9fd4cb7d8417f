// SPDX-License-Identifier: Apache-2.0
// An attempt of a masked round: who takes part in it with which keys, and the keys that follow.
// Bell, Bonawitz, Gascon, Lepoint and Raykova 2020, "Secure single-server aggregation with
// (poly)logarithmic overhead" (SecAgg+), in its form against a malicious server, on a complete
// graph. docs/design/secure-aggregation.md has the messages and what each end checks. Pure; any
// thread.
#pragma once

#include "shared/base/error.hpp"
#include "shared/secure/primitives.hpp"
#include "shared/secure/shamir.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fl::secure {

/// The fewest members of a cohort. Each of two would learn the other's update from the sum.
inline constexpr std::size_t cohort_min = 3;
/// The most members where everybody masks with everybody.
inline constexpr std::size_t cohort_max = 128;

/// How many of the other members together know a member's secrets: more than two thirds.
[[nodiscard]] constexpr std::size_t share_threshold(std::size_t members) {
  return 2 * (members - 1) / 3 + 1;
}
/// How many members of a cohort must sign a list of survivors: more than two thirds of all, not of
/// those that have shared, as the server may tell each member of other sharers. So no two lists can
/// both have enough, unless a third of the cohort is dishonest.
[[nodiscard]] constexpr std::size_t consent_threshold(std::size_t members) {
  return 2 * members / 3 + 1;
}

/// The public keys of a member for one attempt.
struct MemberKeys {
  Public mask_key;      // X25519: masks are agreed upon with it.
  Public share_key;     // X25519: shares are sealed with it.
  Public self_digest;   // self_digest_of() the self seed, so that wrong shares of it are noticed.
  Signature signature;  // By the site key, of these three and the context.

  bool operator==(const MemberKeys&) const = default;
};

/// The secrets of a member for one attempt, all from one seed: who has the seed on its disk comes
/// to the same keys, shares and masks after a restart.
class AttemptSecrets {
 public:
  explicit AttemptSecrets(const Secret& seed);

  /// The public halves, signed. `context`: the digest of all that the members must have equal
  /// before they make keys.
  [[nodiscard]] MemberKeys keys(const Public& context, std::string_view name,
                                const Secret& site_secret) const;

  [[nodiscard]] const Secret& mask() const { return mask_; }
  [[nodiscard]] const Secret& share() const { return share_; }
  [[nodiscard]] const Secret& self() const { return self_; }
  /// How the secrets of this attempt are shared, with one transcript.
  [[nodiscard]] Sharing mask_sharing(std::size_t threshold, const Public& transcript) const;
  [[nodiscard]] Sharing self_sharing(std::size_t threshold, const Public& transcript) const;

 private:
  Secret seed_;
  Secret mask_;
  Secret share_;
  Secret self_;
};

/// The digest of a self seed, MemberKeys::self_digest.
[[nodiscard]] Public self_digest_of(const Secret& self_seed);

struct Member {
  std::string name;
  Public site_key;  // Ed25519, as the member list has it.
  MemberKeys keys;
};

/// All that take part in an attempt.
struct Cohort {
  Public context;
  std::vector<Member> members;  // In the order of their names.

  [[nodiscard]] std::size_t threshold() const { return share_threshold(members.size()); }
  /// The member's index; members.size() if there is none of that name.
  [[nodiscard]] std::size_t index_of(std::string_view name) const;
};

/// Whether a member's keys are signed by its site key, for this context. Errors: invalid_input,
/// naming the member.
[[nodiscard]] Result<void> check_keys(const Public& context, const Member& member);

/// Whether the cohort can be one at all: from cohort_min to cohort_max members in the order of
/// their names, no name, site key or attempt key twice, and each one's keys signed for this
/// context. Errors: invalid_input, naming the member and what is wrong.
[[nodiscard]] Result<void> check_cohort(const Cohort& cohort);

/// The digest that all keys of the attempt are bound to. A member that was shown anything else has
/// other masks, which nothing takes off.
[[nodiscard]] Public transcript_of(const Cohort& cohort);

/// The key of the mask that a pair has in common. Its member with the lower index adds that mask,
/// the other one subtracts it. `own`: the secret half of one of the two mask keys. Errors:
/// invalid_input, for a key of small order.
[[nodiscard]] Result<Secret> pair_mask_key(const Secret& own, const Public& other,
                                           const Public& transcript);
/// The key of the mask that a member adds on its own.
[[nodiscard]] Secret self_mask_key(const Secret& self_seed, const Public& transcript);
/// The key that seals what the member `from` sends to `to`. `own`: the secret half of one of their
/// share keys, `other`: the public one of the other end. Errors as pair_mask_key().
[[nodiscard]] Result<Secret> sealing_key(const Secret& own, const Public& other,
                                         const Public& transcript, std::size_t from,
                                         std::size_t to);

/// The digest that a member signs: `sharers` have shared their secrets, and only `survivors` count.
/// Both are indices, ascending.
[[nodiscard]] Public consent_digest(const Public& transcript,
                                    const std::vector<std::uint32_t>& sharers,
                                    const std::vector<std::uint32_t>& survivors);

/// The bytes of what a member seals for another one: a share of its mask key, one of its self seed,
/// and the seal's tag.
inline constexpr std::size_t sealed_share_bytes = 2 * key_bytes + seal_bytes;

struct Consent {
  std::uint32_t member;  // The signer's index.
  Signature signature;   // Signs consent_digest() by the site key.
};

/// Whether these are ascending indices of members. Errors: invalid_input, which calls them `what`.
[[nodiscard]] Result<void> check_indices(const std::vector<std::uint32_t>& indices,
                                         std::size_t members, std::string_view what);
/// Whether the list of survivors may count: sharers and survivors are at least cohort_min, the
/// survivors are sharers, and as many as must sign. Errors: invalid_input.
[[nodiscard]] Result<void> check_survivors(const Cohort& cohort,
                                           const std::vector<std::uint32_t>& sharers,
                                           const std::vector<std::uint32_t>& survivors);
/// Whether enough sharers have signed the list, each once. Errors: invalid_input, naming whose
/// signature is wrong.
[[nodiscard]] Result<void> check_consents(const Cohort& cohort, const Public& transcript,
                                          const std::vector<std::uint32_t>& sharers,
                                          const std::vector<std::uint32_t>& survivors,
                                          const std::vector<Consent>& consents);

/// Which secret of a member a share is of.
enum class SharedSecret : std::uint8_t {
  self_seed = 1,  // For a survivor: takes off the mask that it added on its own.
  mask_key = 2,   // For a member that is gone: takes off the masks that others had with it.
};

struct RevealedShare {
  std::uint32_t about;  // The member whose secret it is a share of.
  SharedSecret of;
  Secret value;  // In Shamir's sense its index is 1 + that of the member which reveals it.
};

/// A member's answer to the server once the list is signed. Of each other sharer one share at most:
/// never both, as they would open that member's own update. None, if the member could not read what
/// the other one had sealed for it.
struct Reveal {
  Secret self_seed;
  std::vector<RevealedShare> shares;  // By `about`, ascending.
};

}  // namespace fl::secure
