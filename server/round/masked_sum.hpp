// SPDX-License-Identifier: Apache-2.0
// The sum of the members' masked words, opened: reads them from the spool, adds them up and takes
// the masks off, on all cores. Blocking; on a worker.
#pragma once

#include "server/history/records.hpp"
#include "server/round/spool.hpp"
#include "server/run/run_plan.hpp"
#include "server/secure/attempt.hpp"
#include "server/secure/unlocking.hpp"
#include "server/sums/lane_sums.hpp"
#include "shared/base/error.hpp"
#include "shared/base/io/file.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fl::server {

/// `files`: each has this many words of 8 bytes, little-endian. Errors: those of reading them.
[[nodiscard]] Result<std::vector<std::uint64_t>> opened_sum(
    const std::vector<std::shared_ptr<File>>& files, std::uint64_t words,
    const std::vector<Unlocking::Removal>& removals);

/// The name in the spool of a member's words. Errors: corrupt, for a digest of another size.
[[nodiscard]] Result<std::string> spool_name_of(const wire::UploadBegin& words);

/// The sum of the survivors' words. `first`: the round that trains from the version. Nothing but
/// reveals may be applied to the attempt meanwhile. Errors: those of reading the spool.
[[nodiscard]] Result<std::unique_ptr<const LaneSums>> add_up(
    const Attempt& attempt, const secure::LaneWords& layout,
    const std::vector<Unlocking::Removal>& removals, Spool& spool, const RunPlan& plan,
    Round first);

}  // namespace fl::server
