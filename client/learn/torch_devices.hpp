// SPDX-License-Identifier: Apache-2.0
// The devices that libtorch finds on this machine. It trains the built-in models.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/spec/spec_text.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fl {

struct TorchDevices {
  std::string version;    // libtorch's.
  bool has_cuda = false;  // It was built with its CUDA half.
  int count = 0;          // GPUs that it can use.
};

/// Loads libtorch and asks it. Errors: invalid_input if this program was built without it; those of
/// load_torch_trainer() (torch_library.hpp).
[[nodiscard]] Result<TorchDevices> find_torch_devices();

/// The N of a device "cuda:N"; none for any other name.
[[nodiscard]] inline std::optional<std::uint8_t> gpu_number(std::string_view device) {
  constexpr std::string_view before = "cuda:";
  if (!device.starts_with(before)) return {};
  return number_in<std::uint8_t>(device.substr(before.size()));
}

}  // namespace fl
