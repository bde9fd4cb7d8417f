// SPDX-License-Identifier: Apache-2.0
// The options of a site, one client of many ranks, from the command line and the environment.
#pragma once

#include "shared/base/environment.hpp"
#include "shared/base/error.hpp"
#include "shared/base/limits.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace fl::site {

struct SiteOptions {
  int ranks = 0;          // Ranks on this machine; 0 if there are none, or a launcher starts them.
  bool launched = false;  // --site: torchrun, srun or mpirun has started this process as a rank.
  int ranks_min = 0;      // The least ranks that a round may go on with; 0: all.
  std::string backend = "auto";      // "gloo", "nccl", "auto".
  std::string hook = "allreduce";    // How gradients are reduced.
  std::string topology = "backend";  // How ranks sum (client/site/topologies/), or "auto".
  std::string bucket_mb;  // Gradients are reduced in pieces of this size, or "auto"; "": a default.
  std::string unused_parameters = "refuse";  // client/site/rank/data_parallel.hpp.
  std::string parallel;            // The ranks' grid (client/site/grid.hpp); "": all share batches.
  bool sequence_parallel = false;  // Ranks that divide layers divide tokens between them.
  std::string context_parallel = "ring";  // How ranks that divide texts attend (context_parts.hpp).
  std::string expert_parallel = "direct";  // How tokens go to experts (expert_parts.hpp).
  std::string pipeline = "1f1b";           // In which order stages work (pipeline_parts.hpp).
  int zero = 0;                            // The stage of ZeRO: what ranks hold a part of.
  bool check_calls = false;                // Ranks compare their calls before each collective.
  std::string interface;  // The network interface for ranks; "" for the host's own.
  std::string address;    // HOST:PORT where the agent listens; "" if the launcher says it.
  std::string secret_file;
  double timeout_s =
      limits::rank_timeout_s;  // For a collective, for a rank's silence, and for ranks to come.

  [[nodiscard]] bool is_set() const { return ranks > 0 || launched; }
};

/// The place of a process in a site.
struct SitePlace {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // The number among the ranks of this machine.
  int local_size = 1;
  std::string host;  // The host where the agent listens.
  std::uint16_t port = 0;
  std::string launcher;   // "torchrun", "Slurm", "Open MPI".
  std::string interface;  // Gloo's network interface on this machine; "": the host's own.
  int cores =
      0;  // The launcher gives each rank this many cores; 0: the machine's ranks share them.
};

/// The cores that a rank at this place may use, at least 1.
[[nodiscard]] int cores_of(const SitePlace& place);

/// Reads the place from the variables of torchrun (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE),
/// of Open MPI (OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE) or of Slurm (SLURM_PROCID,
/// SLURM_NTASKS, SLURM_LOCALID, SLURM_NODEID, SLURM_STEP_TASKS_PER_NODE; SLURM_CPUS_PER_TASK if it
/// is set). `address`: HOST:PORT of
/// --site-address, or "". Without it the agent is at MASTER_ADDR, or under Slurm at the step's
/// first node, and its port is one above MASTER_PORT, or under Slurm follows from the job's number.
/// Errors: invalid_input, with the variable that is missing or wrong.
[[nodiscard]] Result<SitePlace> find_place(const Environment& environment,
                                           const std::string& address);

/// Parses HOST:PORT; an IPv6 address stands in brackets. Errors: invalid_input.
[[nodiscard]] Result<std::pair<std::string, std::uint16_t>> parse_host_port(
    const std::string& text);

/// The variables by which fl-rank learns its place; the secret is one of them, because a command
/// line can be seen by other users.
namespace rank_variables {
inline constexpr const char* address = "TRIBUTARY_SITE_ADDRESS";
inline constexpr const char* secret = "TRIBUTARY_SITE_SECRET";
inline constexpr const char* timeout = "TRIBUTARY_SITE_TIMEOUT";
inline constexpr const char* interface = "TRIBUTARY_SITE_INTERFACE";
inline constexpr const char* rank = "TRIBUTARY_SITE_RANK";
inline constexpr const char* size = "TRIBUTARY_SITE_SIZE";
inline constexpr const char* local_rank = "TRIBUTARY_SITE_LOCAL_RANK";
inline constexpr const char* local_size = "TRIBUTARY_SITE_LOCAL_SIZE";
inline constexpr const char* cores = "TRIBUTARY_SITE_CORES";
}  // namespace rank_variables

}  // namespace fl::site
