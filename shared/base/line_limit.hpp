// SPDX-License-Identifier: Apache-2.0
// A limit on lines of the log, or events, that a peer can cause as often as it likes. Of each kind
// the first few in a window pass; the others are counted, and the count is told when the window has
// ended. Any thread.
#pragma once

#include "shared/base/async/clock.hpp"
#include "shared/base/async/mutex.hpp"
#include "shared/base/limits.hpp"

#include <map>
#include <string>
#include <vector>

namespace fl {

class LineLimit {
 public:
  struct Limits {
    int lines_max = limits::lines_of_kind_max;
    Duration window = limits::lines_window;
    std::size_t kinds_max = limits::line_kinds_max;
  };
  LineLimit() : LineLimit(Limits()) {}
  explicit LineLimit(const Limits& limits) : limits_(limits) {}

  /// Whether a line of this kind may be written now. Beyond kinds_max kinds all others are one
  /// kind.
  [[nodiscard]] bool passes(const std::string& kind, TimePoint now = Clock::now());

  struct LeftOut {
    std::string kind;
    int lines = 0;
  };
  /// Returns the number of lines that were left out in windows that have ended since the last call.
  [[nodiscard]] std::vector<LeftOut> take_left_out(TimePoint now = Clock::now());
  /// Takes back counts that could not be reported: the next take_left_out() returns them again,
  /// added up by kind.
  void put_back(const std::vector<LeftOut>& left_out);

 private:
  struct Window {
    TimePoint since;
    int lines = 0;
  };

  void keep_left_out(const std::string& kind, const Window& window) FL_REQUIRES(mutex_);
  void add_left_out(const LeftOut& of) FL_REQUIRES(mutex_);

  const Limits limits_;
  Mutex mutex_;
  std::map<std::string, Window> windows_ FL_GUARDED_BY(mutex_);
  /// Lines of windows that have ended, by kind.
  std::map<std::string, int> left_out_ FL_GUARDED_BY(mutex_);
};

/// The line that tells a count: "KIND: 12 more within 60 s".
[[nodiscard]] std::string to_string(const LineLimit::LeftOut& left_out);

}  // namespace fl
