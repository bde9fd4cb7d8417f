// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/rank_facts.hpp"

#include "client/learn/process/tcp.hpp"
#include "client/site/rank/links.hpp"
#include "client/site/rank/own_gpu.hpp"
#include "client/site/rank/topology.hpp"
#include "client/site/site_messages.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/machine.hpp"

#include <torch/cuda.h>
#include <torch/version.h>

#include <unistd.h>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#ifdef FL_TORCH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <fmt/format.h>
#endif

namespace fl::site {

namespace {

constexpr std::int64_t sizes[] = {64 << 10, 1 << 20, 16 << 20};  // Bytes of the sums.
constexpr double each_s = 0.6;  // For each size, so that all take about two seconds.
constexpr int times_max = 2000;

/// The mean time of a sum of `bytes`.
TimedSum time_sum(std::int64_t bytes, Ranks& ranks) {
  torch::Tensor values = torch::ones({bytes / 4}, torch::dtype(torch::kFloat32)).to(ranks.device());
  ranks.sum(values);  // The first sum connects.
  const TimePoint begin = Clock::now();
  int times = 0;
  std::int64_t goes_on = 1;
  while (goes_on != 0 && times < times_max) {
    values.fill_(1);
    ranks.sum(values);
    ++times;
    // The first rank's clock decides, so that all stop together.
    torch::Tensor told = torch::full({1}, seconds(Clock::now() - begin) < each_s ? 1.0 : 0.0);
    told = told.to(ranks.device());
    ranks.broadcast(told, 0);
    goes_on = told.item<double>() != 0 ? 1 : 0;
  }
  torch::Tensor taken =
      torch::full({1}, seconds(Clock::now() - begin) / times, torch::kFloat64).to(ranks.device());
  ranks.broadcast(taken, 0);
  return {static_cast<double>(bytes), taken.item<double>()};
}

/// The version of the CUDA runtime, such as "13.0".
std::string cuda_version() {
#ifdef FL_TORCH_CUDA
  const auto version = at::detail::getCUDAHooks().versionCUDART();
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
#else
  return "";
#endif
}

/// The version that the kernel's module tells, whatever this program was built with.
std::string driver_version() {
  std::ifstream file("/sys/module/nvidia/version");
  std::string version;
  std::getline(file, version);
  return version;
}

/// Ordered pairs of GPUs of which the first reads the second one's memory directly.
int direct_gpu_pairs([[maybe_unused]] int gpus) {
  int pairs = 0;
#ifdef FL_TORCH_CUDA
  for (int from = 0; from < gpus; ++from) {
    for (int to = 0; to < gpus; ++to) {
      if (from == to) continue;
      const bool is_direct = at::cuda::canDeviceAccessPeer(static_cast<c10::DeviceIndex>(from),
                                                           static_cast<c10::DeviceIndex>(to));
      pairs += is_direct ? 1 : 0;
    }
  }
#endif
  return pairs;
}

/// Whether the variable is one of those that making a group sets (nccl_variables()).
bool is_set_here(std::string_view name, std::string_view value) {
  return std::ranges::any_of(nccl_variables(std::chrono::seconds(1)), [&](const NcclVariable& own) {
    return name == own.name && (own.overwrites || value == own.value);
  });
}

std::string gpu_name() {
#ifdef FL_TORCH_CUDA
  if (torch::cuda::is_available()) return at::cuda::getDeviceProperties(0)->name;
#endif
  return "";
}

}  // namespace

RankFacts facts_of(const SitePlace& place, const std::string& device) {
  RankFacts facts;
  facts.rank = place.rank;
  facts.host = host_name();
  facts.local_size = place.local_size;
  facts.cores = place.cores > 0 ? cores_of(place) * place.local_size : this_machine().cores;
  facts.memory_bytes = static_cast<double>(this_machine().memory_bytes);
  facts.gpus = static_cast<int>(torch::cuda::device_count());
  facts.gpu = gpu_name();
  const auto own = gpu_of(device, place);
  facts.takes_gpu = own.has_value();
  facts.gpu_address = gpu_address(own.value_or(-1));
  facts.gpu_pairs = direct_gpu_pairs(facts.gpus);
  facts.interface = place.interface;
  if (!leads_here(facts.host))
    facts.name_leads_to = is_loopback(facts.host) ? "this machine alone" : "no address of it";
  facts.torch = TORCH_VERSION;
  facts.cuda = cuda_version();
  facts.driver = driver_version();
  facts.nccl = nccl_version();
  facts.has_nccl = has_nccl();
  std::error_code none;
  const std::filesystem::directory_iterator adapters("/sys/class/infiniband", none);
  facts.infiniband = !none && adapters != std::filesystem::directory_iterator();
  facts.clock_s = Clock::unix_seconds();
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const bool is_ours =
        text.starts_with("NCCL_") || text.starts_with("GLOO_") || text.starts_with("TORCH_NCCL_");
    if (!is_ours) continue;
    const auto equals = text.find('=');
    const std::string_view name = text.substr(0, equals);
    if (!is_set_here(name, text.substr(equals + 1)))
      facts.variables[std::string(name)] = text.substr(equals + 1);
  }
  return facts;
}

SiteMeasurement measure_site(Ranks& ranks) {
  SiteMeasurement measured;
  const Links links = measure_links(ranks);
  measured.latency_s = links.latency_s;
  measured.bytes_per_s = links.bytes_per_s;
  for (const std::int64_t bytes : sizes) measured.sums.push_back(time_sum(bytes, ranks));
  const Nodes nodes = find_nodes(host_name(), ranks);
  measured.topology = choose_topology(4 << 20, nodes, links).name;
  return measured;
}

}  // namespace fl::site
