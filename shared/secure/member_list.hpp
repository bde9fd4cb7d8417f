// SPDX-License-Identifier: Apache-2.0
// The list of a consortium's members: whose site keys count in masked rounds. People write it, and
// one or several of them sign it offline, so that whoever runs the server can invent nobody. It is
// text, a word and its values on each line:
//
//   tributary-members 1
//   epoch 2                       counts up from list to list
//   before HEX                    the digest of the list before; only without it for epoch 1
//   smallest-cohort 5             no masked round has fewer members
//   needs 2                       so many signers must sign
//   signer NAME KEY               one who may sign; KEY: an Ed25519 key, 64 hexadecimal digits
//   member NAME KEY               a site, with its site key
//   signature NAME HEX            a signer's, of the list's digest: what a program adds
//
// Empty lines, and what follows a '#', are for people, and are not signed.
//
// Errors: invalid_input, naming the line where there is one. Pure; any thread.
#pragma once

#include "shared/base/error.hpp"
#include "shared/secure/primitives.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fl::secure {

/// About 2,000 members. A Welcome carries the list (limits::header_bytes_max).
inline constexpr std::size_t member_list_bytes_max = 192 << 10;

struct MemberList {
  struct Named {
    std::string name;
    Public key;
  };
  struct Signed {
    std::string name;
    Signature signature;
  };

  std::uint32_t epoch = 1;
  std::optional<Public> before;
  std::uint32_t smallest_cohort = 0;
  std::uint32_t needs = 1;
  std::vector<Named> signers;
  std::vector<Named> members;
  std::vector<Signed> signatures;

  /// What is signed: all of it but the signatures. It names the list.
  [[nodiscard]] Public digest() const;
  /// The site key of a name; nullopt if it is not in the list.
  [[nodiscard]] std::optional<Public> find(std::string_view name) const;
};

/// Reads a list and checks that it can be one: names as clients have them, none twice and no key
/// twice, at least cohort_min members, smallest_cohort between cohort_min and their number, no more
/// needed signers than there are. Signatures are read, not checked.
[[nodiscard]] Result<MemberList> parse_member_list(std::string_view text);

/// The line that a signer adds to the list's text. Errors: also if the key is no signer's.
[[nodiscard]] Result<std::string> signature_line(const MemberList& list, const Secret& signer);

/// Whether as many signers as needed have signed, each once and for this list.
[[nodiscard]] Result<void> check_signed(const MemberList& list);
/// Whether `next`, which has passed check_signed(), may take the place of `list`: it has a higher
/// epoch, names it as the one before, and as many signers of `list` as that needs have signed it.
[[nodiscard]] Result<void> check_follows(const MemberList& next, const MemberList& list);

/// A key as 64 hexadecimal digits, and back.
[[nodiscard]] std::string key_text(const Public& key);
[[nodiscard]] Result<Public> parse_key_text(std::string_view text);
/// 80 bits of a key's digest, in groups that one can read out on the telephone.
[[nodiscard]] std::string fingerprint_of(const Public& key);

}  // namespace fl::secure
