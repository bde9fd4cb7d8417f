// SPDX-License-Identifier: Apache-2.0
// The devices that libtorch finds on this machine. It trains the built-in models.
#pragma once

#include "shared/base/error.hpp"

#include <string>

namespace fl {

struct TorchDevices {
  std::string version;    // libtorch's.
  bool has_cuda = false;  // It was built with its CUDA half.
  int count = 0;          // GPUs that it can use.
};

/// Loads libtorch and asks it. Errors: invalid_input if this program was built without it; those of
/// load_torch_trainer() (torch_library.hpp).
[[nodiscard]] Result<TorchDevices> find_torch_devices();

}  // namespace fl
