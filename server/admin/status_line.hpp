// SPDX-License-Identifier: Apache-2.0
// The status of a server on a terminal: one line below the log, rewritten twice a second.
#pragma once

#include "server/round/engines.hpp"

#include <atomic>
#include <memory>
#include <string>

namespace fl::server {

/// "round 12/500 · 7 of 10 updates · 10 clients · up 12.3 MB, down 45.6 MB · accuracy 86.1% · 12
/// min left"
[[nodiscard]] std::string format_status(const EngineStatus& status);

/// Cuts the line (UTF-8) to `columns` columns of a terminal. A line that wraps would leave its tail
/// behind each time it is rewritten.
[[nodiscard]] std::string cut_to_columns(const std::string& line, std::size_t columns);

/// Runs on the engines' strand until `stop` is set.
Awaitable<void> show_status(const Engines& engines, std::shared_ptr<std::atomic<bool>> stop);

}  // namespace fl::server
