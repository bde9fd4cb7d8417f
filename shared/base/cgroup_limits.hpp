// SPDX-License-Identifier: Apache-2.0
// The limits that control groups (version 1 and 2) set to this process: containers, Kubernetes,
// systemd and Slurm use them. A limit of a group holds for all groups below it, so the own group
// and all above it count, as far as they can be seen.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace fl {

/// A limit, and the words for what sets it: "/sys/fs/cgroup/memory.max".
struct MachineLimit {
  double amount = 0;
  std::string set_by;
};

/// Keeps the smaller of two limits.
void take_smaller(std::optional<MachineLimit>& least, MachineLimit other);

struct CgroupLimits {
  std::optional<MachineLimit> cores;              // A quota of processor time: 1.5 cores.
  std::optional<MachineLimit> memory_bytes;       // The least of the groups' limits.
  std::optional<MachineLimit> free_memory_bytes;  // What the tightest group has left.
};

/// Reads proc/self/cgroup, proc/self/mountinfo and the groups' files, all below `root` ("/"). What
/// can't be read sets no limit.
[[nodiscard]] CgroupLimits read_cgroup_limits(const std::filesystem::path& root);

}  // namespace fl
