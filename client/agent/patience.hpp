// SPDX-License-Identifier: Apache-2.0
// How long a client tries to reach its server before it gives up.
#pragma once

#include "shared/base/async/clock.hpp"
#include "shared/base/error.hpp"

#include <fmt/format.h>

#include <string>

namespace fl::client {

struct Patience {
  double wait_s = 0;  // Since the client started, or was connected the last time; 0: for ever.
  int retries = 0;    // Attempts in a row after the first one; 0: any number.
};

/// The attempts since the server was reached the last time.
class Attempts {
 public:
  explicit Attempts(const Patience& patience) : patience_(patience) {}

  void succeeded() {
    since_ = Clock::now();
    failed_ = 0;
  }
  void failed() { ++failed_; }
  /// Whether the client gives up before the next attempt.
  [[nodiscard]] bool is_over() const {
    const bool has_tried_all = patience_.retries > 0 && failed_ > patience_.retries;
    return failed_ > 0 && (has_tried_all || Clock::now() >= latest());
  }
  /// When the client gives up at the latest.
  [[nodiscard]] TimePoint latest() const {
    if (patience_.wait_s <= 0) return never;
    return since_ + duration_of(patience_.wait_s);
  }
  /// The last line of a client that gives up.
  [[nodiscard]] std::string text(const Error& last) const {
    return fmt::format(
        "gave up after {} attempts in {:.0f} s, as --max-wait and --max-retries say: {}", failed_,
        seconds(Clock::now() - since_), last.message());
  }

 private:
  Patience patience_;
  TimePoint since_ = Clock::now();
  int failed_ = 0;
};

}  // namespace fl::client
