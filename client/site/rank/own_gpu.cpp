// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/own_gpu.hpp"

#include "shared/base/environment.hpp"

#include <torch/cuda.h>

#ifdef FL_TORCH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <fmt/format.h>
#endif

namespace fl {

int gpu_of(const SitePlace& place, int gpus, bool is_shown_some) {
  return is_shown_some && gpus == 1 ? 0 : place.local_rank;
}

int gpu_of(const SitePlace& place) {
  return gpu_of(place, static_cast<int>(torch::cuda::device_count()),
                system_environment()("CUDA_VISIBLE_DEVICES").has_value());
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

}  // namespace fl
