// SPDX-License-Identifier: Apache-2.0
#include "server/history/store_thread.hpp"

#include "shared/base/log.hpp"

namespace fl::server {

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
  write_aside(
      [this, level, text = std::move(text), id = run.value_or(run_)]() -> Result<void> {
        store_.events().note(id, level, text);
        return {};
      },
      events_under_way_);
}

void StoreThread::record_audit(AuditKind kind, std::string client, std::string text) {
  write_aside(
      [this, kind, client = std::move(client), text = std::move(text)]() -> Result<void> {
        if (auto added = store_.audit().add(kind, client, text); !added)
          log_warn("this is not in the audit: {}: {}: {}", client, text, added.error().message());
        return {};
      },
      audits_under_way_);
}

/// Does not wait for room on the disk, as with_store() does.
void StoreThread::write_aside(std::function<Result<void>()> write, int& under_way) {
  if (is_closed_ || under_way >= limits::notes_under_way_max) return;
  class Recording {
   public:
    static Awaitable<void> run(const StoreThread& owner, int& count,
                               std::function<Result<void>()> work) {
      const UnderWay counted(owner, true);
      [[maybe_unused]] auto ignored = co_await owner.thread_.run(std::move(work));
      --count;
    }
  };
  ++under_way;
  group_.spawn(Recording::run(*this, under_way, std::move(write)));
}

void StoreThread::report_full_disk(std::string text) {
  report(EventLevel::warning, std::move(text));
  if (!hooks_.free_space) return;
  if (auto freed = hooks_.free_space(); !freed) hooks_.failed(freed.error());
}

}  // namespace fl::server
