// SPDX-License-Identifier: Apache-2.0
#include "shared/secure/shamir.hpp"

#include "shared/secure/primitives.hpp"

#include <openssl/crypto.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace fl::secure {

namespace {

/// A number of GF(2^128): bit i of the polynomial is bit i of high:low.
struct Number {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
};

constexpr std::uint64_t reduction = 0x87;  // x^128 = x^7 + x^2 + x + 1.

Number operator^(Number a, Number b) { return {a.high ^ b.high, a.low ^ b.low}; }

/// a times x.
Number times_x(Number a) {
  const std::uint64_t carry = 0 - (a.high >> 63);
  return {a.high << 1 | a.low >> 63, a.low << 1 ^ (carry & reduction)};
}

/// By shifting and adding, with masks in place of branches.
Number operator*(Number a, Number b) {
  Number product;
  for (int bit = 127; bit >= 0; --bit) {
    product = times_x(product);
    const std::uint64_t word = bit >= 64 ? b.high : b.low;
    const std::uint64_t mask = 0 - (word >> (bit % 64) & 1);
    product = product ^ Number { a.high &mask, a.low &mask };
  }
  return product;
}

/// a^(2^128 - 2), which is 1 / a.
Number inverse(Number a) {
  Number power = a;
  Number result{0, 1};
  for (int bit = 1; bit < 128; ++bit) {
    power = power * power;
    result = result * power;
  }
  return result;
}

std::uint64_t load_big_endian(const std::byte* bytes) {
  std::uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value = value << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  return value;
}
void store_big_endian(std::uint64_t value, std::byte* bytes) {
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(value >> (56 - 8 * i));
}

/// The two numbers of 32 bytes.
using Pair = std::array<Number, 2>;

Pair pair_of(const Secret& secret) {
  const std::byte* const at = secret.bytes().data();
  return {Number{load_big_endian(at), load_big_endian(at + 8)},
          Number{load_big_endian(at + 16), load_big_endian(at + 24)}};
}
Secret secret_of(const Pair& pair) {
  Secret out;
  for (std::size_t half = 0; half < pair.size(); ++half) {
    store_big_endian(pair[half].high, out.bytes().data() + 16 * half);
    store_big_endian(pair[half].low, out.bytes().data() + 16 * half + 8);
  }
  return out;
}

}  // namespace

Sharing::Sharing(const Secret& secret, std::size_t threshold, const Secret& coefficients) {
  FL_ASSERT(threshold >= 1);
  polynomials_.push_back(secret);
  MaskStream stream(coefficients);
  constexpr std::size_t words = key_bytes / sizeof(std::uint64_t);
  for (std::size_t k = 1; k < threshold; ++k) {
    std::array<std::uint64_t, words> random{};
    stream.apply(MaskStream::Way::add, (k - 1) * words, random);
    polynomials_.emplace_back(std::as_bytes(std::span(random)));
    OPENSSL_cleanse(random.data(), sizeof random);
  }
}

Share Sharing::at(std::uint32_t index) const {
  FL_ASSERT(index >= 1);
  const Number x{0, index};
  Pair value{};
  for (auto of = polynomials_.rbegin(); of != polynomials_.rend(); ++of) {  // Horner's rule.
    const Pair coefficient = pair_of(*of);
    for (std::size_t half = 0; half < value.size(); ++half)
      value[half] = value[half] * x ^ coefficient[half];
  }
  return {index, secret_of(value)};
}

Result<Secret> combine(std::span<const Share> shares) {
  if (shares.empty()) return Error(Errc::invalid_input, "there are no shares to combine");
  Pair secret{};
  for (const Share& share : shares) {
    if (share.index == 0) return Error(Errc::invalid_input, "no share has the index 0");
    // The Lagrange polynomial that is 1 at this index and 0 at the others, at 0.
    Number above{0, 1};
    Number below{0, 1};
    for (const Share& other : shares) {
      if (&other == &share) continue;
      if (other.index == share.index)
        return Error(Errc::invalid_input, "two shares have the same index");
      above = above * Number{0, other.index};
      below = below * Number{0, other.index ^ share.index};
    }
    const Number weight = above * inverse(below);
    const Pair value = pair_of(share.value);
    for (std::size_t half = 0; half < secret.size(); ++half)
      secret[half] = secret[half] ^ value[half] * weight;
  }
  return secret_of(secret);
}

}  // namespace fl::secure
