// SPDX-License-Identifier: Apache-2.0
#include "server/round/run_control.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/strand.hpp>

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
  for (const auto& left_out : lines_of_clients_.take_left_out())
    report(EventLevel::warning, to_string(left_out));
  if (lines_of_clients_.passes("events of " + client)) report(level, std::move(text));
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
