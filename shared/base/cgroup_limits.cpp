// SPDX-License-Identifier: Apache-2.0
#include "shared/base/cgroup_limits.hpp"

#include "shared/base/spec/spec_text.hpp"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

namespace fl {

namespace fs = std::filesystem;

namespace {

/// Version 1 writes "no limit" as a number of about 2^63.
constexpr double no_limit_bytes = 0x1p62;

struct FileNames {
  const char* limit;
  const char* usage;
  const char* reclaimable;  // The line of memory.stat with pages that the kernel takes back first.
};
constexpr FileNames version_1{"memory.limit_in_bytes", "memory.usage_in_bytes",
                              "total_inactive_file"};
constexpr FileNames version_2{"memory.max", "memory.current", "inactive_file"};

std::vector<std::string> lines_of(const fs::path& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(std::move(line));
  return lines;
}

bool has_word(std::string_view list, std::string_view word) {
  std::optional<std::string_view> rest = list;
  while (rest) {
    std::string_view part;
    std::tie(part, rest) = cut(*rest, ',');
    if (part == word) return true;
  }
  return false;
}

/// Where a hierarchy of groups is mounted, and which group is seen there as the topmost.
struct Mount {
  std::string top;
  fs::path folder;
};

/// The mount of a controller's hierarchy; of the one of version 2 if the controller is "".
std::optional<Mount> find_mount(const fs::path& root, std::string_view controller) {
  for (const std::string& line : lines_of(root / "proc/self/mountinfo")) {
    // "32 31 0:29 TOP FOLDER OPTIONS … - TYPE SOURCE OPTIONS"; see proc(5).
    const auto dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream ours(line.substr(0, dash));
    std::istringstream of_type(line.substr(dash + 3));
    std::string skipped, top, folder, type, options;
    ours >> skipped >> skipped >> skipped >> top >> folder;
    of_type >> type >> skipped >> options;
    const bool is_it =
        controller.empty() ? type == "cgroup2" : type == "cgroup" && has_word(options, controller);
    if (is_it) return Mount{top, root / fs::path(folder).relative_path()};
  }
  return std::nullopt;
}

/// The folders of the process's group and of those above it.
std::vector<fs::path> groups_of(const fs::path& root, std::string_view controller) {
  const auto mount = find_mount(root, controller);
  if (!mount) return {};
  for (const std::string& line : lines_of(root / "proc/self/cgroup")) {
    // "4:cpu,cpuacct:/the/group"; of version 2 "0::/the/group".
    const auto [number, rest] = cut(line, ':');
    if (!rest) continue;
    const auto [controllers, group] = cut(*rest, ':');
    const bool is_it = controller.empty() ? number == "0" && controllers.empty()
                                          : has_word(controllers, controller);
    if (!group || !is_it) continue;
    std::vector<fs::path> groups{mount->folder};
    for (const fs::path& part : fs::path(*group).lexically_relative(mount->top)) {
      // A container may see its own group as the topmost, and a group beside that one not at all.
      if (part == ".." || part == ".") break;
      groups.push_back(groups.back() / part);
    }
    return groups;
  }
  return {};
}

/// The number in a file's first line; nothing if there is none, as in "max".
std::optional<double> number_in_file(const fs::path& path) {
  const auto lines = lines_of(path);
  return lines.empty() ? std::nullopt : number_in<double>(lines.front());
}

double reclaimable_bytes(const fs::path& group, const FileNames& names) {
  for (const std::string& line : lines_of(group / "memory.stat")) {
    const auto [name, bytes] = cut(line, ' ');
    if (bytes && name == names.reclaimable) return number_in<double>(*bytes).value_or(0);
  }
  return 0;
}

std::string path_below(const fs::path& file, const fs::path& root) {
  return (fs::path("/") / file.lexically_relative(root)).string();
}

void look_at_memory(const std::vector<fs::path>& groups, const FileNames& names,
                    const fs::path& root, CgroupLimits& limits) {
  for (const fs::path& group : groups) {
    // memory.high slows a group down before memory.max ends it; version 1 has nothing like it.
    for (const char* name : {names.limit, "memory.high"}) {
      const auto limit = number_in_file(group / name);
      if (!limit || *limit <= 0 || *limit >= no_limit_bytes) continue;
      const std::string set_by = path_below(group / name, root);
      take_smaller(limits.memory_bytes, {*limit, set_by});
      const auto used = number_in_file(group / names.usage);
      if (!used) continue;
      const double kept = std::max(0.0, *used - reclaimable_bytes(group, names));
      take_smaller(limits.free_memory_bytes, {std::max(0.0, *limit - kept), set_by});
    }
  }
}

void look_at_cores(const std::vector<fs::path>& groups, const fs::path& root,
                   CgroupLimits& limits) {
  const auto take = [&](const fs::path& file, std::optional<double> quota,
                        std::optional<double> period) {
    if (quota && period && *quota > 0 && *period > 0)
      take_smaller(limits.cores, {*quota / *period, path_below(file, root)});
  };
  for (const fs::path& group : groups) {
    take(group / "cpu.cfs_quota_us", number_in_file(group / "cpu.cfs_quota_us"),
         number_in_file(group / "cpu.cfs_period_us"));
    // "150000 100000", or "max 100000".
    for (const std::string& line : lines_of(group / "cpu.max")) {
      const auto [quota, period] = cut(line, ' ');
      if (period) take(group / "cpu.max", number_in<double>(quota), number_in<double>(*period));
    }
  }
}

}  // namespace

void take_smaller(std::optional<MachineLimit>& least, MachineLimit other) {
  if (!least || other.amount < least->amount) least = std::move(other);
}

CgroupLimits read_cgroup_limits(const fs::path& root) {
  CgroupLimits limits;
  look_at_memory(groups_of(root, ""), version_2, root, limits);
  look_at_memory(groups_of(root, "memory"), version_1, root, limits);
  look_at_cores(groups_of(root, ""), root, limits);
  look_at_cores(groups_of(root, "cpu"), root, limits);
  return limits;
}

}  // namespace fl
