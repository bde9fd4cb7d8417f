// SPDX-License-Identifier: Apache-2.0
#include "client/site/grid_doctor.hpp"

#include "client/site/mesh.hpp"
#include "shared/params/model_spec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string_view>

namespace fl::site {

using Verdict = DoctorLine::Verdict;

namespace {

DoctorLine model_line(const GridPlan& plan) {
  const std::string name = fmt::format("dp={},tp={},cp={},ep={},pp={}", plan.grid.dp, plan.grid.tp,
                                       plan.grid.cp, plan.grid.ep, plan.grid.pp);
  if (plan.model.empty())
    return {Verdict::warn, "grid", name + ", for a model that is not known",
            "say --model SPEC to see whether it can be divided so"};
  const TensorDivision layers{.ranks = plan.grid.tp, .divides_tokens = plan.divides_tokens};
  const auto spec = parse_model(plan.model);
  if (!spec) return {Verdict::fail, "grid", spec.error().message()};
  for (const auto& checked :
       {check_division(*spec, plan.model, layers),
        check_context(*spec, plan.model, {.ranks = plan.grid.cp, .way = plan.way}, layers),
        check_experts(*spec, plan.model, {.ranks = plan.grid.ep}),
        check_pipeline(*spec, plan.model, plan.stages)}) {
    if (!checked) return {Verdict::fail, "grid", checked.error().message()};
  }
  return {Verdict::ok, "grid", fmt::format("{} divides {}", name, plan.model)};
}

/// The groups along an axis of which not all ranks are on one machine.
std::vector<std::vector<int>> spread_groups(const Mesh& mesh, const char* axis,
                                            const std::vector<RankFacts>& facts) {
  std::set<std::vector<int>> groups;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const std::vector<int> group = mesh.group_of(axis, rank);
    std::set<std::string> hosts;
    for (const int member : group) hosts.insert(facts[static_cast<std::size_t>(member)].host);
    if (hosts.size() > 1) groups.insert(group);
  }
  return {groups.begin(), groups.end()};
}

/// The slowest of the links within the groups along an axis.
double slowest_link(const Mesh& mesh, const char* axis,
                    const std::vector<std::vector<double>>& bytes_per_s) {
  double slowest = std::numeric_limits<double>::infinity();
  for (int rank = 0; rank < mesh.size(); ++rank) {
    for (const int other : mesh.group_of(axis, rank)) {
      if (other == rank) continue;
      slowest = std::min(
          slowest,
          bytes_per_s.at(static_cast<std::size_t>(rank)).at(static_cast<std::size_t>(other)));
    }
  }
  return slowest;
}

/// The links by axis. Those of tp carry most.
DoctorLine links_line(const Grid& grid, const std::vector<std::vector<double>>& bytes_per_s) {
  std::string text;
  double of_tp = std::numeric_limits<double>::infinity();
  double fastest_other = 0;
  const auto add = [&](const Mesh& mesh, const char* axis, int size) {
    if (size == 1) return;
    const double slowest = slowest_link(mesh, axis, bytes_per_s);
    if (axis == std::string_view("tp"))
      of_tp = slowest;
    else
      fastest_other = std::max(fastest_other, slowest);
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", axis, rate_text(slowest));
  };
  const Mesh mesh = mesh_of(grid);
  add(mesh, "tp", grid.tp);
  add(mesh, "cp", grid.cp);
  add(experts_mesh_of(grid), "ep", grid.ep);
  add(mesh, "dp", grid.dp);
  add(mesh, "pp", grid.pp);
  text += " (the slowest link of each)";
  if (of_tp >= fastest_other / 2) return {Verdict::ok, "axes", text};
  return {Verdict::warn, "axes", text,
          "tp sends most: start the ranks in another order, so that those with the fastest links "
          "follow each other"};
}

std::string example_of(const std::vector<std::vector<int>>& groups, const Mesh& mesh, int size,
                       const std::vector<RankFacts>& facts) {
  const std::vector<int>& first = groups.front();
  const auto host = [&](int rank) { return facts[static_cast<std::size_t>(rank)].host; };
  return fmt::format("{} of {}, such as ranks {} ({}) to {} ({})", groups.size(),
                     mesh.size() / size, first.front(), host(first.front()), first.back(),
                     host(first.back()));
}

/// How long ranks wait for other stages; Narayanan 2021, section 2.2, and Qi 2024, section 2.3,
/// where a backward pass takes twice as long as a forward pass.
std::string bubble_text(const PipelineDivision& stages) {
  const std::int64_t before = stages.ranks - 1;
  switch (stages.schedule) {
    case PipelineSchedule::interleaved: return fmt::format("{}/({} M)", before, stages.chunks);
    case PipelineSchedule::zero_bubble: return fmt::format("{}/(3 M)", before);
    case PipelineSchedule::gpipe:
    case PipelineSchedule::one_forward_one_back: break;
  }
  return fmt::format("{}/M", before);
}

}  // namespace

DoctorLines diagnose_grid(const GridPlan& plan, const std::vector<RankFacts>& facts,
                          const std::vector<std::vector<double>>& bytes_per_s) {
  const Grid& grid = plan.grid;
  if (grid.together() == 1) return {};
  const Mesh mesh = mesh_of(grid);
  FL_ASSERT(mesh.size() == static_cast<int>(facts.size()));
  DoctorLines lines{model_line(plan)};
  if (grid.tp > 1) {
    const auto spread = spread_groups(mesh, "tp", facts);
    if (spread.empty()) {
      lines.push_back({Verdict::ok, "layers", "each group of tp is on one machine"});
    } else {
      lines.push_back(
          {Verdict::warn, "layers",
           "groups of tp are on several machines: " + example_of(spread, mesh, grid.tp, facts),
           fmt::format("they send in every layer and wait for it: start a multiple of {} ranks on "
                       "each machine, or choose a tp that divides {}",
                       grid.tp, std::ranges::min(facts, {}, &RankFacts::local_size).local_size)});
    }
  }
  if (grid.cp > 1) {
    const auto spread = spread_groups(mesh, "cp", facts);
    lines.push_back({Verdict::ok, "texts",
                     spread.empty() ? "each group of cp is on one machine"
                                    : "groups of cp are on several machines, between which keys "
                                      "and values go in every layer: " +
                                          example_of(spread, mesh, grid.cp, facts)});
  }
  if (grid.ep > 1) {
    const auto spread = spread_groups(experts_mesh_of(grid), "ep", facts);
    lines.push_back({Verdict::ok, "experts",
                     spread.empty()
                         ? "each group of ep is on one machine"
                         : "groups of ep are on several machines, between which the tokens go to "
                           "their experts and back in every layer (--expert-parallel two-hops: in "
                           "fewer messages): " +
                               example_of(spread, mesh, grid.ep, facts)});
  }
  if (grid.pp > 1) {
    const auto spread = spread_groups(mesh, "pp", facts);
    lines.push_back(
        {Verdict::ok, "stages",
         fmt::format("{}; with M passes a step ranks wait {} of the time that they compute",
                     spread.empty() ? "each pipeline is on one machine"
                                    : "pipelines go over several machines, between which the "
                                      "values of a pass go and their gradients: " +
                                          example_of(spread, mesh, grid.pp, facts),
                     bubble_text(plan.stages))});
  }
  if (!bytes_per_s.empty()) lines.push_back(links_line(grid, bytes_per_s));
  return lines;
}

}  // namespace fl::site
