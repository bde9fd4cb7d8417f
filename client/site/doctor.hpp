// SPDX-License-Identifier: Apache-2.0
// `fl-client site doctor`: whether the machines and networks of a site are fit for training
// together. The ranks say what they have and measure their links; this turns it into lines with a
// verdict and what to do. Pure functions; any thread.
#pragma once

#include "shared/base/doctor.hpp"
#include "shared/base/error.hpp"
#include "shared/base/json.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fl::site {

/// The facts that a rank tells about its machine.
struct RankFacts {
  int rank = 0;
  std::string host;
  int local_size = 1;  // Ranks of this machine.
  int cores = 0;       // Cores that this process may use.
  double memory_bytes = 0;
  int gpus = 0;
  std::string gpu;          // The name of the first one.
  bool takes_gpu = true;    // It trains on one, if there is one.
  std::string gpu_address;  // The place of its own GPU on the PCI bus; "" if it has none.
  int gpu_pairs = 0;  // Ordered pairs of its GPUs of which one reads the other's memory directly.
  std::string interface;  // --site-interface; "" for the host's own.
  /// In words, what the host's name leads to if others can't reach the machine by it: "this machine
  /// alone" (127.0.1.1), "no address of it". "" if they can.
  std::string name_leads_to;
  // Versions; "" where there is none.
  std::string torch;                             // libtorch.
  std::string cuda;                              // The CUDA runtime that libtorch uses.
  std::string driver;                            // The NVIDIA driver.
  std::string nccl;                              // NCCL.
  bool has_nccl = false;                         // This build can use NCCL.
  bool infiniband = false;                       // The machine has InfiniBand or RoCE.
  double clock_s = 0;                            // The rank's clock when it answered (Unix time).
  double asked_s = 0;                            // The agent's clock at that time.
  std::map<std::string, std::string> variables;  // NCCL_*, GLOO_*, TORCH_NCCL_*.
};

/// A sum over all ranks.
struct TimedSum {
  double bytes = 0;
  double seconds = 0;
};

/// The results of the ranks' measurements.
struct SiteMeasurement {
  std::vector<std::vector<double>> latency_s;    // [from][to], of a message of one byte.
  std::vector<std::vector<double>> bytes_per_s;  // [from][to], of large messages.
  std::vector<TimedSum> sums;
  std::string topology;  // The way of sums that is the fastest by these links.
};

/// The lines about each rank's own machine.
[[nodiscard]] DoctorLines diagnose_ranks(const std::vector<RankFacts>& facts);
/// All lines. `facts` are in the order of the ranks of `measured`.
[[nodiscard]] DoctorLines diagnose_site(const std::vector<RankFacts>& facts,
                                        const SiteMeasurement& measured);
/// The latency and bandwidth between all ranks as two tables; of large sites a line that says how
/// to get them; "" for one rank.
[[nodiscard]] std::string links_text(const std::vector<RankFacts>& facts,
                                     const SiteMeasurement& measured);

/// "1.25 GB/s".
[[nodiscard]] std::string rate_text(double bytes_per_s);

[[nodiscard]] nlohmann::json to_json_of(const RankFacts& value);
[[nodiscard]] nlohmann::json to_json_of(const SiteMeasurement& value);
/// Errors: protocol.
[[nodiscard]] Result<RankFacts> parse_facts(const nlohmann::json& message);
[[nodiscard]] Result<SiteMeasurement> parse_measurement(const nlohmann::json& message);

}  // namespace fl::site
