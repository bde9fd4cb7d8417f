// The live status of a server on a terminal: one line, rewritten twice a second under the log.
#pragma once

#include "server/round/current_engine.hpp"

#include <atomic>
#include <memory>
#include <string>

namespace fl {

/// "round 12/500 · 7 of 10 updates · 10 clients · up 12.3 MB, down 45.6 MB · accuracy 86.1% · 12
/// min left"
[[nodiscard]] std::string format_status(const EngineStatus& status);

/// As much of the line (UTF-8) as stands in so many columns of a terminal: a longer one would leave
/// its tail behind each time it is written anew.
[[nodiscard]] std::string cut_to_columns(const std::string& line, std::size_t columns);

/// On the engines' strand, until `stop` is set.
Awaitable<void> show_status(const CurrentEngine& current, std::shared_ptr<std::atomic<bool>> stop);

}  // namespace fl
