// SPDX-License-Identifier: Apache-2.0
// The messages of a masked round, to and from the wire. What is read here has the right sizes; what
// it says is checked by those who use it (client/secure/seat.hpp, server/secure/unlocking.hpp).
// Errors: protocol, naming the field. Pure; any thread.
#pragma once

#include "proto/wire.pb.h"
#include "shared/base/error.hpp"
#include "shared/secure/cohort.hpp"
#include "shared/secure/member_list.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace fl::secure {

/// What an attempt has in common for all that take part in the run.
struct RunTerms {
  std::string run_key;
  std::string model;
  std::string strategy;
  std::string layout_digest;  // As in wire::Welcome.

  [[nodiscard]] Public digest() const;
};

/// The digest of all that members must have equal before they make keys. `offer`: any member's; its
/// fields for one client alone do not count. `weights`: values_digest() of the version that it
/// names.
[[nodiscard]] Public attempt_context(const RunTerms& run, const wire::Offer& offer,
                                     const Public& weights);

/// SHA-256 of a model's values, in layout order. The version's own digest is no cryptographic one:
/// a server could make two models that have it in common.
class ValuesDigest {
 public:
  ValuesDigest();
  ~ValuesDigest();
  ValuesDigest(const ValuesDigest&) = delete;
  ValuesDigest& operator=(const ValuesDigest&) = delete;
  void update(Bytes values);
  /// Call it once.
  [[nodiscard]] Public finish();

 private:
  void* hash_;  // OpenSSL's EVP_MD_CTX.
};

/// The task and the attempt of a message of a masked round but UploadBegin, of either end.
struct Subject {
  std::int64_t task = 0;
  std::uint32_t attempt = 0;
};
[[nodiscard]] Subject subject_of(const wire::Header& message);
/// Sets the task of a message of the server's.
void set_task(wire::Header& message, std::int64_t task);

void write_keys(const MemberKeys& keys, wire::SecureKeys& to);
[[nodiscard]] Result<MemberKeys> read_keys(const wire::SecureKeys& message);

void write_members(const Cohort& cohort, wire::SecureCohort& to);
/// The cohort, with the site keys of the list. Errors: also invalid_input, for a member that the
/// list does not have. It has yet to pass check_cohort().
[[nodiscard]] Result<Cohort> read_cohort(const wire::SecureCohort& message, const Public& context,
                                         const MemberList& list);

/// The values of a field of indices.
[[nodiscard]] std::vector<std::uint32_t> read_indices(
    const google::protobuf::RepeatedField<std::uint32_t>& indices);

[[nodiscard]] Result<Signature> read_signature(const std::string& bytes);
[[nodiscard]] Result<std::vector<Consent>> read_consents(const wire::SecureAsk& message);

/// What a member reveals, of the sharers but itself, in their order.
void write_reveal(const Reveal& reveal, std::uint32_t member,
                  const std::vector<std::uint32_t>& sharers, wire::SecureReveal& to);
/// The opposite. `survivors` decide what each share is of. A share that the member could not read
/// is left out.
[[nodiscard]] Result<Reveal> read_reveal(const wire::SecureReveal& message, std::uint32_t member,
                                         const std::vector<std::uint32_t>& sharers,
                                         const std::vector<std::uint32_t>& survivors);

/// Bytes as a string for the wire.
[[nodiscard]] std::string raw(Bytes bytes);
/// 32 bytes of the wire. `what` names the field. Errors: protocol, for another size.
[[nodiscard]] Result<Public> read_public(const std::string& bytes, std::string_view what);

}  // namespace fl::secure
