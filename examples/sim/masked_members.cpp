// SPDX-License-Identifier: Apache-2.0
#include "examples/sim/masked_members.hpp"

#include <fmt/format.h>

namespace fl::sim {

Result<MaskedMembers> MaskedMembers::make(const std::vector<std::string>& names) {
  MaskedMembers made;
  FL_TRY(const secure::Secret signer, secure::Secret::draw());
  made.signer_ = secure::signing_key(signer);
  made.list_ = fmt::format(
      "tributary-members 1\nepoch 1\nsmallest-cohort {}\nneeds 1\nsigner simulation {}\n",
      secure::cohort_min, secure::key_text(made.signer_));
  for (const std::string& name : names) {
    FL_TRY(const secure::Secret key, secure::Secret::draw());
    made.site_keys_.emplace(name, key);
    made.list_ += fmt::format("member {} {}\n", name, secure::key_text(secure::signing_key(key)));
  }
  if (made.list_.size() > secure::member_list_bytes_max) {
    return Error(Errc::invalid_input,
                 fmt::format("--clients {}: a masked run's member list would have {} bytes; the "
                             "limit is {}",
                             names.size(), made.list_.size(), secure::member_list_bytes_max));
  }
  FL_TRY(const auto list, secure::parse_member_list(made.list_));
  FL_TRY(const std::string signature, secure::signature_line(list, signer));
  made.list_ += signature + "\n";
  return made;
}

client::SecureOptions MaskedMembers::options_of(const std::string& name) const {
  return {.site_key = site_keys_.at(name), .trusted = signer_, .allows_same_version = true};
}

}  // namespace fl::sim
