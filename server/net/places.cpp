// SPDX-License-Identifier: Apache-2.0
#include "server/net/places.hpp"

#include "shared/base/limits.hpp"

#include <algorithm>

namespace fl::server {

Places places_for(std::uint64_t files_max) {
  const std::uint64_t free =
      files_max > limits::files_reserved ? files_max - limits::files_reserved : 0;
  const auto part = [](std::uint64_t files, std::size_t most) {
    return static_cast<std::size_t>(std::clamp<std::uint64_t>(files, 1, most));
  };
  return {part(free / 2, limits::sessions_max), part(free / 4, limits::strangers_max)};
}

}  // namespace fl::server
