// SPDX-License-Identifier: Apache-2.0
// KeptMoments: the state of a client's optimizer on its disk, from round to round (--keep-moments).
// Ranks that each step a part of the parameters keep a file each; any other division of them finds
// its part in those files. One thread at a time.
#pragma once

#include "client/learn/torch/held_parameters.hpp"
#include "client/learn/torch/round_files.hpp"
#include "shared/base/error.hpp"
#include "shared/base/io/file.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace fl {

/// What an optimizer has from the steps before. Vectors that it does not use are empty; the others
/// have as many values as the optimizer steps parameters.
struct Moments {
  std::vector<float> first;   // Momentum, or Adam's first moment.
  std::vector<float> second;  // Adam's second moment.
  std::uint64_t steps = 0;    // Less than 2^48.
};

class KeptMoments {
 public:
  /// A rank's part, and how many there are.
  struct Part {
    std::int64_t number = 0;
    std::int64_t parts = 1;
  };
  /// Without a part it keeps those of all parameters. `folder` must exist.
  KeptMoments(Files& files, std::filesystem::path folder, std::optional<Part> part = {});

  /// Those after the newest round before `round` in this run, of these stretches of the model's
  /// vector, from all files that are here; empty if they don't have all of them. `elements`: of the
  /// part in which the pieces lie. Errors: those of the disk, and corrupt, which name the file.
  [[nodiscard]] Result<Moments> before(const std::string& run_key, std::uint32_t round,
                                       const std::vector<Piece>& pieces, std::int64_t elements);
  /// Writes those after `round`, and removes this part's files of other runs and of rounds long
  /// ago; the first part also removes those of ranks that there are no more. Durable.
  [[nodiscard]] Result<void> keep(const std::string& run_key, std::uint32_t round,
                                  const Moments& moments, const std::vector<Piece>& pieces);

 private:
  [[nodiscard]] RoundFiles files_of(const std::string& name) const;
  [[nodiscard]] Result<std::vector<std::string>> names() const;
  [[nodiscard]] Result<void> remove_surplus() const;

  Files& files_;
  std::filesystem::path folder_;
  std::optional<Part> part_;
  std::string name_;
};

}  // namespace fl
