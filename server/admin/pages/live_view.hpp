// SPDX-License-Identifier: Apache-2.0
// Makes the text of /api/status and of the stream of events from what the engine shows: one small
// JSON object, whatever the number of clients. Keeps the sample before, from which speeds come.
// One strand at a time.
#pragma once

#include "server/admin/pages/alerts.hpp"
#include "server/history/page_records.hpp"
#include "shared/base/async/clock.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace fl::server {

class LiveView {
 public:
  /// Times in the text are Unix seconds without a fraction, and it has no "now": it changes only
  /// when something else does.
  [[nodiscard]] std::string text(const LiveStatus& live, const NewestRows& rows, HostFacts host,
                                 TimePoint now);

 private:
  struct Sample {
    TimePoint at{};
    std::uint64_t up = 0;
    std::uint64_t down = 0;
    std::string run;
  };
  /// Bytes a second of both directions since the sample before.
  [[nodiscard]] std::pair<double, double> speeds(const EngineStatus& status, TimePoint now);

  std::optional<Sample> before_;
  std::pair<double, double> speeds_;
};

/// "away", "idle", "training"…
[[nodiscard]] std::string_view to_text(Activity activity);

/// Whether a transfer will end in time, at its speed so far.
enum class Risk { none, some, late };
struct Forecast {
  double per_s = 0;
  std::optional<double> left_s;  // None: no byte has come yet.
  std::optional<Risk> risk;      // None: there is no deadline, or no byte has come.
};
[[nodiscard]] Forecast forecast(const TransferStatus& transfer);

}  // namespace fl::server
