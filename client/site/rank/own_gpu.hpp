// SPDX-License-Identifier: Apache-2.0
// Which GPU of its machine a rank takes. Any thread.
#pragma once

#include "client/site/site_options.hpp"
#include "shared/base/error.hpp"

#include <optional>
#include <string>

namespace fl::site {

/// The number of a rank's GPU among those that it sees; none if it trains on the CPU, as --device
/// says or because there is no GPU. A launcher such as Slurm may show each rank its own GPU alone,
/// by CUDA_VISIBLE_DEVICES. Without that, ranks that are too many for the GPUs have a number that
/// no GPU has. --device cuda:N is one GPU for all ranks of the machine.
[[nodiscard]] std::optional<int> gpu_of(const std::string& device, const SitePlace& place);
/// As above, for a rank that sees this many GPUs, with CUDA_VISIBLE_DEVICES set or not.
[[nodiscard]] std::optional<int> gpu_of(const std::string& device, const SitePlace& place, int gpus,
                                        bool is_shown_some);

/// Errors: invalid_input if there is no GPU of that number.
[[nodiscard]] Result<void> check_gpu(const std::string& device, const SitePlace& place);

/// The address on the PCI bus of GPU `number` of this process. No other GPU of the machine has it;
/// NCCL compares it, too. "" if there is no such GPU, or without CUDA.
[[nodiscard]] std::string gpu_address(int number);

}  // namespace fl::site
