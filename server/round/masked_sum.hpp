// SPDX-License-Identifier: Apache-2.0
// The sum of the members' masked words, opened: reads them from the spool, adds them up and takes
// the masks off, on all cores. Blocking; on a worker.
#pragma once

#include "server/secure/unlocking.hpp"
#include "shared/base/error.hpp"
#include "shared/base/io/file.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace fl::server {

/// `files`: each has this many words of 8 bytes, little-endian. Errors: those of reading them.
[[nodiscard]] Result<std::vector<std::uint64_t>> opened_sum(
    const std::vector<std::shared_ptr<File>>& files, std::uint64_t words,
    const std::vector<Unlocking::Removal>& removals);

}  // namespace fl::server
