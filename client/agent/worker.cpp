// SPDX-License-Identifier: Apache-2.0
#include "client/agent/worker.hpp"

#include "shared/base/limits.hpp"

#include <fmt/format.h>

#include <exception>

namespace fl::client {

void Worker::start(std::int64_t task, Work work) {
  FL_ASSERT(!is_busy_);
  is_busy_ = true;
  task_ = task;
  stop_ = std::stop_source();
  group_.spawn(run(task, std::move(work), stop_.get_token()));
}

void Worker::finished() {
  FL_ASSERT(is_busy_);
  is_busy_ = false;
  task_ = 0;
}

Awaitable<void> Worker::run(std::int64_t task, Work work, std::stop_token stop) {
  auto guarded = [&work, &stop] {
    try {
      return work(stop);
    } catch (const std::exception& error) {
      JobDone failed;
      failed.result = Error(Errc::internal, fmt::format("unexpected error: {}", error.what()));
      return failed;
    }
  };
  JobDone done = co_await offload_.run(std::move(guarded));
  done.task = task;
  AgentEvent event(std::move(done));
  if (!co_await events_.push_waiting(std::move(event))) finished();
}

Awaitable<bool> Worker::end() {
  request_stop();
  while (is_busy_) {
    auto event = co_await events_.pop();
    if (!event) co_return false;
    if (std::holds_alternative<JobDone>(*event)) finished();
  }
  co_return true;
}

void Worker::pause_for_disk() { paused_until_ = Clock::now() + limits::full_disk_pause; }

}  // namespace fl::client
