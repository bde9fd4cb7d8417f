// SPDX-License-Identifier: Apache-2.0
// What a process may use of its machine, over made-up /proc and /sys trees.
#include "shared/base/machine.hpp"

#include "shared/base/async/parallel.hpp"
#include "tests/support/temporary_folder.hpp"

#include <doctest/doctest.h>

#include <sched.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>

namespace fl::test {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t gib = 1ull << 30;

/// A machine of 64 cores and 256 GiB with what is written into its files.
class MadeUp {
 public:
  MadeUp() {
    sources_.root = folder_.path();
    sources_.environment = [this](const char* name) -> std::optional<std::string> {
      const auto found = variables_.find(name);
      return found == variables_.end() ? std::nullopt : std::optional(found->second);
    };
    sources_.cores = 64;
    sources_.bound_cores = 64;
    sources_.memory_bytes = 256 * gib;
    write("proc/meminfo", "MemTotal:       268435456 kB\nMemAvailable:   134217728 kB\n");
  }
  void write(const std::string& path, std::string_view text) {
    fs::create_directories((folder_ / path).parent_path());
    std::ofstream(folder_ / path) << text;
  }
  /// One hierarchy of version 2, in which this process's group is `group`.
  void mount_version_2(const std::string& group) {
    write("proc/self/cgroup", "0::" + group + "\n");
    write("proc/self/mountinfo",
          "23 28 0:22 / /proc rw - proc proc rw\n"
          "35 25 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
  }
  void set(const std::string& name, const std::string& value) { variables_[name] = value; }
  MachineSources& sources() { return sources_; }
  [[nodiscard]] Machine machine() const { return machine_of(sources_); }

 private:
  TemporaryFolder folder_;
  std::map<std::string, std::string> variables_;
  MachineSources sources_;
};

}  // namespace

TEST_CASE("without limits all of the machine is there") {
  MadeUp made;
  made.mount_version_2("/");
  const Machine machine = made.machine();
  CHECK(machine.cores == 64);
  CHECK(machine.memory_bytes == 256 * gib);
  CHECK(machine.free_memory_bytes == 128 * gib);
  CHECK(to_string(machine) == "64 cores, 275 GB of memory");
  CHECK(MadeUp().machine().cores == 64);  // Nothing is mounted.
}

TEST_CASE("a group of version 2 has the least of its own limits and of those above it") {
  MadeUp made;
  made.mount_version_2("/system.slice/fl-client.service");
  const std::string slice = "sys/fs/cgroup/system.slice/";
  made.write(slice + "memory.max", "4294967296\n");
  made.write(slice + "cpu.max", "max 100000\n");
  made.write(slice + "fl-client.service/memory.max", "max\n");
  made.write(slice + "fl-client.service/cpu.max", "250000 100000\n");
  Machine machine = made.machine();
  CHECK(machine.cores == 3);  // Two and a half.
  CHECK(machine.memory_bytes == 4 * gib);
  CHECK(to_string(machine) ==
        "3 cores (the limit is /sys/fs/cgroup/system.slice/fl-client.service/cpu.max), 4.29 GB of "
        "memory (the limit is /sys/fs/cgroup/system.slice/memory.max)");

  // A group is slowed down from memory.high on.
  made.write(slice + "fl-client.service/memory.high", "2147483648\n");
  made.write(slice + "cpu.max", "50000 100000\n");
  machine = made.machine();
  CHECK(machine.cores == 1);
  CHECK(machine.memory_bytes == 2 * gib);
}

TEST_CASE("free memory is what the tightest group has left, with pages that can be taken back") {
  MadeUp made;
  made.mount_version_2("/pod/container");
  made.write("sys/fs/cgroup/pod/memory.max", "8589934592\n");
  made.write("sys/fs/cgroup/pod/memory.current", "7516192768\n");
  made.write("sys/fs/cgroup/pod/memory.stat", "anon 3221225472\ninactive_file 4294967296\n");
  made.write("sys/fs/cgroup/pod/container/memory.max", "6442450944\n");
  made.write("sys/fs/cgroup/pod/container/memory.current", "1073741824\n");
  CHECK(made.machine().memory_bytes == 6 * gib);
  CHECK(made.machine().free_memory_bytes == 5 * gib);
  made.write("sys/fs/cgroup/pod/container/memory.current", "4294967296\n");
  CHECK(made.machine().free_memory_bytes == 2 * gib);
}

TEST_CASE("groups of version 1 are found in the hierarchies of their controllers") {
  MadeUp made;
  made.write("proc/self/cgroup",
             "9:name=systemd:/x\n4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/\n");
  made.write("proc/self/mountinfo",
             "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
             "32 31 0:29 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
             "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
             "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  const std::string cpu = "sys/fs/cgroup/cpu,cpuacct/", memory = "sys/fs/cgroup/memory/";
  made.write(cpu + "cpu.cfs_quota_us", "-1\n");
  made.write(cpu + "cpu.cfs_period_us", "100000\n");
  made.write(memory + "memory.limit_in_bytes", "9223372036854771712\n");
  CHECK(to_string(made.machine()) == "64 cores, 275 GB of memory");

  made.write(cpu + "cpu.cfs_quota_us", "400000\n");
  made.write(memory + "memory.limit_in_bytes", "1610612736\n");
  made.write(memory + "memory.usage_in_bytes", "1073741824\n");
  made.write(memory + "memory.stat", "inactive_file 0\ntotal_inactive_file 536870912\n");
  const Machine machine = made.machine();
  CHECK(machine.cores == 4);
  CHECK(machine.memory_bytes == 3 * gib / 2);
  CHECK(machine.memory_limit == "/sys/fs/cgroup/memory/memory.limit_in_bytes");
  CHECK(machine.free_memory_bytes == gib);

  // Seen from the host, the group's folder is two below the topmost, which may have limits too.
  made.write("proc/self/mountinfo", "35 31 0:32 / /groups rw - cgroup cgroup rw,memory\n");
  made.write("groups/docker/abc/memory.limit_in_bytes", "3221225472\n");
  made.write("groups/docker/memory.limit_in_bytes", "2147483648\n");
  CHECK(made.machine().memory_bytes == 2 * gib);
}

TEST_CASE("a group beside the topmost one that is seen leaves the limits of the topmost") {
  MadeUp made;
  made.mount_version_2("/../other");
  made.write("sys/fs/cgroup/memory.max", "1073741824\n");
  made.write("sys/fs/cgroup/other/memory.max", "1\n");
  CHECK(made.machine().memory_bytes == gib);
}

TEST_CASE("files that say nothing set no limit") {
  MadeUp made;
  made.mount_version_2("/a");
  for (const char* text :
       {"", "\n", "none", "-5\n", "0\n", "1e999\n", "9999999999999999999999\n"}) {
    CAPTURE(text);
    made.write("sys/fs/cgroup/a/memory.max", text);
    made.write("sys/fs/cgroup/a/cpu.max", text);
    CHECK(to_string(made.machine()) == "64 cores, 275 GB of memory");
  }
  for (const char* text : {"0 0\n", "100000 0\n", "-1 100000\n", "x y\n"}) {
    CAPTURE(text);
    made.write("sys/fs/cgroup/a/cpu.max", text);
    CHECK(made.machine().cores == 64);
  }
  made.write("proc/self/mountinfo", "- \n - cgroup2\nx - cgroup2 cgroup2 rw\n");
  made.write("proc/self/cgroup", "0\n0:\n:\n");
  CHECK(made.machine().cores == 64);
}

TEST_CASE("ulimit, bound processors and a container's own /proc/meminfo are limits too") {
  MadeUp made;
  made.sources().bound_cores = 6;
  made.sources().address_bytes_max = 8 * gib;
  CHECK(to_string(made.machine()) ==
        "6 cores (the limit is the processors it is bound to), 8.59 GB of memory (the limit is "
        "ulimit -v)");
  made.sources().data_bytes_max = 2 * gib;
  CHECK(made.machine().memory_limit == "ulimit -d");
  CHECK(made.machine().free_memory_bytes == 2 * gib);
  made.write("proc/meminfo", "MemTotal: 1048576 kB\n");
  CHECK(made.machine().memory_limit == "/proc/meminfo");
  CHECK(made.machine().memory_bytes == gib);
  CHECK(!made.machine().free_memory_bytes);
}

TEST_CASE("a job of Slurm has its cores and its memory, a task of srun its own cores") {
  MadeUp made;
  made.set("SLURM_CPUS_ON_NODE", "32");
  made.set("SLURM_CPUS_PER_TASK", "8");
  made.set("SLURM_MEM_PER_CPU", "2048");
  Machine machine = made.machine();  // The batch script.
  CHECK(machine.cores == 32);
  CHECK(machine.cores_limit == "SLURM_CPUS_ON_NODE");
  CHECK(machine.memory_bytes == 64 * gib);
  made.set("SLURM_STEP_ID", "4294967291");  // Newer ones say it like this.
  CHECK(made.machine().cores == 32);

  made.set("SLURM_STEP_ID", "0");
  made.set("SLURM_MEM_PER_NODE", "16384");
  machine = made.machine();
  CHECK(machine.cores == 8);
  CHECK(machine.memory_bytes == 16 * gib);
  CHECK(machine.memory_limit == "SLURM_MEM_PER_NODE");
  made.set("SLURM_MEM_PER_NODE", "0");  // All of the node's.
  CHECK(made.machine().memory_bytes == 64 * gib);
  made.set("OMPI_COMM_WORLD_RANK", "1");  // The task is mpirun's daemon.
  CHECK(made.machine().cores == 32);
}

TEST_CASE("this process has at most the processors that it is bound to") {
  cpu_set_t before;
  REQUIRE(::sched_getaffinity(0, sizeof before, &before) == 0);
  CHECK(threads_for(0) <= CPU_COUNT(&before));
  CHECK(threads_for(0) >= 1);
  CHECK(threads_for(3) == 3);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (std::size_t cpu = 0; CPU_COUNT(&one) == 0; ++cpu)
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK(system_sources().bound_cores == 1);
  REQUIRE(::sched_setaffinity(0, sizeof before, &before) == 0);
}

}  // namespace fl::test
