// SPDX-License-Identifier: Apache-2.0
#include "client/site/doctor.hpp"

#include "client/site/value_as.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace fl {

using nlohmann::json;
using Verdict = DoctorLine::Verdict;

namespace {

constexpr double clock_warn_s = 2;        // Logs of such ranks are hard to read together,
constexpr double clock_fail_s = 300;      // and certificates of such ones may not be valid.
constexpr double latency_local_s = 1e-3;  // Within a machine, more is a sign of overload.
constexpr double slow_share = 0.25;       // Of the median: such a link slows all others.
constexpr double sum_share = 0.3;         // Of what the links could do.
constexpr double slow_link = 1e9;         // Bytes/s: below, gradients are worth compressing.
constexpr double very_slow_link = 1e8;

std::string name_of(const RankFacts& rank) {
  return fmt::format("rank {} ({})", rank.rank, rank.host);
}

std::string rate_text(double bytes_per_s) {
  if (bytes_per_s >= 1e9) return fmt::format("{:.3g} GB/s", bytes_per_s / 1e9);
  return fmt::format("{:.3g} MB/s", bytes_per_s / 1e6);
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

DoctorLine versions_line(const std::vector<RankFacts>& facts) {
  std::set<std::string> versions;
  for (const RankFacts& rank : facts) versions.insert(rank.torch);
  if (versions.size() == 1)
    return {Verdict::ok, "libtorch", fmt::format("{} everywhere", *versions.begin())};
  return {Verdict::fail, "libtorch",
          fmt::format("different versions: {}", fmt::join(versions, ", ")),
          "install the same version on all machines: they round differently"};
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

DoctorLine gpus_line(const std::vector<RankFacts>& facts) {
  const bool has_some = std::ranges::any_of(facts, [](const RankFacts& r) { return r.gpus > 0; });
  if (!has_some) return {Verdict::ok, "GPUs", "none: ranks compute on CPUs and talk over Gloo"};
  for (const RankFacts& rank : facts) {
    if (rank.gpus < rank.local_size) {
      return {Verdict::fail, "GPUs",
              fmt::format("{} has {} GPUs for {} ranks", name_of(rank), rank.gpus, rank.local_size),
              "start one rank a GPU, or all with --device cpu --backend gloo"};
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
              "build with libtorch for CUDA (FL_TORCH_CUDA=1 ./dev build)"};
    }
  }
  return {Verdict::ok, "GPUs", fmt::format("{} each, {}", facts[0].gpus, facts[0].gpu)};
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

/// Settings of NCCL that cost speed, each with why.
void add_variables(const std::vector<RankFacts>& facts, bool has_several_machines,
                   std::vector<DoctorLine>& lines) {
  const std::size_t before = lines.size();
  for (const RankFacts& rank : facts) {
    const auto is = [&rank](const char* name, const char* value) {
      const auto found = rank.variables.find(name);
      return found != rank.variables.end() && found->second == value;
    };
    const auto warn = [&](const char* text, const char* advice) {
      lines.push_back(
          {Verdict::warn, "NCCL", fmt::format("{} on {}", text, name_of(rank)), advice});
    };
    if (is("NCCL_IB_DISABLE", "1") && rank.infiniband)
      warn("NCCL_IB_DISABLE=1 beside InfiniBand", "unset it: sums then go over sockets");
    if (is("NCCL_P2P_DISABLE", "1"))
      warn("NCCL_P2P_DISABLE=1", "unset it: GPUs of one machine then copy through its memory");
    if (is("NCCL_DEBUG", "TRACE")) warn("NCCL_DEBUG=TRACE", "use WARN: it logs every call");
    if (rank.gpus > 0 && has_several_machines && !rank.variables.contains("NCCL_SOCKET_IFNAME"))
      warn("NCCL_SOCKET_IFNAME is not set",
           "name the network, as NCCL_SOCKET_IFNAME=eth0: NCCL may choose one that leads nowhere");
    if (lines.size() > before) return;
  }
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

/// The links within machines, or between them. Returns the slowest one's bytes/s; infinity without
/// links.
double add_links(const std::vector<RankFacts>& facts, const SiteMeasurement& measured,
                 bool is_local, std::vector<DoctorLine>& lines) {
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
  const double usual = median(rates);
  const double latency = median(latencies);
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
              std::vector<DoctorLine>& lines) {
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
    lines.back().advice =
        fmt::format("the links could do more; try --topology {}, or more cores for each rank",
                    measured.topology);
  }
}

void add_choice(double slowest, const SiteMeasurement& measured, bool has_several_machines,
                std::vector<DoctorLine>& lines) {
  std::string text = fmt::format("--topology {} is the fastest by these links", measured.topology);
  if (has_several_machines && slowest < very_slow_link) {
    text += "; let each machine be a site of its own, with fl-server --strategy diloco";
  } else if (slowest < slow_link) {
    text += "; gradients are worth compressing: --hook bf16, or --hook codec:ecuq:2+ef";
    if (has_several_machines) text += " with --topology hierarchical";
  } else {
    text += "; --hook allreduce or bf16: on such links compressing more does not pay";
  }
  lines.push_back({Verdict::ok, "advice", text});
}

}  // namespace

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankFacts, rank, host, local_size, cores, memory_bytes, gpus,
                                   gpu, torch, has_nccl, infiniband, clock_s, asked_s, variables)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TimedSum, bytes, seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SiteMeasurement, latency_s, bytes_per_s, sums, topology)

json to_json_of(const RankFacts& value) { return value; }
json to_json_of(const SiteMeasurement& value) { return value; }
Result<RankFacts> parse_facts(const json& message) { return value_as<RankFacts>(message); }
Result<SiteMeasurement> parse_measurement(const json& message) {
  return value_as<SiteMeasurement>(message);
}

std::vector<DoctorLine> diagnose_site(const std::vector<RankFacts>& facts,
                                      const SiteMeasurement& measured) {
  FL_ASSERT(!facts.empty() && measured.bytes_per_s.size() == facts.size());
  const bool has_several_machines = std::ranges::any_of(
      facts, [&facts](const RankFacts& rank) { return rank.host != facts[0].host; });
  std::vector<DoctorLine> lines{machines_line(facts), versions_line(facts), processors_line(facts),
                                gpus_line(facts), clocks_line(facts)};
  add_variables(facts, has_several_machines, lines);
  double slowest = add_links(facts, measured, true, lines);
  slowest = std::min(slowest, add_links(facts, measured, false, lines));
  if (facts.size() > 1) {
    add_sums(facts.size(), slowest, measured, lines);
    add_choice(slowest, measured, has_several_machines, lines);
  }
  return lines;
}

json site_doctor_json(const std::vector<DoctorLine>& lines, const SiteMeasurement& measured) {
  return {{"lines", doctor_json(lines)}, {"measured", measured}};
}

}  // namespace fl
