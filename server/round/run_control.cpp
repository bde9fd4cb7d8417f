// SPDX-License-Identifier: Apache-2.0
#include "server/round/run_control.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/strand.hpp>

#include <utility>

namespace fl::server {

void RunControl::stop() {
  is_stopping_ = true;
  store.stop();
  changed.notify();
}

void RunControl::fail(const Error& error) {
  if (!failure_) {
    failure_ = error;
    log_error("stopping: {}", error.message());
  }
  stop();
}

void RunControl::end() {
  has_ended_ = true;
  store.close();
  changed.notify();
}

void RunControl::set_restored() {
  is_restored_ = true;
  changed.notify();
}

void RunControl::expect_strand() const {
  using IoStrand = net::strand<net::io_context::executor_type>;
  const auto* const strand = strand_.target<IoStrand>();
  if (strand != nullptr && !strand->running_in_this_thread()) ++calls_off_strand_;
}

void RunControl::report_of(const std::string& client, EventLevel level, std::string text) {
  if (level == EventLevel::warning || level == EventLevel::error) note_trouble(client, text);
  if (lines_of_clients_.passes("events of " + client)) {
    report(level, std::move(text));
    return;
  }
  has_left_out_ = true;
  if (!is_going_down() && !std::exchange(tells_left_out_, true)) group.spawn(tell_left_out());
}

/// Reports how many lines were left out, window after window, until a whole one has left out none;
/// at the end of the run all at once.
Awaitable<void> RunControl::tell_left_out() {
  while (has_left_out_ && !is_going_down()) {
    has_left_out_ = false;
    const TimePoint until = Clock::now() + limits::lines_window;
    while (!is_going_down() && Clock::now() < until) co_await changed.wait(until);
    const TimePoint ended = is_going_down() ? until + limits::lines_window : until;
    for (const auto& left_out : lines_of_clients_.take_left_out(ended))
      report(EventLevel::warning, to_string(left_out));
  }
  tells_left_out_ = false;
}

void RunControl::note_trouble(const std::string& client, const std::string& text) {
  if (troubles_.size() >= limits::troubles_max && !troubles_.contains(client)) return;
  troubles_[client] = {text, Clock::unix_seconds()};
}

const RunControl::Trouble* RunControl::trouble_of(const std::string& client) const {
  const auto found = troubles_.find(client);
  return found != troubles_.end() ? &found->second : nullptr;
}

}  // namespace fl::server
