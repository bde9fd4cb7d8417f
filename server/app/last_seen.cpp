// SPDX-License-Identifier: Apache-2.0
#include "server/app/last_seen.hpp"

#include "shared/base/limits.hpp"

#include <utility>

namespace fl::server {

Awaitable<void> keep_last_seen(const Engines& engines, StoreThread& store, HistoryChanges& changes,
                               std::shared_ptr<std::atomic<bool>> stop) {
  std::uint64_t changes_seen = 0;
  TimePoint next = Clock::now();
  while (!*stop) {
    co_await changes.wait(changes_seen);
    if (Clock::now() < next) continue;
    next = Clock::now() + limits::last_seen_pace;
    auto here = engines.newest()->view().present();
    if (here.empty()) continue;
    auto write = [here = std::move(here)](Store& to) { return to.members().touch(here); };
    [[maybe_unused]] const auto written = co_await store.with_store(std::move(write));
  }
}

}  // namespace fl::server
