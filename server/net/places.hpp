// SPDX-License-Identifier: Apache-2.0
// How many connections the server takes. It follows from how many files the process may open: each
// connection is one, and an upload under way is another.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fl::server {

struct Places {
  std::size_t sessions = 0;  // Sessions of members.
  /// Connections that are not authenticated yet. They never take a member's place.
  std::size_t strangers = 0;
};

/// A quarter of what limits::files_reserved leaves goes to strangers and a half to members, within
/// their limits. The rest is for uploads and old versions.
[[nodiscard]] Places places_for(std::uint64_t files_max);

}  // namespace fl::server
