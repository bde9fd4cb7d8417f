// SPDX-License-Identifier: Apache-2.0
// The members of a simulated masked run: site keys, and a member list that somebody has signed.
// They are drawn anew in each call and lie in memory only. Immutable; any thread.
#pragma once

#include "client/secure/secure_options.hpp"
#include "shared/base/error.hpp"

#include <map>
#include <string>
#include <vector>

namespace fl::sim {

class MaskedMembers {
 public:
  /// Errors: those of drawing keys; invalid_input, if the list would be too long.
  [[nodiscard]] static Result<MaskedMembers> make(const std::vector<std::string>& names);

  /// The text of the list.
  [[nodiscard]] const std::string& list() const { return list_; }
  /// What a member needs. Requires: it is one of the names.
  [[nodiscard]] client::SecureOptions options_of(const std::string& name) const;

 private:
  std::map<std::string, secure::Secret> site_keys_;
  secure::Public signer_{};
  std::string list_;
};

}  // namespace fl::sim
