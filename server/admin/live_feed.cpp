// SPDX-License-Identifier: Apache-2.0
#include "server/admin/live_feed.hpp"

#include "shared/base/limits.hpp"

#include <fmt/format.h>

#include <system_error>
#include <utility>

namespace fl::server {

namespace {

Awaitable<LiveStatus> live_status_of(std::shared_ptr<RoundEngine> engine) {
  co_return engine->view().live_status();
}

/// Sets a flag while it lives. It may outlive the feed when a program ends meanwhile.
class Looking {
 public:
  explicit Looking(std::shared_ptr<bool> flag) : flag_(std::move(flag)) { *flag_ = true; }
  ~Looking() { *flag_ = false; }
  Looking(const Looking&) = delete;
  Looking& operator=(const Looking&) = delete;

 private:
  std::shared_ptr<bool> flag_;
};

}  // namespace

Awaitable<LiveFeed::News> LiveFeed::newest() { co_return co_await on(strand_, refresh()); }

Awaitable<LiveFeed::News> LiveFeed::refresh() {
  // Another stream is asking the engine already.
  const TimePoint now = Clock::now();
  const bool is_fresh = news_.text && now - taken_at_ < limits::admin_stream_beat / 2;
  if (*is_looking_ || is_fresh) co_return news_;
  const Looking looking(is_looking_);
  ++looks_;
  const auto engine = engines_.newest();
  const LiveStatus live = co_await on(engine->executor(), live_status_of(engine));
  const auto rows = co_await history_.newest_rows();
  HostFacts host;
  host.now = Clock::unix_seconds();
  std::error_code ec;
  const auto space = std::filesystem::space(state_, ec);
  if (!ec) {
    host.disk_free = space.available;
    host.disk_bytes = space.capacity;
  }
  if (!rows) host.history_error = rows.error().message();
  taken_at_ = Clock::now();
  std::string text = view_.text(live, rows ? *rows : NewestRows{}, host, taken_at_);
  if (!news_.text || *news_.text != text)
    news_ = {news_.number + 1, std::make_shared<const std::string>(std::move(text))};
  co_return news_;
}

std::string event_message(std::string_view name, std::uint64_t number, std::string_view text) {
  return fmt::format("event: {}\nid: {}\ndata: {}\n\n", name, number, text);
}

}  // namespace fl::server
