// SPDX-License-Identifier: Apache-2.0
// KeptMoments: the state of a client's optimizer on its disk, from round to round (--keep-moments).
// One thread at a time.
#pragma once

#include "client/learn/torch/round_files.hpp"
#include "shared/base/error.hpp"
#include "shared/base/io/file.hpp"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace fl {

/// What an optimizer has from the steps before. Vectors that it does not use are empty; the others
/// have as many values as the model has parameters.
struct Moments {
  std::vector<float> first;   // Momentum, or Adam's first moment.
  std::vector<float> second;  // Adam's second moment.
  std::uint64_t steps = 0;    // Less than 2^48.
};

class KeptMoments {
 public:
  KeptMoments(Files& files, std::filesystem::path folder)
      : files_(files), rounds_(files, std::move(folder), "optimizer", "safetensors") {}

  /// Those after the newest round before `round` in this run; empty if there is no file.
  /// Errors: those of the disk, and corrupt, which name the file.
  [[nodiscard]] Result<Moments> before(const std::string& run_key, std::uint32_t round);
  /// Writes those after `round`, and removes files of other runs and of rounds long ago. Durable.
  [[nodiscard]] Result<void> keep(const std::string& run_key, std::uint32_t round,
                                  const Moments& moments);

 private:
  Files& files_;
  RoundFiles rounds_;
};

}  // namespace fl
