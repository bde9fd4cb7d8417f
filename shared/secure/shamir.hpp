// SPDX-License-Identifier: Apache-2.0
// Shamir's secret sharing (Shamir 1979, "How to share a secret") over GF(2^128), modulo x^128 + x^7
// + x^2 + x + 1. A number of the field is 16 bytes, big-endian, as in pycryptodome; so a secret of
// 32 bytes is two of them, each with a polynomial of its own. Fewer than `threshold` shares say
// nothing about the secret. The time does not depend on secrets, only on counts and indices.
#pragma once

#include "shared/base/error.hpp"
#include "shared/secure/secret.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace fl::secure {

/// The value of the polynomials at `index`, which is at least 1 and names who has it.
struct Share {
  std::uint32_t index;
  Secret value;
};

/// Shares a secret. The polynomials' other coefficients follow from `coefficients`, which must be a
/// secret of its own for each secret that is shared: the same arguments give the same shares.
class Sharing {
 public:
  /// Requires: threshold >= 1.
  Sharing(const Secret& secret, std::size_t threshold, const Secret& coefficients);

  /// Requires: index >= 1.
  [[nodiscard]] Share at(std::uint32_t index) const;

 private:
  std::vector<Secret> polynomials_;  // Coefficient k of both, the secret first.
};

/// The secret of which these are shares: all of them are used. If one is wrong, so is the result.
/// Errors: invalid_input for no shares, an index of 0, or an index twice.
[[nodiscard]] Result<Secret> combine(std::span<const Share> shares);

}  // namespace fl::secure
