// SPDX-License-Identifier: Apache-2.0
// How a client takes part in masked rounds: its site key, and whose keys it trusts.
#pragma once

#include "shared/secure/cohort.hpp"
#include "shared/secure/member_list.hpp"

#include <cstddef>
#include <variant>

namespace fl::client {

struct SecureOptions {
  secure::Secret site_key;
  /// The first member list that it trusts: this one, or any that needs this signer's signature and
  /// has it.
  std::variant<secure::MemberList, secure::Public> trusted;
  /// The fewest members that it takes part with. The list may ask for more.
  std::size_t cohort_min = secure::cohort_min;
  /// Lets it contribute to one version more than once. Only for tests and simulations: the sums of
  /// two runs that differ by a member show that member's update.
  bool allows_same_version = false;
};

}  // namespace fl::client
