// "synthetic:N": a model of one tensor of N values that learns nothing. Its updates are standard
// Gaussian noise at memory speed, so that a whole federation can be measured and tested without
// data, libtorch or time to train.
#pragma once

#include "client/learn/trainer.hpp"

namespace fl {

inline constexpr std::uint64_t synthetic_examples = 1000;

/// `model` is "synthetic:N". train() takes one step: element i of round r's update is element i of
/// kernels().gaussian(mix_seeds(settings.seed, client_seed), r). It has nothing to evaluate.
[[nodiscard]] Result<std::unique_ptr<Trainer>> make_synthetic_trainer(std::string_view model,
                                                                      std::uint64_t client_seed);

}  // namespace fl
