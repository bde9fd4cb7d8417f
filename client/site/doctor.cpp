// SPDX-License-Identifier: Apache-2.0
#include "client/site/doctor.hpp"

#include "client/site/topologies/topology_table.hpp"
#include "client/site/value_as.hpp"
#include "shared/base/median.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>

namespace fl::site {

using nlohmann::json;
using Verdict = DoctorLine::Verdict;

namespace {

constexpr double clock_warn_s = 2;        // Beyond, logs of several ranks are hard to compare.
constexpr double clock_fail_s = 300;      // Beyond, certificates may seem not valid.
constexpr double latency_local_s = 1e-3;  // Within a machine, more is a sign of overload.
constexpr double slow_share = 0.25;       // A link below this part of the median slows all others.
constexpr double sum_share = 0.3;         // A sum should reach this part of the links' speed.
constexpr double slow_link = 1e9;         // Below, in bytes/s, gradients are worth compressing.
constexpr double very_slow_link = 1e8;
constexpr std::size_t table_ranks_max = 8;  // More columns do not fit on a screen.

std::string name_of(const RankFacts& rank) {
  return fmt::format("rank {} ({})", rank.rank, rank.host);
}

/// "rank 1 (node1)", or "8 ranks, such as rank 1 (node1)".
std::string names_of(const std::vector<const RankFacts*>& ranks) {
  if (ranks.size() == 1) return name_of(*ranks[0]);
  return fmt::format("{} ranks, such as {}", ranks.size(), name_of(*ranks[0]));
}

std::string time_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.3g} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.3g} ms", seconds * 1e3);
  return fmt::format("{:.3g} s", seconds);
}

DoctorLine machines_line(const std::vector<RankFacts>& facts) {
  std::map<std::string, int> ranks;
  for (const RankFacts& rank : facts) ++ranks[rank.host];
  std::vector<std::string> parts;
  for (const auto& [host, count] : ranks) parts.push_back(fmt::format("{} ({})", host, count));
  return {Verdict::ok, "ranks",
          fmt::format("{} on {} machines: {}", facts.size(), ranks.size(), fmt::join(parts, ", "))};
}

/// Adds a line about a version, unless no rank has any.
void add_version(const std::vector<RankFacts>& facts, const char* subject,
                 std::string RankFacts::*version, Verdict if_different, const char* advice,
                 DoctorLines& lines) {
  std::map<std::string, std::vector<const RankFacts*>> versions;
  for (const RankFacts& rank : facts) versions[rank.*version].push_back(&rank);
  if (versions.size() == 1) {
    const std::string& only = versions.begin()->first;
    if (!only.empty()) lines.push_back({Verdict::ok, subject, only + " everywhere"});
    return;
  }
  std::vector<std::string> parts;
  for (const auto& [text, ranks] : versions)
    parts.push_back(fmt::format("{} ({})", text.empty() ? "none" : text, names_of(ranks)));
  lines.push_back({if_different, subject,
                   fmt::format("different versions: {}", fmt::join(parts, ", ")), advice});
}

void add_versions(const std::vector<RankFacts>& facts, DoctorLines& lines) {
  add_version(facts, "libtorch", &RankFacts::torch, Verdict::fail,
              "install the same version on all machines: they round differently", lines);
  add_version(facts, "CUDA", &RankFacts::cuda, Verdict::warn,
              "install the same libtorch on all machines, which brings its CUDA", lines);
  add_version(facts, "NVIDIA driver", &RankFacts::driver, Verdict::warn,
              "install the same driver on all machines: they may differ in speed and in bits",
              lines);
  add_version(facts, "NCCL version", &RankFacts::nccl, Verdict::fail,
              "install the same NCCL on all machines: other versions do not talk to each other",
              lines);
}

bool are_on_several(const std::vector<RankFacts>& facts) {
  return std::ranges::any_of(
      facts, [&facts](const RankFacts& rank) { return rank.host != facts[0].host; });
}

/// Adds a line if a machine's own name does not lead to it from other machines. Ranks then listen
/// at the address by which they and the agent have met, which may be another network's.
void add_host_names(const std::vector<RankFacts>& facts, DoctorLines& lines) {
  if (!are_on_several(facts)) return;
  for (const RankFacts& rank : facts) {
    if (rank.name_leads_to.empty() || !rank.interface.empty()) continue;
    lines.push_back(
        {Verdict::warn, "host names",
         fmt::format("{}'s name leads to {}: its ranks listen at the address by which they and the "
                     "client have met",
                     rank.host, rank.name_leads_to),
         "if that is the right network, nothing; else name one with --site-interface, or give the "
         "host's name its address in /etc/hosts, in place of 127.0.1.1"});
    return;
  }
}

