// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/own_gpu.hpp"

#include "client/learn/torch_devices.hpp"
#include "shared/base/environment.hpp"

#include <fmt/format.h>
#include <torch/cuda.h>

#ifdef FL_TORCH_CUDA
#include <ATen/cuda/CUDAContext.h>
#endif

namespace fl::site {

std::optional<int> gpu_of(const std::string& device, const SitePlace& place, int gpus,
                          bool is_shown_some) {
  if (device == "cpu" || gpus == 0) return {};
  if (device.starts_with("cuda:")) return gpu_number(device);
  return is_shown_some && gpus == 1 ? 0 : place.local_rank;
}

std::optional<int> gpu_of(const std::string& device, const SitePlace& place) {
  return gpu_of(device, place, static_cast<int>(torch::cuda::device_count()),
                system_environment()("CUDA_VISIBLE_DEVICES").has_value());
}

Result<void> check_gpu(const std::string& device, const SitePlace& place) {
  const auto gpu = gpu_of(device, place);
  const auto count = static_cast<int>(torch::cuda::device_count());
  if (!gpu || *gpu < count) return {};
  return Error(
      Errc::invalid_input,
      fmt::format("rank {} of {} on this machine would train on GPU {}, but libtorch finds "
                  "{}: start one rank a GPU, or all with --device cpu",
                  place.local_rank, place.local_size, *gpu, count));
}

std::string gpu_address([[maybe_unused]] int number) {
#ifdef FL_TORCH_CUDA
  if (number >= 0 && number < static_cast<int>(torch::cuda::device_count())) {
    const auto& gpu = *at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(number));
    return fmt::format("{:08X}:{:02X}:{:02X}", gpu.pciDomainID, gpu.pciBusID, gpu.pciDeviceID);
  }
#endif
  return "";
}

}  // namespace fl::site
