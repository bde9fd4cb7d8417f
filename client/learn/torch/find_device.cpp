// SPDX-License-Identifier: Apache-2.0
#include "client/learn/torch/find_device.hpp"

#include "client/learn/torch_devices.hpp"

#include <fmt/format.h>
#include <torch/cuda.h>

namespace fl {

Result<torch::Device> find_device(const std::string& name) {
  if (name == "cpu") return torch::Device(torch::kCPU);
  const bool is_cuda = name == "cuda" || name.starts_with("cuda:");
  if (!is_cuda && name != "auto") {
    return Error(Errc::invalid_input,
                 fmt::format("unknown device \"{}\"; use one of: cpu, cuda, cuda:N, auto", name));
  }
  if (torch::cuda::is_available()) {
    const auto number = gpu_number(name);
    const auto devices = static_cast<int>(torch::cuda::device_count());
    if (number && *number >= devices) {
      return Error(Errc::invalid_input,
                   fmt::format("device \"{}\": there are {} CUDA devices", name, devices));
    }
    return number ? torch::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(*number))
                  : torch::Device(torch::kCUDA);
  }
  if (name == "auto") return torch::Device(torch::kCPU);
  return Error(Errc::invalid_input,
               "device \"cuda\": libtorch finds no CUDA device (no GPU, no driver, or a libtorch "
               "without CUDA); use cpu");
}

}  // namespace fl
