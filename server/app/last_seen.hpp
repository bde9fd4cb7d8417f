// SPDX-License-Identifier: Apache-2.0
// When members were last here, in the history: the commands read it there, beside the server.
#pragma once

#include "server/history/history_changes.hpp"
#include "server/history/store_thread.hpp"
#include "server/round/engines.hpp"

#include <atomic>
#include <memory>

namespace fl::server {

/// Records every limits::last_seen_pace which members are here, in a run or waiting for one, until
/// `stop` is set. On the engines' strand.
[[nodiscard]] Awaitable<void> keep_last_seen(const Engines& engines, StoreThread& store,
                                             HistoryChanges& changes,
                                             std::shared_ptr<std::atomic<bool>> stop);

}  // namespace fl::server
