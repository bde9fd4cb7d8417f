// SPDX-License-Identifier: Apache-2.0
#include "server/history/cells.hpp"

#include "shared/base/printable.hpp"
#include "shared/params/metric.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>

namespace fl::server {

namespace {

std::string accuracy_text(std::optional<double> accuracy) {
  return accuracy ? fmt::format("{:.2f} %", 100 * *accuracy) : unknown_cell;
}

/// The columns that a text takes in a terminal: as many as it has UTF-8 characters. This is good
/// enough for names.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

}  // namespace

std::string human_bytes(std::uint64_t bytes) {
  constexpr std::array units{"kB", "MB", "GB", "TB", "PB", "EB"};
  if (bytes < 1000) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1000;
  std::size_t unit = 0;
  // 999.95 would be printed as 1000.0: it belongs to the next unit.
  for (; value >= 999.95 && unit + 1 < units.size(); ++unit) value /= 1000;
  return fmt::format("{:.1f} {}", value, units[unit]);
}

std::string human_seconds(double seconds) {
  if (!std::isfinite(seconds)) return unknown_cell;
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = std::llround(seconds);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

std::string utc_time(double unix_seconds, const char* never) {
  if (unix_seconds == 0 || !std::isfinite(unix_seconds)) return never;
  const auto whole = static_cast<std::time_t>(std::floor(unix_seconds));
  std::tm parts{};
  if (::gmtime_r(&whole, &parts) == nullptr) return never;
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", parts);
}

std::string loss_text(std::optional<double> loss) {
  return loss ? fmt::format("{:.4f}", *loss) : unknown_cell;
}

std::string figure_text(std::string_view name, std::optional<double> value, bool is_exact) {
  if (!value) return unknown_cell;
  if (name.starts_with(own_prefix)) name.remove_prefix(own_prefix.size());
  const KnownMetric* const known = find_known_metric(name);
  const std::string text =
      known != nullptr && known->is_fraction ? accuracy_text(value) : metric_text(name, *value);
  return (is_exact ? "" : "~") + text;
}

std::string align_cells(std::vector<CellLine> lines, std::size_t left) {
  std::vector<std::size_t> widths(lines.front().size(), 0);
  for (CellLine& line : lines) {
    for (std::string& cell : line) cell = printable(cell);
  }
  for (const CellLine& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i)
      widths[i] = std::max(widths[i], width_of(line[i]));
  }
  std::string text;
  for (const CellLine& line : lines) {
    std::string row;
    for (std::size_t i = 0; i < line.size(); ++i) {
      const std::string padding(widths[i] - width_of(line[i]), ' ');
      if (i > 0) row += "  ";
      row += i < left ? line[i] + padding : padding + line[i];
    }
    row.erase(row.find_last_not_of(' ') + 1);
    text += row + "\n";
  }
  return text;
}

}  // namespace fl::server
