// SPDX-License-Identifier: Apache-2.0
// KeptHookState: what a rank's gradient hook keeps (what compression lost so far), on the rank's
// disk from round to round, so that a round that is trained again begins with the same state. One
// thread at a time.
#pragma once

#include "client/learn/torch/round_files.hpp"
#include "client/site/rank/gradient_hook.hpp"

#include <cstdint>
#include <filesystem>
#include <string>

namespace fl::site {

class KeptHookState {
 public:
  /// `folder` must exist; `rank` is the rank's number in its site.
  KeptHookState(Files& files, const std::filesystem::path& folder, int rank)
      : files_(files), rounds_(files, folder, "hook-" + std::to_string(rank), "state") {}

  /// Reads the state after the newest round before `round`; empty if there is no file. Errors:
  /// those of the disk; corrupt, with the file.
  [[nodiscard]] Result<HookState> before(const std::string& run_key, std::uint32_t round) const;
  /// Writes the state after `round` durably.
  [[nodiscard]] Result<void> keep(const std::string& run_key, std::uint32_t round,
                                  const HookState& state) const;

 private:
  Files& files_;
  RoundFiles rounds_;
};

}  // namespace fl::site
