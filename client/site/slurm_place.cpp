// SPDX-License-Identifier: Apache-2.0
#include "client/site/slurm_place.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/spec/spec_text.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl::site {

namespace {

constexpr std::uint32_t first_port = 16384;
constexpr std::uint32_t ports = 16384;
constexpr std::uint32_t steps_of_job = 16;  // Steps of a job that have ports of their own.

/// The first of these variables that is set, with its name.
std::optional<std::pair<const char*, std::string>> first_set(
    const Environment& environment, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const auto text = environment(name); text && !text->empty()) return std::pair(name, *text);
  }
  return std::nullopt;
}

}  // namespace

std::string first_node(std::string_view nodes) {
  std::string name;
  while (!nodes.empty() && nodes.front() != ',') {
    if (nodes.front() != '[') {
      name += nodes.front();
      nodes.remove_prefix(1);
      continue;
    }
    const auto end = nodes.find(']');
    if (end == std::string_view::npos) return "";
    const auto numbers = nodes.substr(1, end - 1);
    name += numbers.substr(0, numbers.find_first_of(",-"));
    nodes.remove_prefix(end + 1);
  }
  return name;
}

std::optional<int> tasks_of_node(std::string_view tasks_per_node, int number) {
  std::optional<std::string_view> rest = tasks_per_node;
  while (rest) {
    std::string_view part;
    std::tie(part, rest) = cut(*rest, ',');
    int nodes = 1;
    if (const auto times = part.find("(x"); times != std::string_view::npos) {
      if (part.back() != ')') return std::nullopt;
      const auto count = number_in<int>(part.substr(times + 2, part.size() - times - 3));
      if (!count || *count < 1) return std::nullopt;
      nodes = *count;
      part = part.substr(0, times);
    }
    const auto tasks = number_in<int>(part);
    if (!tasks || *tasks < 1 || *tasks > limits::ranks_max) return std::nullopt;
    if (number < nodes) return tasks;
    number -= nodes;
  }
  return std::nullopt;
}

Result<int> slurm_local_size(const Environment& environment) {
  const auto told = first_set(environment, {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  if (!told) {
    // Only --ntasks-per-node sets this one.
    const auto same = environment("SLURM_NTASKS_PER_NODE");
    const auto tasks = same ? tasks_of_node(*same, 0) : std::nullopt;
    if (tasks) return *tasks;
    return Error(Errc::invalid_input,
                 "--site: the variable SLURM_STEP_TASKS_PER_NODE is not set, so nobody says how "
                 "many ranks share this machine; start them by srun");
  }
  const auto node = environment("SLURM_NODEID");
  const auto number = node ? number_in<int>(*node) : std::optional(0);
  const auto tasks = number && *number >= 0 ? tasks_of_node(told->second, *number) : std::nullopt;
  if (tasks) return *tasks;
  return Error(Errc::invalid_input,
               fmt::format("--site: the variable {} is '{}' and SLURM_NODEID is '{}', which do not "
                           "say how many ranks share this machine",
                           told->first, told->second, node.value_or("")));
}

std::optional<std::string> slurm_first_node(const Environment& environment) {
  const auto nodes = first_set(environment, {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"});
  if (!nodes) return std::nullopt;
  std::string name = first_node(nodes->second);
  return name.empty() ? std::nullopt : std::optional(std::move(name));
}

std::optional<std::uint16_t> slurm_port(const Environment& environment) {
  const auto job = environment("SLURM_JOB_ID");
  const auto number = job ? number_in<std::uint32_t>(*job) : std::nullopt;
  if (!number) return std::nullopt;
  const auto step = number_in<std::uint32_t>(environment("SLURM_STEP_ID").value_or("0"));
  const std::uint32_t place = *number * steps_of_job + step.value_or(0) % steps_of_job;
  return static_cast<std::uint16_t>(first_port + place % ports);
}

}  // namespace fl::site
