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
  Window& window = found->second;
  if (now - window.since >= limits_.window) {
    keep_left_out(counted, window);
    window = {now};
  }
  return ++window.lines <= limits_.lines_max;
}

std::vector<LineLimit::LeftOut> LineLimit::take_left_out(TimePoint now) {
  const MutexLock lock(mutex_);
  for (auto entry = windows_.begin(); entry != windows_.end();) {
    const auto& [kind, window] = *entry;
    const bool is_over = now - window.since >= limits_.window;
    if (is_over) keep_left_out(kind, window);
    entry = is_over ? windows_.erase(entry) : std::next(entry);
  }
  std::vector<LeftOut> left_out;
  for (const auto& [kind, lines] : left_out_) left_out.push_back({kind, lines});
  left_out_.clear();
  return left_out;
}

void LineLimit::put_back(const std::vector<LeftOut>& left_out) {
  const MutexLock lock(mutex_);
  for (const LeftOut& of : left_out) add_left_out(of);
}

void LineLimit::keep_left_out(const std::string& kind, const Window& window) {
  if (window.lines > limits_.lines_max) add_left_out({kind, window.lines - limits_.lines_max});
}

void LineLimit::add_left_out(const LeftOut& of) {
  const bool is_known = left_out_.contains(of.kind) || left_out_.size() < limits_.kinds_max;
  left_out_[is_known ? of.kind : "other lines"] += of.lines;
}

std::string to_string(const LineLimit::LeftOut& left_out) {
  return fmt::format("{}: {} more within {} s", left_out.kind, left_out.lines,
                     std::chrono::seconds(limits::lines_window).count());
}

}  // namespace fl
