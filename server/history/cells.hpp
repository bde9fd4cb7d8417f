// SPDX-License-Identifier: Apache-2.0
// Figures as people read them, and tables of them for a terminal. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fl::server {

using CellLine = std::vector<std::string>;
inline constexpr const char* unknown_cell = "-";

/// "999 B", "1.5 MB": units of 1000.
[[nodiscard]] std::string human_bytes(std::uint64_t bytes);
/// "12.3 s", "5 min 07 s", "1 h 02 min".
[[nodiscard]] std::string human_seconds(double seconds);
/// "2025-06-15 15:06:40". A time of 0 never was.
[[nodiscard]] std::string utc_time(double unix_seconds, const char* never = unknown_cell);
[[nodiscard]] std::string loss_text(std::optional<double> loss);
/// A value of a metric: in percent if it is a fraction; "~" stands before one that is not exact.
[[nodiscard]] std::string figure_text(std::string_view name, std::optional<double> value,
                                      bool is_exact = true);
/// Pads each column to its widest cell. The first `left` columns are aligned to the left, the
/// others to the right. There is at least one line, and no line is longer than the first. The cells
/// may have text from outside.
[[nodiscard]] std::string align_cells(std::vector<CellLine> lines, std::size_t left);

}  // namespace fl::server
