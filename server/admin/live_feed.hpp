// SPDX-License-Identifier: Apache-2.0
// The newest state for those who watch it live. Nobody is sent anything: a stream asks for the
// newest state when the other end has taken the last one. So a slow or stopped browser holds at
// most one message back, gets the newest state when it goes on, and the engine never waits for it.
// However many watch, the engine and the history are asked at most once in each
// limits::admin_stream_beat; without watchers, never. Any strand may call newest().
#pragma once

#include "server/admin/admin_history.hpp"
#include "server/admin/pages/live_view.hpp"
#include "server/round/engines.hpp"
#include "shared/base/async/clock.hpp"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace fl::server {

class LiveFeed {
 public:
  /// `state`: the folder of the disk whose free space is told.
  LiveFeed(net::any_io_executor strand, const Engines& engines, AdminHistory& history,
           std::filesystem::path state)
      : strand_(std::move(strand)),
        engines_(engines),
        history_(history),
        state_(std::move(state)) {}

  struct News {
    std::uint64_t number = 0;                 // Another number means that the text has changed.
    std::shared_ptr<const std::string> text;  // JSON on one line; null: nothing is known yet.
  };
  /// The state, at most limits::admin_stream_beat old.
  Awaitable<News> newest();
  /// How often the engine was asked, for tests.
  [[nodiscard]] std::uint64_t looks() const { return looks_; }

 private:
  Awaitable<News> refresh();

  net::any_io_executor strand_;
  const Engines& engines_;
  AdminHistory& history_;
  std::filesystem::path state_;
  // Used on the strand.
  LiveView view_;
  News news_;
  TimePoint taken_at_{};
  std::shared_ptr<bool> is_looking_ = std::make_shared<bool>(false);
  std::uint64_t looks_ = 0;
};

/// A message of a stream of events (HTML Standard, section 9.2): `text` has no line breaks.
[[nodiscard]] std::string event_message(std::string_view name, std::uint64_t number,
                                        std::string_view text);

}  // namespace fl::server
