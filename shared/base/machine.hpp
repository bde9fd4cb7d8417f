// SPDX-License-Identifier: Apache-2.0
// How much of its machine this process may use: cores and memory, within the limits of control
// groups (containers, systemd), of `ulimit`, of the processors it is bound to, and of a Slurm job.
// Whatever sizes itself by the machine asks here.
#pragma once

#include "shared/base/cgroup_limits.hpp"
#include "shared/base/environment.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace fl {

struct Machine {
  int cores = 1;
  std::string cores_limit;  // The words for what sets `cores`; "" if all of the machine's count.
  std::uint64_t memory_bytes = 0;
  std::string memory_limit;  // The words for what sets `memory_bytes`; "" likewise.
  /// Memory that nobody uses yet; nothing if that is not known.
  std::optional<std::uint64_t> free_memory_bytes;
};

/// What is known about the machine before the limits in files are read.
struct MachineSources {
  std::filesystem::path root = "/";  // Where proc/ and sys/ lie.
  Environment environment;
  int cores = 1;                   // What the machine has.
  int bound_cores = 1;             // Those that this process may run on (sched_getaffinity).
  std::uint64_t memory_bytes = 0;  // What the machine has.
  std::optional<std::uint64_t> address_bytes_max;  // RLIMIT_AS.
  std::optional<std::uint64_t> data_bytes_max;     // RLIMIT_DATA.
};
[[nodiscard]] MachineSources system_sources();

[[nodiscard]] Machine machine_of(const MachineSources& sources);

/// This process's machine. Limits are read once, so that all parts of a program see the same ones;
/// free_memory_bytes is the one at that time. Any thread.
[[nodiscard]] const Machine& this_machine();

/// "2 cores (cpu.max of the container), 1.5 GB of memory": for people to read.
[[nodiscard]] std::string to_string(const Machine& machine);

}  // namespace fl
