// SPDX-License-Identifier: Apache-2.0
// A rank that is connected to the agent of its site. Plain values; any thread.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace fl::site {

struct SiteMember {
  int rank = 0;  // The number in the site, from 0.
  std::string host;
  std::int64_t process = 0;
  bool is_here = false;  // On the agent's machine: it can map the agent's files.
  /// The agent's address by which it has come; "" if only the agent's machine has that address.
  std::string agent_address = {};
};

/// "rank 3 (node7, process 812)"
[[nodiscard]] inline std::string to_string(const SiteMember& member) {
  return fmt::format("rank {} ({}, process {})", member.rank, member.host, member.process);
}

}  // namespace fl::site
