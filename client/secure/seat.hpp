// SPDX-License-Identifier: Apache-2.0
// A member's half of an attempt of a masked round: what it sends, and what it refuses to do for a
// server that may be malicious. A Seat keeps nothing on the disk. Its caller must make the seed,
// the cohort and the first list of survivors durable before it sends what follows from them, and
// must never take a second seat with one seed: docs/design/secure-aggregation.md has the steps.
#pragma once

#include "shared/secure/cohort.hpp"

#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace fl::client {

/// The masks of one member, over a vector of words that it can go through in pieces. One thread at
/// a time.
class Masks {
 public:
  using Way = secure::MaskStream::Way;

  void add(const secure::Secret& key, Way way) {
    streams_.emplace_back(secure::MaskStream(key), way);
  }
  /// words[i] becomes masked; `first` is the index of words[0] in the whole vector.
  void apply(std::uint64_t first, std::span<std::uint64_t> words);

 private:
  std::vector<std::pair<secure::MaskStream, Way>> streams_;
};

/// A message from this member to another one. The server passes it on and can't read it.
struct SealedShares {
  std::uint32_t to;
  std::vector<std::byte> bytes;  // secure::sealed_share_bytes.
};
/// SealedShares as they arrive.
struct InboxItem {
  std::uint32_t from;
  std::vector<std::byte> bytes;
};

/// The site key that a member list has for a name; nullopt if the name is not in it.
using FindSiteKey = std::function<std::optional<secure::Public>(std::string_view name)>;

class Seat {
 public:
  /// Takes part in a cohort that the server names. `own_name` and `secrets`: this member's, whose
  /// keys must be in it unchanged. `least`: the fewest members that this one takes part with.
  /// Errors: invalid_input, which says what is wrong: check_cohort()'s, a member that the list does
  /// not have, or has with another key, a cohort that is too small, and other keys for this member.
  [[nodiscard]] static Result<Seat> take(secure::Cohort cohort, std::string_view own_name,
                                         secure::AttemptSecrets secrets, std::size_t least,
                                         const FindSiteKey& site_key_of);

  [[nodiscard]] const secure::Public& transcript() const { return transcript_; }
  /// This member's index.
  [[nodiscard]] std::uint32_t own() const { return own_; }

  /// The shares for all other members. Errors: invalid_input, for a key of small order.
  [[nodiscard]] Result<std::vector<SealedShares>> sealed_shares() const;

  /// Reads what the server says of the others: who has shared, and their shares for this member.
  /// Errors: invalid_input, for a list that can't be, or too few; corrupt, naming whose shares are
  /// missing, or if none can be opened.
  [[nodiscard]] Result<void> read_inbox(std::vector<std::uint32_t> sharers,
                                        std::span<const InboxItem> inbox);
  /// The sharers whose shares can't be opened, ascending: this member reveals nothing of theirs.
  [[nodiscard]] std::vector<std::uint32_t> unreadable() const;

  /// The masks to be put on this member's words. Requires: read_inbox().
  [[nodiscard]] Result<Masks> masks() const;

  /// Signs the list of those that count. Requires: read_inbox(). Errors: invalid_input, if the list
  /// can't be, lacks this member, or has too few.
  [[nodiscard]] Result<secure::Consent> consent(const std::vector<std::uint32_t>& survivors,
                                                const secure::Secret& site_secret) const;

  /// The answer with which the server can open the sum of the survivors. Requires: read_inbox().
  /// Errors: invalid_input, unless enough members have signed this list.
  [[nodiscard]] Result<secure::Reveal> reveal(const std::vector<std::uint32_t>& survivors,
                                              const std::vector<secure::Consent>& consents) const;

 private:
  /// The shares that another member has sent to this one.
  struct Entrusted {
    secure::Secret mask_share;
    secure::Secret self_share;
  };

  Seat(secure::Cohort cohort, secure::AttemptSecrets secrets, std::size_t own, std::size_t least)
      : cohort_(std::move(cohort)),
        secrets_(std::move(secrets)),
        own_(static_cast<std::uint32_t>(own)),
        least_(least),
        transcript_(secure::transcript_of(cohort_)) {}
  [[nodiscard]] Result<Entrusted> open_shares(std::uint32_t from, Bytes sealed) const;

  secure::Cohort cohort_;
  secure::AttemptSecrets secrets_;
  std::uint32_t own_;
  std::size_t least_;
  secure::Public transcript_;
  std::vector<std::uint32_t> sharers_;  // Empty before read_inbox().
  // By the sharers, in their order; nothing by this member, and by those that are unreadable.
  std::vector<std::optional<Entrusted>> entrusted_;
};

}  // namespace fl::client
