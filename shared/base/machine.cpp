// SPDX-License-Identifier: Apache-2.0
#include "shared/base/machine.hpp"

#include "shared/base/spec/spec_text.hpp"

#include <fmt/format.h>

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <vector>

namespace fl {

namespace {

constexpr double bytes_of_slurm = 1 << 20;  // Slurm's variables count memory in MiB.
/// Larger numbers of steps have a meaning of their own: the batch script, an interactive shell.
constexpr std::uint32_t slurm_steps = 0xfffffff0;
constexpr int cores_asked_max = 1 << 20;
constexpr std::uint64_t unknown_memory_bytes = 4ull << 30;

std::optional<std::uint64_t> soft_limit(decltype(RLIMIT_AS) which) {
  rlimit limit{};
  if (::getrlimit(which, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

int bound_cores(int otherwise) {
  // A set of the usual size has room for 1,024 processors.
  for (int count = CPU_SETSIZE; count <= cores_asked_max; count *= 2) {
    std::vector<cpu_set_t> sets(static_cast<std::size_t>(count / CPU_SETSIZE));
    const std::size_t bytes = sets.size() * sizeof(cpu_set_t);
    if (::sched_getaffinity(0, bytes, sets.data()) == 0) return CPU_COUNT_S(bytes, sets.data());
  }
  return otherwise;
}

/// A variable of Slurm that is a number above zero.
std::optional<double> slurm_number(const Environment& environment, const char* name) {
  const auto text = environment(name);
  const auto number = text ? number_in<std::uint64_t>(*text) : std::nullopt;
  if (!number || *number == 0) return std::nullopt;
  return static_cast<double>(*number);
}

/// Whether srun has started this process, as a task of a step. Under mpirun the task is mpirun's
/// own daemon, which has the cores of all processes that it starts.
bool is_slurm_task(const Environment& environment) {
  if (environment("OMPI_COMM_WORLD_RANK")) return false;
  const auto step = environment("SLURM_STEP_ID");
  const auto number = step ? number_in<std::uint32_t>(*step) : std::nullopt;
  return number && *number < slurm_steps;
}

std::optional<MachineLimit> slurm_memory(const Environment& environment) {
  std::optional<MachineLimit> least;
  if (const auto whole = slurm_number(environment, "SLURM_MEM_PER_NODE"))
    take_smaller(least, {*whole * bytes_of_slurm, "SLURM_MEM_PER_NODE"});
  const auto each = slurm_number(environment, "SLURM_MEM_PER_CPU");
  const auto cores = slurm_number(environment, "SLURM_CPUS_ON_NODE");
  if (each && cores) take_smaller(least, {*each * *cores * bytes_of_slurm, "SLURM_MEM_PER_CPU"});
  return least;
}

/// A line of /proc/meminfo in bytes.
std::optional<double> meminfo_bytes(const std::filesystem::path& root, std::string_view wanted) {
  std::ifstream file(root / "proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    const auto [name, rest] = cut(line, ':');
    if (name != wanted || !rest) continue;
    const auto begin = rest->find_first_not_of(' ');
    if (begin == std::string_view::npos) return std::nullopt;
    const auto kibibytes = number_in<double>(cut(rest->substr(begin), ' ').first);
    if (kibibytes) return *kibibytes * 1024;
  }
  return std::nullopt;
}

void find_cores(const MachineSources& from, const CgroupLimits& groups, Machine& machine) {
  std::optional<MachineLimit> least = MachineLimit{static_cast<double>(from.cores), ""};
  take_smaller(least, {static_cast<double>(from.bound_cores), "the processors it is bound to"});
  if (groups.cores) take_smaller(least, {std::ceil(groups.cores->amount), groups.cores->set_by});
  if (const auto cores = slurm_number(from.environment, "SLURM_CPUS_ON_NODE"))
    take_smaller(least, {*cores, "SLURM_CPUS_ON_NODE"});
  if (const auto cores = slurm_number(from.environment, "SLURM_CPUS_PER_TASK");
      cores && is_slurm_task(from.environment))
    take_smaller(least, {*cores, "SLURM_CPUS_PER_TASK"});
  machine.cores = std::max(1, static_cast<int>(least->amount));
  machine.cores_limit = least->set_by;
}

void find_memory(const MachineSources& from, const CgroupLimits& groups, Machine& machine) {
  std::optional<MachineLimit> least = MachineLimit{static_cast<double>(from.memory_bytes), ""};
  // A container may be shown a /proc/meminfo of its own.
  if (const auto all = meminfo_bytes(from.root, "MemTotal"))
    take_smaller(least, {*all, "/proc/meminfo"});
  if (groups.memory_bytes) take_smaller(least, *groups.memory_bytes);
  if (const auto slurm = slurm_memory(from.environment)) take_smaller(least, *slurm);
  if (from.address_bytes_max)
    take_smaller(least, {static_cast<double>(*from.address_bytes_max), "ulimit -v"});
  if (from.data_bytes_max)
    take_smaller(least, {static_cast<double>(*from.data_bytes_max), "ulimit -d"});
  machine.memory_bytes = static_cast<std::uint64_t>(least->amount);
  machine.memory_limit = least->set_by;

  std::optional<MachineLimit> free;
  if (const auto available = meminfo_bytes(from.root, "MemAvailable"))
    take_smaller(free, {*available, ""});
  if (groups.free_memory_bytes) take_smaller(free, *groups.free_memory_bytes);
  if (!free) return;
  take_smaller(free, *least);
  machine.free_memory_bytes = static_cast<std::uint64_t>(free->amount);
}

std::string in_parentheses(const std::string& limit) {
  return limit.empty() ? "" : fmt::format(" (the limit is {})", limit);
}

}  // namespace

MachineSources system_sources() {
  MachineSources sources;
  sources.environment = system_environment();
  sources.cores = std::max(1, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
  sources.bound_cores = bound_cores(sources.cores);
  const auto pages = ::sysconf(_SC_PHYS_PAGES);
  const auto page = ::sysconf(_SC_PAGESIZE);
  sources.memory_bytes = pages > 0 && page > 0
                             ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page)
                             : unknown_memory_bytes;
  sources.address_bytes_max = soft_limit(RLIMIT_AS);
  sources.data_bytes_max = soft_limit(RLIMIT_DATA);
  return sources;
}

Machine machine_of(const MachineSources& sources) {
  const CgroupLimits groups = read_cgroup_limits(sources.root);
  Machine machine;
  find_cores(sources, groups, machine);
  find_memory(sources, groups, machine);
  return machine;
}

const Machine& this_machine() {
  static const Machine machine = machine_of(system_sources());
  return machine;
}

std::string to_string(const Machine& machine) {
  return fmt::format("{} core{}{}, {:.3g} GB of memory{}", machine.cores,
                     machine.cores == 1 ? "" : "s", in_parentheses(machine.cores_limit),
                     static_cast<double>(machine.memory_bytes) / 1e9,
                     in_parentheses(machine.memory_limit));
}

}  // namespace fl
