// SPDX-License-Identifier: Apache-2.0
// The device of --device. Only the files of fl_client_learn_torch include this header, because it
// brings libtorch's headers. Any thread.
#pragma once

#include "shared/base/error.hpp"

#include <torch/types.h>

#include <string>

namespace fl {

/// "cpu", "cuda", "cuda:N" or "auto". Errors: invalid_input for another name or a device that is
/// not there.
[[nodiscard]] Result<torch::Device> find_device(const std::string& name);

}  // namespace fl
