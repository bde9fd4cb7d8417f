// SPDX-License-Identifier: Apache-2.0
// The trainer of "synthetic:N", a model with one tensor of N values. It learns nothing: its updates
// are standard Gaussian noise, made at memory speed. So a whole federation can be measured and
// tested without data, libtorch and training time.
#pragma once

#include "client/learn/trainer.hpp"

namespace fl {

inline constexpr std::uint64_t synthetic_examples = 1000;

/// `model` is "synthetic:N". train() takes one step; element i of the update of round r is element
/// i of kernels().gaussian(mix_seeds(settings.seed, client_seed), r). There is nothing to evaluate.
[[nodiscard]] Result<std::unique_ptr<Trainer>> make_synthetic_trainer(std::string_view model,
                                                                      std::uint64_t client_seed);

}  // namespace fl
