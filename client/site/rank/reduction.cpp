// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/reduction.hpp"

#include "client/site/rank/bucket_size.hpp"
#include "client/site/rank/links.hpp"
#include "client/site/rank/topology_hooks.hpp"
#include "client/site/site_options.hpp"
#include "shared/base/log.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>
#include <utility>

namespace fl::site {

namespace {

constexpr std::string_view auto_topology = "auto";

/// A hook that sums by the topology, if it does not do so itself.
struct MeanByTopology {
  std::unique_ptr<GradientHook> hook;
  Topology topology = backend_topology();
  Nodes nodes = {};
};

/// Chooses for --topology auto: the kept topology, or the fastest one by a measurement.
Result<Topology> choose_measured_topology(const Nodes& nodes, MeasuredChoices& choices,
                                          Ranks& ranks) {
  const std::string key =
      fmt::format("topology: ranks with {} on nodes {}", ranks.device().is_cpu() ? "CPUs" : "GPUs",
                  fmt::join(nodes.node, ","));
  if (const auto kept = choices.find(key); kept != choices.end()) {
    const auto topology = parse_topology(kept->second);
    if (!topology) return no_choice(*kept);
    log_info("gradients are summed by the topology {}, as measured before", kept->second);
    return *topology;
  }
  const Topology topology = choose_topology(bucket_bytes_otherwise, nodes, measure_links(ranks));
  choices[key] = topology.name;
  log_info("gradients are summed by the topology {}, as measured now", topology.name);
  return topology;
}

Result<MeanByTopology> make_mean(std::unique_ptr<GradientHook> hook, const GroupOptions& group,
                                 MeasuredChoices& choices, Ranks& ranks) {
  if (group.topology == backend_topology().name || ranks.size() == 1)
    return MeanByTopology{.hook = std::move(hook)};
  Nodes nodes = find_nodes(host_name(), ranks);
  const bool is_plain = group.hook == "allreduce";
  if (!is_plain) {
    return MeanByTopology{.hook = make_between_nodes(std::move(hook), nodes),
                          .topology = topology_for_hooks(),
                          .nodes = nodes};
  }
  Topology topology = backend_topology();
  if (group.topology == auto_topology) {
    FL_TRY(topology, choose_measured_topology(nodes, choices, ranks));
  } else {
    FL_TRY(topology, parse_topology(group.topology));
  }
  return MeanByTopology{
      .hook = make_topology_mean(topology, nodes), .topology = topology, .nodes = nodes};
}

}  // namespace

Result<ParsedHook> check_reduction(const std::string& hook, const std::string& topology) {
  FL_TRY(ParsedHook parsed, parse_hook(hook));
  if (topology == backend_topology().name) return parsed;
  if (parsed.row.is_local) {
    return Error(Errc::invalid_input,
                 fmt::format("--hook {} has groups of its own and no --topology", hook));
  }
  if (topology == auto_topology) return parsed;
  FL_TRY(const Topology way, parse_topology(topology));
  const bool is_plain = hook == "allreduce";
  if (!is_plain && !way.takes_any_hook) {
    return Error(Errc::invalid_input,
                 fmt::format("--topology {} goes with --hook allreduce only; with {} use {}, "
                             "which compresses between machines",
                             topology, hook, topology_for_hooks().name));
  }
  return parsed;
}

Result<Reduction> make_reduction(const GroupOptions& group, std::size_t model_bytes,
                                 MeasuredChoices& choices, Ranks& ranks) {
  FL_TRY(ParsedHook parsed, check_reduction(group.hook, group.topology));
  FL_TRY(MeanByTopology mean, make_mean(std::move(parsed.hook), group, choices, ranks));
  const BucketPlan plan{
      .bucket_mb = group.bucket_mb,
      .hook = group.hook,
      .topology = mean.topology,
      .is_topology_measured = group.topology == auto_topology,
      .model_bytes = model_bytes,
  };
  FL_TRY(const std::size_t bucket_bytes, choose_bucket_bytes(plan, mean.nodes, choices, ranks));
  return Reduction{.hook = std::move(mean.hook), .row = parsed.row, .bucket_bytes = bucket_bytes};
}

}  // namespace fl::site
