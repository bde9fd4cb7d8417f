// SPDX-License-Identifier: Apache-2.0
#include "shared/base/line_limit.hpp"

#include <fmt/format.h>

#include <chrono>

namespace fl {

bool LineLimit::passes(const std::string& kind, TimePoint now) {
  const MutexLock lock(mutex_);
  const bool is_known = windows_.contains(kind) || windows_.size() < limits_.kinds_max;
  const std::string& counted = is_known ? kind : std::string("other lines");
  const auto [found, is_new] = windows_.try_emplace(counted, Window{now});
  return ++found->second.lines <= limits_.lines_max;
}

std::vector<LineLimit::LeftOut> LineLimit::take_left_out(TimePoint now) {
  const MutexLock lock(mutex_);
  std::vector<LeftOut> left_out;
  for (const auto& [kind, lines] : put_back_) left_out.push_back({kind, lines});
  put_back_.clear();
  std::erase_if(windows_, [&](const auto& entry) {
    const Window& window = entry.second;
    if (now - window.since < limits_.window) return false;
    if (window.lines > limits_.lines_max)
      left_out.push_back({entry.first, window.lines - limits_.lines_max});
    return true;
  });
  return left_out;
}

void LineLimit::put_back(const std::vector<LeftOut>& left_out) {
  const MutexLock lock(mutex_);
  for (const LeftOut& of : left_out) {
    const bool is_known = put_back_.contains(of.kind) || put_back_.size() < limits_.kinds_max;
    put_back_[is_known ? of.kind : "other lines"] += of.lines;
  }
}

std::string to_string(const LineLimit::LeftOut& left_out) {
  return fmt::format("{}: {} more within {} s", left_out.kind, left_out.lines,
                     std::chrono::seconds(limits::lines_window).count());
}

}  // namespace fl
