// SPDX-License-Identifier: Apache-2.0
// A run as a picture: its main metric and its losses over rounds, over time and over bytes, in one
// SVG file. Text stays text, for screen readers and for search; colors follow the reader's light or
// dark theme. Pure functions; any thread.
#pragma once

#include "server/history/records.hpp"
#include "shared/base/error.hpp"

#include <string>
#include <vector>

namespace fl::server {

/// `rounds` are those of the run, in order. Time is that of the rounds: a server that was stopped
/// between two of them adds nothing. Errors: not_found, if there is nothing to draw.
[[nodiscard]] Result<std::string> plot_svg(const RunRecord& run,
                                           const std::vector<RoundSummary>& rounds);

}  // namespace fl::server
