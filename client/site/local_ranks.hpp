// SPDX-License-Identifier: Apache-2.0
// LocalRanks: the ranks that the agent has started on its own machine, fl-rank once for each.
#pragma once

#include "client/learn/process/child_process.hpp"
#include "client/site/site_options.hpp"
#include "shared/base/async/mutex.hpp"
#include "shared/base/error.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fl::site {

/// The place of this process in its site, if a launcher has started it (--site). It becomes a rank,
/// and this does not return, unless it is the first one. Errors: those of find_place() and of
/// reading the secret; not_found without fl-rank.
[[nodiscard]] Result<std::optional<SitePlace>> take_place(const SiteOptions& options);

/// Any thread. The ranks do not outlive this program, whatever ends it.
class LocalRanks {
 public:
  struct Options {
    std::vector<SitePlace> places;  // The ranks to start.
    std::string secret;
    double timeout_s = 60;
  };
  explicit LocalRanks(Options options) : options_(std::move(options)) {}

  /// Starts the ranks that do not run; the agent listens at `port`. A rank that has ended is
  /// started again, and the log says how it ended. Errors: unavailable.
  [[nodiscard]] Result<void> start_missing(std::uint16_t port);
  /// Says how a rank ended; "" if it runs or was not started here.
  [[nodiscard]] std::string ending_of(int rank);
  /// Ends a rank that is lost but may still run: it could be stopped or hang.
  void end(int rank);
  /// Waits for all ranks to end by themselves, and ends the others.
  void end_all();

 private:
  const Options options_;
  Mutex mutex_;
  /// For each rank that is not running: how it ended. A new start forgets them.
  std::map<int, std::string> endings_ FL_GUARDED_BY(mutex_);
  std::map<int, std::unique_ptr<ChildProcess>> ranks_ FL_GUARDED_BY(mutex_);
};

}  // namespace fl::site
