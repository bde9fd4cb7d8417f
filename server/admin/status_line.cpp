// SPDX-License-Identifier: Apache-2.0
#include "server/admin/status_line.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>

namespace fl::server {

namespace {

std::string format_left(double left) {
  if (left < 90) return fmt::format("{:.0f} s", left);
  if (left < 5400) return fmt::format("{:.0f} min", left / 60);
  return fmt::format("{:.1f} h", left / 3600);
}

std::size_t terminal_columns() {
  winsize size{};
  const bool is_known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? size.ws_col : 80;
}

}  // namespace

std::string format_status(const EngineStatus& status) {
  std::string line =
      fmt::format("round {}/{} · {}", status.round, status.rounds_total, status.phase);
  if (status.asked > 0) line += fmt::format(" {} of {}", status.accepted, status.asked);
  line += fmt::format(" · {} client{} · up {:.1f} MB, down {:.1f} MB", status.clients,
                      status.clients == 1 ? "" : "s", static_cast<double>(status.bytes_up) / 1e6,
                      static_cast<double>(status.bytes_down) / 1e6);
  for (const MetricFigure& figure : status.metrics)
    if (figure.name == status.metric)
      line += fmt::format(" · {} {}{}", figure.name, figure.is_exact ? "" : "~",
                          metric_text(figure.name, figure.value));
  if (status.round_seconds > 0 && status.rounds_total >= status.round) {
    line += " · " +
            format_left(status.round_seconds *
                        (status.rounds_total - status.round + (status.asked > 0 ? 1 : 0))) +
            " left";
  }
  return line;
}

std::string cut_to_columns(const std::string& line, std::size_t columns) {
  const auto begins_character = [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  };
  std::size_t seen = 0;
  std::size_t last = 0;  // The byte at which the character in the last column begins.
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (!begins_character(line[i])) continue;
    if (++seen == columns) last = i;
    if (seen > columns) return line.substr(0, last) + "…";
  }
  return line;
}

Awaitable<void> show_status(const Engines& engines, std::shared_ptr<std::atomic<bool>> stop) {
  while (!*stop) {
    const std::string line = format_status(engines.newest()->view().status());
    // Leaves the last column free, as some terminals wrap when it is written to.
    fmt::print(stderr, "\r\033[K{}", cut_to_columns(line, terminal_columns() - 1));
    std::fflush(stderr);
    co_await sleep_for(std::chrono::milliseconds(500));
  }
  fmt::print(stderr, "\r\033[K");
}

}  // namespace fl::server