DoctorLine processors_line(const std::vector<RankFacts>& facts) {
  for (const RankFacts& rank : facts) {
    if (rank.gpus == 0 && rank.local_size > rank.cores) {
      return {Verdict::warn, "processors",
              fmt::format("{} ranks share {} cores on {}", rank.local_size, rank.cores, rank.host),
              "start at most one rank a core"};
    }
  }
  return {Verdict::ok, "processors",
          fmt::format("{} cores and {:.3g} GB on {}", facts[0].cores, facts[0].memory_bytes / 1e9,
                      facts[0].host)};
}

/// The first rank of the same machine that takes the same GPU; null if there is none.
const RankFacts* sharer_of(const RankFacts& rank, const std::vector<RankFacts>& facts) {
  if (rank.gpu_address.empty()) return nullptr;
  const auto found = std::ranges::find_if(facts, [&rank](const RankFacts& other) {
    return other.host == rank.host && other.gpu_address == rank.gpu_address;
  });
  return found->rank == rank.rank ? nullptr : &*found;
}

DoctorLine gpus_line(const std::vector<RankFacts>& facts) {
  const auto uses_one = [](const RankFacts& rank) { return rank.gpus > 0 && rank.takes_gpu; };
  if (std::ranges::none_of(facts, uses_one))
    return {Verdict::ok, "GPUs", "none: ranks compute on CPUs and talk over Gloo"};
  for (const RankFacts& rank : facts) {
    // A launcher may show each rank only its own GPU: then fewer GPUs than ranks are enough.
    if (rank.gpus < rank.local_size && rank.gpu_address.empty()) {
      return {Verdict::fail, "GPUs",
              fmt::format("{} has {} GPUs for {} ranks", name_of(rank), rank.gpus, rank.local_size),
              "start one rank a GPU, or all with --device cpu --backend gloo"};
    }
    if (const RankFacts* const other = sharer_of(rank, facts)) {
      return {
          Verdict::fail, "GPUs",
          fmt::format("{} and {} take the same GPU, {}", name_of(*other), name_of(rank),
                      rank.gpu_address),
          "show each rank a GPU of its own (under Slurm by srun --gpus-per-task 1), or show all "
          "of them to every rank"};
    }
    if (rank.gpu != facts[0].gpu) {
      return {Verdict::warn, "GPUs",
              fmt::format("{} has {}, {} has {}", name_of(facts[0]), facts[0].gpu, name_of(rank),
                          rank.gpu),
              "a step takes as long as on the slowest"};
    }
    if (!rank.has_nccl) {
      return {Verdict::fail, "GPUs",
              fmt::format("{} has GPUs, but its build has no NCCL", name_of(rank)),
              "build with libtorch for CUDA: FL_TORCH_CUDA=1 ./dev build in a checkout of the "
              "sources"};
    }
  }
  const bool is_shown_one = facts[0].gpus < facts[0].local_size;
  return {Verdict::ok, "GPUs",
          is_shown_one ? fmt::format("each rank sees one of its own, {}", facts[0].gpu)
                       : fmt::format("{} each, {}", facts[0].gpus, facts[0].gpu)};
}

DoctorLine clocks_line(const std::vector<RankFacts>& facts) {
  const RankFacts* worst = nullptr;
  double most = 0;
  for (const RankFacts& rank : facts) {
    const double off = std::abs(rank.clock_s - rank.asked_s);
    if (off > most) worst = &rank;
    most = std::max(most, off);
  }
  if (most <= clock_warn_s)
    return {Verdict::ok, "clocks", fmt::format("within {} of the agent's", time_text(most))};
  return {most > clock_fail_s ? Verdict::fail : Verdict::warn, "clocks",
          fmt::format("that of {} is {:.0f} s off the agent's", name_of(*worst), most),
          "run an NTP service on all machines (chrony, systemd-timesyncd)"};
}

/// Adds a line about the ways between the GPUs of a machine, if one has several.
void add_gpu_pairs(const std::vector<RankFacts>& facts, DoctorLines& lines) {
  std::vector<const RankFacts*> some;
  std::vector<const RankFacts*> lacking;
  for (const RankFacts& rank : facts) {
    if (rank.gpus < 2) continue;
    some.push_back(&rank);
    if (rank.gpu_pairs < rank.gpus * (rank.gpus - 1)) lacking.push_back(&rank);
  }
  if (some.empty()) return;
  if (lacking.empty()) {
    lines.push_back({Verdict::ok, "ways between GPUs",
                     "all GPUs of a machine read each other's memory directly"});
    return;
  }
  const RankFacts& first = *lacking[0];
  lines.push_back({Verdict::warn, "ways between GPUs",
                   fmt::format("{} of {} pairs are direct on {}", first.gpu_pairs,
                               first.gpus * (first.gpus - 1), names_of(lacking)),
                   "see 'nvidia-smi topo -m': the others copy through the machine's memory"});
}

