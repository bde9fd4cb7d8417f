// SPDX-License-Identifier: Apache-2.0
// A masked run: the server adds up updates that it can't read (docs/design/secure-aggregation.md).
// Reads --secure-aggregation and --weights, and says which other settings fit such a run. Pure; any
// thread.
#pragma once

#include "server/run/settings.hpp"
#include "shared/base/error.hpp"

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace fl::server {

/// How the rounds of a masked run go.
struct MaskedSettings {
  static constexpr std::uint32_t attempts_max = 100;
  static constexpr double step_seconds_max = 86'400;

  /// How often a round tries to add up its updates, each time with new keys, before it gives up.
  std::uint32_t attempts = 3;
  /// The time for each step of an attempt: a member that has not answered by then is left out.
  double step_seconds = 60;
};

/// Reads "off" or "on[:attempts=3,step-seconds=60]". Returns nullopt for "off". Errors:
/// invalid_input.
[[nodiscard]] Result<std::optional<MaskedSettings>> parse_secure_aggregation(std::string_view spec);

/// Checks --weights by itself. Errors: invalid_input.
[[nodiscard]] Result<void> check_weights(std::string_view weights);
/// Whether each client counts once, instead of by its number of examples. Without --weights the
/// clients of a masked run do. Requires: parse_secure_aggregation() accepts the setting.
[[nodiscard]] bool weighs_equally(const RunSettings& settings);

/// The settings whose defaults don't fit a masked run.
inline constexpr std::string_view masked_default_flags[] = {"codec", "weights", "min-clients"};
/// Replaces these defaults, unless their flags are among the `given` ones. Returns one line for the
/// log that says what is set; "" if the run is not masked.
[[nodiscard]] std::string set_masked_defaults(RunSettings& settings,
                                              const std::set<std::string>& given);

/// Checks whether all settings fit a masked run; succeeds in any other one. Each setting must be
/// right by itself. Errors: invalid_input, naming the flag, what the server would have to read, and
/// what to use instead.
[[nodiscard]] Result<void> check_masked(const RunSettings& settings);

}  // namespace fl::server
