// SPDX-License-Identifier: Apache-2.0
// The GPU as `fl-client doctor` sees it: what NVIDIA's driver says, beside what libtorch can use.
#pragma once

#include "client/learn/torch_devices.hpp"
#include "shared/base/doctor.hpp"

#include <string>
#include <vector>

namespace fl::client {

struct GpuDriver {
  std::vector<std::string> names;  // One for each GPU, in the driver's order.
  std::string trouble;             // Why the driver does not work; "": it does, or there is none.
};

/// Loads the driver's library, if it is there. That needs no CUDA toolkit and no libtorch.
[[nodiscard]] GpuDriver ask_gpu_driver();

/// The line about built-in models, which train on --device `device`.
[[nodiscard]] DoctorLine gpu_line(const std::string& device, const GpuDriver& driver,
                                  const Result<TorchDevices>& torch);

}  // namespace fl::client
