// SPDX-License-Identifier: Apache-2.0
#include "client/site/site_options.hpp"

#include "client/site/slurm_place.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/machine.hpp"
#include "shared/base/spec/spec_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace fl::site {

namespace {

/// The variables of a launcher.
struct Launcher {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  bool is_slurm = false;  // If so, functions of slurm_place read the rest.
};

/// Slurm is last: its variables are there also where torchrun or mpirun starts the ranks inside a
/// job, and then they are those of the node's one daemon.
constexpr std::array launchers{
    Launcher{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    Launcher{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
             "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    Launcher{"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr, true},
};

constexpr std::uint16_t port_without_launcher = 29501;

/// A variable that is a whole number. `otherwise`: its value where it is not set.
Result<int> number_of(const Environment& environment, const char* name,
                      std::optional<int> otherwise = {}) {
  const auto text = environment(name);
  if (!text && otherwise) return *otherwise;
  const auto value = text ? number_in<std::uint32_t>(*text) : std::nullopt;
  if (!value || *value > limits::ranks_max) {
    return Error(Errc::invalid_input,
                 fmt::format("--site: the variable {} is '{}', not a number up to {}", name,
                             text.value_or(""), limits::ranks_max));
  }
  return static_cast<int>(*value);
}

/// Finds where the agent listens.
Result<void> find_agent(const Environment& environment, const Launcher& launcher,
                        const std::string& address, SitePlace& place) {
  if (!address.empty()) {
    FL_TRY(auto told, parse_host_port(address));
    place.host = std::move(told.first);
    place.port = told.second;
    return {};
  }
  auto host = environment("MASTER_ADDR");
  if (!host && launcher.is_slurm) host = slurm_first_node(environment);
  if (!host) {
    return Error(Errc::invalid_input,
                 fmt::format("--site under {}: the variable MASTER_ADDR is not set; give "
                             "--site-address HOST:PORT, where rank 0 runs",
                             launcher.name));
  }
  place.host = *host;
  place.port = port_without_launcher;
  if (launcher.is_slurm) place.port = slurm_port(environment).value_or(place.port);
  if (const auto text = environment("MASTER_PORT")) {
    const auto port = number_in<std::uint16_t>(*text);
    if (!port || *port == 0 || *port == UINT16_MAX) {
      return Error(Errc::invalid_input,
                   fmt::format("--site: the variable MASTER_PORT is '{}', not a port", *text));
    }
    place.port = static_cast<std::uint16_t>(*port + 1);
  }
  return {};
}

}  // namespace

int cores_of(const SitePlace& place) {
  const int all = this_machine().cores;
  return place.cores > 0 ? std::min(place.cores, all) : std::max(1, all / place.local_size);
}

Result<SitePlace> find_place(const Environment& environment, const std::string& address) {
  for (const Launcher& launcher : launchers) {
    if (!environment(launcher.rank) || !environment(launcher.size)) continue;
    SitePlace place;
    place.launcher = launcher.name;
    FL_TRY(place.rank, number_of(environment, launcher.rank));
    FL_TRY(place.size, number_of(environment, launcher.size));
    FL_TRY(place.local_rank, number_of(environment, launcher.local_rank, place.rank));
    if (launcher.is_slurm) {
      FL_TRY(place.local_size, slurm_local_size(environment));
      // Slurm binds each task to cores of its own then; without it the tasks may share them.
      const auto cores = environment("SLURM_CPUS_PER_TASK");
      place.cores = cores ? number_in<int>(*cores).value_or(0) : 0;
    } else {
      FL_TRY(place.local_size, number_of(environment, launcher.local_size, place.size));
    }
    const bool is_whole = place.rank < place.size && place.local_rank < place.local_size &&
                          place.local_size <= place.size;
    if (!is_whole) {
      return Error(Errc::invalid_input,
                   fmt::format("--site: {} says rank {} of {}, the {}th of {} on this machine, "
                               "which can't be",
                               launcher.name, place.rank, place.size, place.local_rank + 1,
                               place.local_size));
    }
    FL_CHECK(find_agent(environment, launcher, address, place));
    return place;
  }
  return Error(Errc::invalid_input,
               "--site: no launcher has started this process: torchrun sets RANK and WORLD_SIZE, "
               "Slurm SLURM_PROCID and SLURM_NTASKS, Open MPI OMPI_COMM_WORLD_RANK and _SIZE. For "
               "ranks on this machine only, use --ranks N");
}

Result<std::pair<std::string, std::uint16_t>> parse_host_port(const std::string& text) {
  const auto colon = text.rfind(':');
  const auto port = colon == std::string::npos
                        ? std::nullopt
                        : number_in<std::uint16_t>(std::string_view(text).substr(colon + 1));
  if (!port || *port == 0 || colon == 0)
    return Error(Errc::invalid_input, fmt::format("'{}' is not HOST:PORT", text));
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  return std::pair(std::move(host), *port);
}

}  // namespace fl::site
