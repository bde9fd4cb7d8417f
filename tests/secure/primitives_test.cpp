// SPDX-License-Identifier: Apache-2.0
// The primitives against published vectors, and against pyca/cryptography where a vector needs
// another nonce than ours.
#include "shared/secure/primitives.hpp"

#include "shared/base/io/text_of_bytes.hpp"

#include <doctest/doctest.h>

#include <string_view>
#include <vector>

using namespace fl;
using namespace fl::secure;

namespace {

std::vector<std::byte> from_hex(std::string_view text) {
  std::vector<std::byte> bytes(text.size() / 2);
  FL_ASSERT(read_hex(text, bytes));
  return bytes;
}

Public public_from(std::string_view hex) {
  Public out;
  std::ranges::copy(from_hex(hex), out.begin());
  return out;
}
Secret secret_from_hex(std::string_view hex) { return Secret(from_hex(hex)); }

/// 0, 1, 2, ..., 31.
Secret counting() {
  Secret out;
  for (std::size_t i = 0; i < key_bytes; ++i) out.bytes()[i] = static_cast<std::byte>(i);
  return out;
}

std::vector<std::byte> bytes_in(Bytes bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

TEST_CASE("this OpenSSL has all that is needed") { CHECK(check_primitives().has_value()); }

TEST_CASE("X25519 agrees with RFC 7748, and refuses points of small order") {
  const Secret scalar =
      secret_from_hex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4");
  const Public other =
      public_from("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c");
  CHECK(bytes_in(agree(scalar, other)->bytes()) ==
        from_hex("c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"));
  CHECK(agreement_key(scalar) ==
        public_from("1c9fd88f45606d932a80c71824ae151d15d73e77de38e8e000852e614fae7019"));
  // Both ends come to the same secret.
  const Secret second = counting();
  CHECK(agree(scalar, agreement_key(second)).value() ==
        agree(second, agreement_key(scalar)).value());
  for (const char* small : {"0000000000000000000000000000000000000000000000000000000000000000",
                            "0100000000000000000000000000000000000000000000000000000000000000",
                            "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
                            "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
                            "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
                            "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
                            "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"}) {
    const auto refused = agree(scalar, public_from(small));
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().message() == "a public key is of small order");
  }
}

TEST_CASE("Ed25519 agrees with RFC 8032, section 7.1") {
  const Secret secret =
      secret_from_hex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60");
  const Public key =
      public_from("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a");
  CHECK(signing_key(secret) == key);
  const Signature signature = sign(secret, {});
  CHECK(bytes_in(signature) ==
        from_hex("e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bac"
                 "c61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"));
  CHECK(is_signed(key, {}, signature));
  CHECK_FALSE(is_signed(key, bytes_of("x"), signature));
  CHECK_FALSE(is_signed(signing_key(counting()), {}, signature));
  Signature changed = signature;
  changed[63] ^= std::byte{1};
  CHECK_FALSE(is_signed(key, {}, changed));
  Public no_point{};
  no_point.fill(std::byte{0xff});
  CHECK_FALSE(is_signed(no_point, {}, signature));
}

TEST_CASE("HKDF agrees with RFC 5869, appendix A.1") {
  const std::vector<std::byte> secret(22, std::byte{0x0b});
  Public salt{};  // HMAC fills a short key with zeros, so these 32 bytes are as good as the 13.
  for (std::size_t i = 0; i < 13; ++i) salt[i] = static_cast<std::byte>(i);
  const auto info = from_hex("f0f1f2f3f4f5f6f7f8f9");
  std::vector<std::byte> out(42);
  derive(secret, salt, text_of(info), out);
  CHECK(out == from_hex("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"
                        "34007208d5b887185865"));
  CHECK(bytes_in(derive(secret, salt, text_of(info)).bytes()) ==
        std::vector<std::byte>(out.begin(), out.begin() + 32));
  CHECK_FALSE(derive(secret, salt, "a") == derive(secret, salt, "b"));
}

TEST_CASE("ChaCha20-Poly1305 agrees with another library, and opens nothing that was changed") {
  const auto message = bytes_of("Ladies and Gentlemen of the class of '99");
  auto sealed = seal(counting(), message, bytes_of("context"));
  CHECK(sealed ==
        from_hex("54d92658c89586b07d057c26ca2d3a4b9ddc969bc1c23d7c989099324959142f0128670b"
                 "f1c90564d43e68d7382ae6fd8cd8ab20dd250166"));
  CHECK(open_sealed(counting(), sealed, bytes_of("context")).value() == bytes_in(message));
  CHECK_FALSE(open_sealed(counting(), sealed, bytes_of("another")).has_value());
  CHECK_FALSE(open_sealed(Secret(), sealed, bytes_of("context")).has_value());
  for (std::size_t i = 0; i < sealed.size(); ++i) {
    sealed[i] ^= std::byte{4};
    CHECK_FALSE(open_sealed(counting(), sealed, bytes_of("context")).has_value());
    CHECK_FALSE(open_sealed(counting(), Bytes(sealed).first(i), bytes_of("context")).has_value());
    sealed[i] ^= std::byte{4};
  }
}

TEST_CASE("a mask is AES-256-CTR from the counter 0, wherever one begins to read") {
  const auto expected = from_hex(
      "f29000b62a499fd0a9f39a6add2e7780f05d76ae4ab99fe5a6f69b3148c2363d0ebcb5deb52c83bd08a8a935182c"
      "9199");
  std::vector<std::uint64_t> words(5000);
  MaskStream(counting()).apply(MaskStream::Way::add, 0, words);
  CHECK(bytes_in(std::as_bytes(std::span(words)).first(48)) == expected);
  for (const std::size_t begin : {1u, 2u, 3u, 1023u, 1024u, 1025u, 4999u}) {
    MaskStream stream(counting());
    std::vector<std::uint64_t> part(5000 - begin);
    stream.apply(MaskStream::Way::add, begin, part);
    CHECK(std::ranges::equal(part, std::span(words).subspan(begin)));
    // Pieces of odd lengths, and then backwards.
    std::vector<std::uint64_t> pieces(5000);
    for (std::size_t at = 0; at < 5000; at += 777)
      stream.apply(MaskStream::Way::add, at,
                   std::span(pieces).subspan(at, std::min<std::size_t>(777, 5000 - at)));
    CHECK(pieces == words);
  }
  std::vector<std::uint64_t> none = words;
  MaskStream(counting()).apply(MaskStream::Way::subtract, 0, none);
  CHECK(none == std::vector<std::uint64_t>(5000));
}

TEST_CASE("parts of a digest can't be cut at other places") {
  CHECK(digest_of({bytes_of("ab"), bytes_of("c")}) != digest_of({bytes_of("a"), bytes_of("bc")}));
  CHECK(digest_of({bytes_of("ab")}) != digest_of({bytes_of("ab"), {}}));
}

TEST_CASE("drawn secrets differ") { CHECK_FALSE(Secret::draw().value() == Secret::draw().value()); }
