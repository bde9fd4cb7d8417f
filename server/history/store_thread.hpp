// SPDX-License-Identifier: Apache-2.0
// The way to the Store for everything that runs on a strand: each call runs on the one thread that
// uses the Store, waits while the disk is full or another program holds the database, and comes
// back to the strand. An engine has one of these; the server has another for what is not of a run
// (admission, the loop over the runs). They share the Store and its thread.
//
// On its strand, but for ask(), executor() and what is said below.
#pragma once

#include "server/history/store.hpp"
#include "shared/base/async/offload.hpp"
#include "shared/base/async/task_group.hpp"
#include "shared/base/io/written_mappings.hpp"
#include "shared/base/limits.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace fl::server {

class StoreThread {
 public:
  /// Why calls wait for the disk or the database, and how many do. All that use one Store share
  /// one, so that a pause is reported once, and each of them can say that there is one.
  struct Pause {
    std::string why;  // In words for people; "" when none waits.
    int calls = 0;
    int calls_under_way = 0;   // With those that do not wait for that.
    int events_under_way = 0;  // Those of them that write rows of events or of the audit.
  };
  struct Hooks {
    /// The database or the disk is broken. The Store answers every later call with this error.
    std::function<void(const Error&)> failed;
    /// Frees what can be freed on a full disk. May be empty.
    std::function<Result<void>()> free_space = {};
  };

  /// `run`: what events belong to, unless they say otherwise; 0: to no run. `thread` has one
  /// thread, the only one that calls `store`. `pause` is shared by all on the same strand and
  /// Store.
  StoreThread(net::any_io_executor strand, Store& store, Offload& thread, RunId run, Hooks hooks,
              std::shared_ptr<Pause> pause = std::make_shared<Pause>());

  [[nodiscard]] net::any_io_executor executor() const { return strand_; }

  /// Runs `work(store)` on the store's thread. While the disk is full, or another program holds the
  /// database, it waits and tries again, until stop(). Other errors come back.
  template <class Function>
  Awaitable<std::invoke_result_t<Function&, Store&>> with_store(Function work);
  /// with_store() from any strand.
  template <class Function>
  Awaitable<std::invoke_result_t<Function&, Store&>> ask(Function work) {
    co_return co_await on(strand_, with_store(std::move(work)));
  }
  /// Runs `work()` on `workers`. While the disk is full, or too many files are open, it waits and
  /// tries again, until stop().
  template <class Function>
  Awaitable<std::invoke_result_t<Function&>> with_room(Offload& workers, Function work);

  /// A line in the log, and an event in the history.
  void report(EventLevel level, std::string text, std::optional<RunId> run = std::nullopt);
  /// An event in the history only. It is left out when limits::notes_under_way_max are on their
  /// way, and after close(): then the log alone has it.
  void record_event(EventLevel level, std::string text, std::optional<RunId> run = std::nullopt);
  /// A row of the audit (Audit::add). It is left out like an event.
  void record_audit(AuditKind kind, std::string client, std::string text);
  /// Reports it, and frees what can be freed.
  void report_full_disk(std::string text);

  /// Why calls wait for the disk or the database, in words for people; "" when none does.
  [[nodiscard]] std::string why_paused() const {
    return pause_->why.empty() && a_written_page_waits() ? full_disk : pause_->why;
  }

  /// Calls of the Store that have not come back yet, of all that use it; and those of them that
  /// write events or rows of the audit.
  [[nodiscard]] std::size_t calls_under_way() const {
    return static_cast<std::size_t>(pause_->calls_under_way);
  }
  [[nodiscard]] std::size_t events_under_way() const {
    return static_cast<std::size_t>(pause_->events_under_way);
  }

  /// Calls that wait return their error from now on.
  void stop() { is_stopped_ = true; }
  /// No event is recorded from now on.
  void close() { is_closed_ = true; }
  /// Waits for the events that are on their way.
  Awaitable<void> join() { return group_.join(); }

 private:
  static constexpr const char* full_disk = "paused, the disk is full";
  class StorageWait;
  class UnderWay;
  void write_aside(std::function<Result<void>()> write, int& under_way);

  net::any_io_executor strand_;
  Store& store_;
  Offload& thread_;
  RunId run_;
  Hooks hooks_;
  /// Shared with the calls that wait: at the end of a program their frames outlive this object.
  std::shared_ptr<Pause> pause_;
  int events_under_way_ = 0;
  int audits_under_way_ = 0;  // Apart, so that events push none out.
  bool is_stopped_ = false;
  bool is_closed_ = false;
  TaskGroup group_;
};

/// One call's wait for the disk or the database. The last that goes on ends the pause.
class StoreThread::StorageWait {
 public:
  explicit StorageWait(const StoreThread& owner) : pause_(owner.pause_) {}
  ~StorageWait() {
    if (has_begun_ && --pause_->calls == 0) pause_->why.clear();
  }
  StorageWait(const StorageWait&) = delete;
  StorageWait& operator=(const StorageWait&) = delete;

  /// Begins to wait. Returns what to report, or "" when that was reported already.
  std::string begin(const Error& error) {
    pause_->calls += std::exchange(has_begun_, true) ? 0 : 1;
    const std::string why = error.code() == Errc::no_space
                                ? full_disk
                                : "paused: too many files are open, or another program holds the "
                                  "database";
    if (std::exchange(why_, why) == why || pause_->why == why) return "";
    pause_->why = why;
    return why + ": " + error.message();
  }

 private:
  std::shared_ptr<Pause> pause_;
  bool has_begun_ = false;
  std::string why_;
};

/// Counts one call of the Store while it lives.
class StoreThread::UnderWay {
 public:
  UnderWay(const StoreThread& owner, bool is_event) : pause_(owner.pause_), is_event_(is_event) {
    add(1);
  }
  ~UnderWay() { add(-1); }
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;

 private:
  void add(int calls) {
    pause_->calls_under_way += calls;
    if (is_event_) pause_->events_under_way += calls;
  }

  std::shared_ptr<Pause> pause_;
  const bool is_event_;
};

template <class Function>
Awaitable<std::invoke_result_t<Function&, Store&>> StoreThread::with_store(Function work) {
  const UnderWay counted(*this, false);
  StorageWait wait(*this);
  for (;;) {
    auto call = [this, &work] { return work(store_); };
    auto result = co_await thread_.run(std::move(call));
    if (result || !will_pass(result.error())) {
      const bool is_broken =
          !result && (result.error().code() == Errc::io || result.error().code() == Errc::corrupt);
      if (is_broken) hooks_.failed(result.error());
      co_return result;
    }
    if (std::string news = wait.begin(result.error()); !news.empty())
      report(EventLevel::warning, std::move(news));
    co_await sleep_for(limits::full_disk_pause);
    if (is_stopped_) co_return result;
  }
}

template <class Function>
Awaitable<std::invoke_result_t<Function&>> StoreThread::with_room(Offload& workers, Function work) {
  StorageWait wait(*this);
  for (;;) {
    auto call = [&work] { return work(); };
    auto result = co_await workers.run(std::move(call));
    if (result || !will_pass(result.error())) co_return result;
    std::string news = wait.begin(result.error());
    if (!news.empty() && result.error().code() == Errc::no_space) {
      report_full_disk(std::move(news));
    } else if (!news.empty()) {
      report(EventLevel::warning, std::move(news));
    }
    co_await sleep_for(limits::full_disk_pause);
    if (is_stopped_) co_return result;
  }
}

}  // namespace fl::server
