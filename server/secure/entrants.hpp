// SPDX-License-Identifier: Apache-2.0
// The members that have trained in an attempt, with their keys, and the cohort that is made of
// them. Pure; one thread at a time.
#pragma once

#include "proto/wire.pb.h"
#include "shared/secure/cohort.hpp"
#include "shared/secure/member_list.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

namespace fl::server {

class Entrants {
 public:
  /// `context`: of the attempt's offers.
  Entrants(secure::Public context, std::shared_ptr<const secure::MemberList> list);

  /// Whether a member's keys are new. False: they are here, or newer ones are. Errors:
  /// invalid_input, for keys that are not its own, or of which one is another's.
  [[nodiscard]] Result<bool> check(const std::string& client,
                                   const wire::SecureKeys& message) const;
  /// Takes keys that have passed check().
  [[nodiscard]] Result<void> take(const std::string& client, const wire::SecureKeys& message);

  /// Whether a member has sent its keys for this task.
  [[nodiscard]] bool has_keys(const std::string& client, std::int64_t task) const;
  /// The cohort of those that are `here`. A member that takes part with more than there are is left
  /// out, those that want most first. Errors: unavailable, if it has fewer than `least` members.
  [[nodiscard]] Result<secure::Cohort> cohort(std::size_t least,
                                              const std::set<std::string>& here) const;
  /// The fewest members that all of a cohort take part with.
  [[nodiscard]] std::size_t least_of(const secure::Cohort& cohort) const;

 private:
  struct Entrant {
    std::int64_t task = 0;
    secure::MemberKeys keys;
    std::uint32_t cohort_min = 0;  // The fewest members that it takes part with.
  };

  secure::Public context_;
  std::shared_ptr<const secure::MemberList> list_;
  std::map<std::string, Entrant> entrants_;  // By name: each with its newest task.
};

}  // namespace fl::server