/// A setting of NCCL that costs speed, on the ranks for which `is_so`.
struct NcclFault {
  std::string text;
  std::string advice;
  std::function<bool(const RankFacts&)> is_so;
};

std::vector<NcclFault> nccl_faults(const std::vector<RankFacts>& facts, bool has_several_machines) {
  const auto has = [](const char* name, const char* value) {
    return [name, value](const RankFacts& rank) {
      const auto found = rank.variables.find(name);
      return found != rank.variables.end() && found->second == value;
    };
  };
  const auto named = std::ranges::find_if_not(facts, &std::string::empty, &RankFacts::interface);
  const std::string network =
      named == facts.end() ? "NAME, with the network between the machines" : named->interface;
  const auto no_infiniband = has("NCCL_IB_DISABLE", "1");
  return {
      {"NCCL_IB_DISABLE=1 beside InfiniBand", "unset it: while it is set, sums go over sockets",
       [no_infiniband](const RankFacts& rank) { return rank.infiniband && no_infiniband(rank); }},
      {"NCCL_P2P_DISABLE=1",
       "unset it: while it is set, GPUs of one machine copy through its memory",
       has("NCCL_P2P_DISABLE", "1")},
      {"NCCL_DEBUG=TRACE", "use WARN: TRACE logs every call", has("NCCL_DEBUG", "TRACE")},
      {"NCCL_SOCKET_IFNAME is not set",
       fmt::format("set NCCL_SOCKET_IFNAME={}: NCCL may choose one that leads nowhere", network),
       [has_several_machines](const RankFacts& rank) {
         return has_several_machines && rank.gpus > 0 &&
                !rank.variables.contains("NCCL_SOCKET_IFNAME");
       }},
  };
}

/// A line for each fault, or one that says that there is none.
void add_nccl(const std::vector<RankFacts>& facts, bool has_several_machines, DoctorLines& lines) {
  const std::size_t before = lines.size();
  for (const NcclFault& fault : nccl_faults(facts, has_several_machines)) {
    std::vector<const RankFacts*> ranks;
    for (const RankFacts& rank : facts)
      if (fault.is_so(rank)) ranks.push_back(&rank);
    if (ranks.empty()) continue;
    lines.push_back({Verdict::warn, "NCCL", fmt::format("{} on {}", fault.text, names_of(ranks)),
                     fault.advice});
  }
  if (lines.size() > before) return;
  const bool has_gpus = std::ranges::any_of(facts, [](const RankFacts& r) { return r.gpus > 0; });
  std::set<std::string> names;
  for (const RankFacts& rank : facts)
    for (const auto& [name, value] : rank.variables) names.insert(name);
  const std::string set = names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
  lines.push_back({Verdict::ok, "NCCL",
                   fmt::format("{}; variables that are set: {}",
                               has_gpus ? "nothing costs speed" : "not used, without GPUs", set)});
}

/// Adds a line about the links within machines, or about those between them. Returns the bytes/s
/// of the slowest link; infinity without links.
double add_links(const std::vector<RankFacts>& facts, const SiteMeasurement& measured,
                 bool is_local, DoctorLines& lines) {
  std::vector<double> rates;
  std::vector<double> latencies;
  double slowest = std::numeric_limits<double>::infinity();
  std::string which;
  for (std::size_t from = 0; from < facts.size(); ++from) {
    for (std::size_t to = 0; to < facts.size(); ++to) {
      if (from == to || (facts[from].host == facts[to].host) != is_local) continue;
      const double rate = measured.bytes_per_s[from][to];
      rates.push_back(rate);
      latencies.push_back(measured.latency_s[from][to]);
      if (rate < slowest) which = name_of(facts[from]) + " to " + name_of(facts[to]);
      slowest = std::min(slowest, rate);
    }
  }
  if (rates.empty()) return slowest;
  const char* const subject = is_local ? "links within machines" : "links between machines";
  const double usual = upper_median(rates);
  const double latency = upper_median(latencies);
  lines.push_back({Verdict::ok, subject,
                   fmt::format("{} and {} in the middle; the slowest {}", rate_text(usual),
                               time_text(latency), rate_text(slowest))});
  if (slowest < slow_share * usual) {
    lines.back().verdict = Verdict::warn;
    lines.back().advice = fmt::format("look at {}: all ranks wait for the slowest link", which);
  } else if (is_local && latency > latency_local_s) {
    lines.back().verdict = Verdict::warn;
    lines.back().advice = "the machine is busy with something else, or has too few cores";
  }
  return slowest;
}

