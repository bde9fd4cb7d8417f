// SPDX-License-Identifier: Apache-2.0
#include "server/history/store_thread.hpp"

#include "shared/base/log.hpp"

namespace fl {

StoreThread::StoreThread(net::any_io_executor strand, Store& store, Offload& thread, RunId run,
                         Hooks hooks, std::shared_ptr<Pause> pause)
    : strand_(std::move(strand)),
      store_(store),
      thread_(thread),
      run_(run),
      hooks_(std::move(hooks)),
      pause_(std::move(pause)),
      group_(strand_) {}

void StoreThread::report(EventLevel level, std::string text, std::optional<RunId> run) {
  log_at(level == EventLevel::error     ? LogLevel::error
         : level == EventLevel::warning ? LogLevel::warn
                                        : LogLevel::info,
         "{}", text);
  record_event(level, std::move(text), run);
}

void StoreThread::record_event(EventLevel level, std::string text, std::optional<RunId> run) {
  if (is_closed_ || events_under_way_ >= limits::notes_under_way_max) return;
  // An event is not worth waiting for room on the disk, as with_store() does.
  auto write = [this, level, text = std::move(text), id = run.value_or(run_)]() -> Result<void> {
    note_event(store_, id, level, text);
    return {};
  };
  class Recording {
   public:
    static Awaitable<void> run(Offload& thread, int& under_way, decltype(write) work) {
      [[maybe_unused]] auto ignored = co_await thread.run(std::move(work));
      --under_way;
    }
  };
  ++events_under_way_;
  group_.spawn(Recording::run(thread_, events_under_way_, std::move(write)));
}

void StoreThread::disk_is_full(std::string text) {
  report(EventLevel::warning, std::move(text));
  if (!hooks_.free_space) return;
  if (auto freed = hooks_.free_space(); !freed) hooks_.failed(freed.error());
}

}  // namespace fl
