// SPDX-License-Identifier: Apache-2.0
#include "shared/secure/messages.hpp"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <cstring>

namespace fl::secure {

namespace {

template <std::size_t Size>
Result<std::array<std::byte, Size>> read_bytes(const std::string& bytes, std::string_view what) {
  if (bytes.size() != Size) {
    return Error(Errc::protocol, fmt::format("{} has {} bytes, not {}", what, bytes.size(), Size));
  }
  std::array<std::byte, Size> out;
  std::memcpy(out.data(), bytes.data(), Size);
  return out;
}

/// The keys of SecureKeys and SecureMember, which have the same fields.
template <class Fields>
Result<MemberKeys> read_keys_of(const Fields& from) {
  MemberKeys keys;
  FL_TRY(keys.mask_key, read_public(from.mask_key(), "mask_key"));
  FL_TRY(keys.share_key, read_public(from.share_key(), "share_key"));
  FL_TRY(keys.self_digest, read_public(from.self_digest(), "self_digest"));
  FL_TRY(keys.signature, read_signature(from.signature()));
  return keys;
}

template <class Fields>
void write_keys_of(const MemberKeys& keys, Fields& to) {
  to.set_mask_key(raw(keys.mask_key));
  to.set_share_key(raw(keys.share_key));
  to.set_self_digest(raw(keys.self_digest));
  to.set_signature(raw(keys.signature));
}

}  // namespace

Public RunTerms::digest() const {
  return digest_of({bytes_of("tributary run 1"), bytes_of(run_key), bytes_of(model),
                    bytes_of(strategy), bytes_of(layout_digest)});
}

Public attempt_context(const RunTerms& run, const wire::Offer& offer, const Public& weights) {
  wire::Offer common = offer;
  common.clear_task();
  common.clear_seed();
  common.clear_deadline_ms();
  common.clear_evaluate_holdout();
  common.clear_initial_digest();
  common.clear_reference();
  const std::string bytes = common.SerializeAsString();
  return digest_of({bytes_of("tributary context 1"), bytes_of(run.run_key), bytes_of(run.model),
                    bytes_of(run.strategy), bytes_of(run.layout_digest), weights, bytes_of(bytes)});
}

ValuesDigest::ValuesDigest() : hash_(EVP_MD_CTX_new()) {
  FL_ASSERT(hash_ != nullptr &&
            EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(hash_), EVP_sha256(), nullptr) == 1);
}

ValuesDigest::~ValuesDigest() { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(hash_)); }

void ValuesDigest::update(Bytes values) {
  FL_ASSERT(EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(hash_), values.data(), values.size()) == 1);
}

Public ValuesDigest::finish() {
  Public digest;
  FL_ASSERT(EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(hash_),
                               reinterpret_cast<unsigned char*>(digest.data()), nullptr) == 1);
  return digest;
}

Subject subject_of(const wire::Header& message) {
  const auto of = [](const auto& said) { return Subject{said.task(), said.attempt()}; };
  switch (message.kind_case()) {
    case wire::Header::kSecureKeys: return of(message.secure_keys());
    case wire::Header::kSecureShares: return of(message.secure_shares());
    case wire::Header::kSecureConsent: return of(message.secure_consent());
    case wire::Header::kSecureReveal: return of(message.secure_reveal());
    case wire::Header::kSecureCohort: return of(message.secure_cohort());
    case wire::Header::kSecureInbox: return of(message.secure_inbox());
    case wire::Header::kSecureSurvivors: return of(message.secure_survivors());
    case wire::Header::kSecureAsk: return of(message.secure_ask());
    default: return {};
  }
}

void set_task(wire::Header& message, std::int64_t task) {
  switch (message.kind_case()) {
    case wire::Header::kSecureCohort: message.mutable_secure_cohort()->set_task(task); break;
    case wire::Header::kSecureInbox: message.mutable_secure_inbox()->set_task(task); break;
    case wire::Header::kSecureSurvivors: message.mutable_secure_survivors()->set_task(task); break;
    default: message.mutable_secure_ask()->set_task(task);
  }
}

void write_keys(const MemberKeys& keys, wire::SecureKeys& to) { write_keys_of(keys, to); }

Result<MemberKeys> read_keys(const wire::SecureKeys& message) { return read_keys_of(message); }

void write_members(const Cohort& cohort, wire::SecureCohort& to) {
  for (const Member& member : cohort.members) {
    wire::SecureMember& one = *to.add_members();
    one.set_name(member.name);
    write_keys_of(member.keys, one);
  }
}

Result<Cohort> read_cohort(const wire::SecureCohort& message, const Public& context,
                           const MemberList& list) {
  Cohort cohort{.context = context, .members = {}};
  for (const wire::SecureMember& one : message.members()) {
    const auto site_key = list.find(one.name());
    if (!site_key) {
      return Error(Errc::invalid_input,
                   fmt::format("'{}' is not in the member list", one.name().substr(0, 64)));
    }
    FL_TRY(const MemberKeys keys, read_keys_of(one));
    cohort.members.push_back({one.name(), *site_key, keys});
  }
  return cohort;
}

std::vector<std::uint32_t> read_indices(
    const google::protobuf::RepeatedField<std::uint32_t>& indices) {
  return {indices.begin(), indices.end()};
}

Result<Signature> read_signature(const std::string& bytes) {
  return read_bytes<signature_bytes>(bytes, "a signature");
}

Result<std::vector<Consent>> read_consents(const wire::SecureAsk& message) {
  std::vector<Consent> consents;
  for (const wire::SecureSignature& one : message.consents()) {
    FL_TRY(const Signature signature, read_signature(one.signature()));
    consents.push_back({one.member(), signature});
  }
  return consents;
}

void write_reveal(const Reveal& reveal, std::uint32_t member,
                  const std::vector<std::uint32_t>& sharers, wire::SecureReveal& to) {
  to.set_self_seed(raw(reveal.self_seed.bytes()));
  auto share = reveal.shares.begin();
  for (const std::uint32_t about : sharers) {
    if (about == member) continue;
    std::string& bytes = *to.add_shares();
    if (share == reveal.shares.end() || share->about != about) continue;
    bytes = raw(share->value.bytes());
    ++share;
  }
  FL_ASSERT(share == reveal.shares.end());
}

Result<Reveal> read_reveal(const wire::SecureReveal& message, std::uint32_t member,
                           const std::vector<std::uint32_t>& sharers,
                           const std::vector<std::uint32_t>& survivors) {
  Reveal reveal;
  FL_TRY(const Public seed, read_public(message.self_seed(), "self_seed"));
  reveal.self_seed = Secret(seed);
  int next = 0;
  for (const std::uint32_t about : sharers) {
    if (about == member) continue;
    if (next == message.shares_size()) return Error(Errc::protocol, "it reveals too few shares");
    const std::string& bytes = message.shares(next++);
    if (bytes.empty()) continue;
    FL_TRY(const Public value, read_public(bytes, "a share"));
    const bool counts = std::ranges::binary_search(survivors, about);
    reveal.shares.push_back(
        {about, counts ? SharedSecret::self_seed : SharedSecret::mask_key, Secret(value)});
  }
  if (next != message.shares_size()) return Error(Errc::protocol, "it reveals too many shares");
  return reveal;
}

std::string raw(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

Result<Public> read_public(const std::string& bytes, std::string_view what) {
  return read_bytes<key_bytes>(bytes, what);
}

}  // namespace fl::secure