void add_sums(std::size_t ranks, double slowest, const SiteMeasurement& measured,
              DoctorLines& lines) {
  std::vector<std::string> parts;
  double best = 0;
  const double moved = 2 * (static_cast<double>(ranks) - 1) / static_cast<double>(ranks);
  for (const TimedSum& sum : measured.sums) {
    const double rate = moved * sum.bytes / sum.seconds;
    best = std::max(best, rate);
    parts.push_back(fmt::format("{:.3g} MB in {} ({})", sum.bytes / 1e6, time_text(sum.seconds),
                                rate_text(rate)));
  }
  lines.push_back({Verdict::ok, "sums over all ranks", fmt::format("{}", fmt::join(parts, ", "))});
  if (best < sum_share * slowest) {
    lines.back().verdict = Verdict::warn;
    lines.back().advice = "the links could do more; give each rank more cores";
    if (measured.topology != backend_topology().name)
      lines.back().advice += fmt::format(", or try --topology {}", measured.topology);
  }
}

void add_choice(double slowest, const SiteMeasurement& measured, bool has_several_machines,
                DoctorLines& lines) {
  std::string text =
      measured.topology == backend_topology().name
          ? "the default --topology is the fastest by these links"
          : fmt::format("--topology {} is the fastest by these links", measured.topology);
  if (has_several_machines && slowest < very_slow_link) {
    text += "; let each machine be a site of its own, with fl-server --strategy diloco";
  } else if (slowest < slow_link) {
    text += "; gradients are worth compressing: --hook bf16, or --hook codec:ecuq:2+ef";
    if (has_several_machines) text += fmt::format(" with --topology {}", topology_for_hooks().name);
  } else {
    text += "; the default --hook fits them: compressing more than bf16 does not pay";
  }
  lines.push_back({Verdict::ok, "advice", text});
}

}  // namespace

std::string rate_text(double bytes_per_s) {
  if (bytes_per_s >= 1e9) return fmt::format("{:.3g} GB/s", bytes_per_s / 1e9);
  return fmt::format("{:.3g} MB/s", bytes_per_s / 1e6);
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankFacts, rank, host, local_size, cores, memory_bytes, gpus,
                                   gpu, takes_gpu, gpu_address, gpu_pairs, interface, name_leads_to,
                                   torch, cuda, driver, nccl, has_nccl, infiniband, clock_s,
                                   asked_s, variables)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TimedSum, bytes, seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SiteMeasurement, latency_s, bytes_per_s, sums, topology)

json to_json_of(const RankFacts& value) { return value; }
json to_json_of(const SiteMeasurement& value) { return value; }
Result<RankFacts> parse_facts(const json& message) { return value_as<RankFacts>(message); }
Result<SiteMeasurement> parse_measurement(const json& message) {
  return value_as<SiteMeasurement>(message);
}

DoctorLines diagnose_ranks(const std::vector<RankFacts>& facts) {
  FL_ASSERT(!facts.empty());
  DoctorLines lines{machines_line(facts)};
  add_versions(facts, lines);
  lines.insert(lines.end(), {processors_line(facts), gpus_line(facts), clocks_line(facts)});
  add_gpu_pairs(facts, lines);
  add_host_names(facts, lines);
  add_nccl(facts, are_on_several(facts), lines);
  return lines;
}

DoctorLines diagnose_site(const std::vector<RankFacts>& facts, const SiteMeasurement& measured) {
  FL_ASSERT(measured.bytes_per_s.size() == facts.size());
  DoctorLines lines = diagnose_ranks(facts);
  double slowest = add_links(facts, measured, true, lines);
  slowest = std::min(slowest, add_links(facts, measured, false, lines));
  if (facts.size() > 1) {
    add_sums(facts.size(), slowest, measured, lines);
    add_choice(slowest, measured, are_on_several(facts), lines);
  }
  return lines;
}

std::string links_text(const std::vector<RankFacts>& facts, const SiteMeasurement& measured) {
  if (facts.size() < 2) return "";
  if (facts.size() > table_ranks_max)
    return fmt::format("--json prints the latency and bandwidth between all {} ranks\n",
                       facts.size());
  std::string text;
  const auto add_table = [&](const char* title, const std::vector<std::vector<double>>& values,
                             double unit) {
    text += fmt::format("\n{} (from the rank on the left to the one above)\n{:>6}", title, "");
    for (const RankFacts& to : facts) text += fmt::format("{:>9}", to.rank);
    for (std::size_t from = 0; from < facts.size(); ++from) {
      text += fmt::format("\n{:>6}", facts[from].rank);
      for (std::size_t to = 0; to < facts.size(); ++to) {
        const double value = values[from][to] / unit;
        const std::string shown = fmt::format("{:.{}f}", value, value < 10 ? 1 : 0);
        text += fmt::format("{:>9}", from == to ? "-" : shown);
      }
    }
    text += "\n";
  };
  add_table("latency in us", measured.latency_s, 1e-6);
  add_table("bandwidth in MB/s", measured.bytes_per_s, 1e6);
  return text;
}

}  // namespace fl::site
