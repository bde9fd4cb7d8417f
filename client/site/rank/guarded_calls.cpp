// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/guarded_calls.hpp"

#include "shared/base/log.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <c10/util/Exception.h>
#include <stdexcept>
#include <thread>
#include <utility>

namespace fl::site {

namespace {

// How a wait for a GPU begins, and how it goes on: a look costs a microsecond or two.
constexpr auto spinning = std::chrono::microseconds(100);
constexpr auto pause_between_looks = std::chrono::microseconds(30);

}  // namespace

std::string reason_of(const std::exception& error) {
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
}

GuardedCalls::GuardedCalls(c10::intrusive_ptr<c10d::Backend> backend,
                           std::chrono::milliseconds timeout, std::shared_ptr<AbortSwitch> abort)
    : backend_(std::move(backend)),
      timeout_(timeout),
      polls_(backend_->getBackendName() == "nccl"),
      abort_(std::move(abort)) {
  if (abort_) hold_.emplace(*abort_, [this] { this->abort(); });
}

/// Ends the calls that wait. Any thread.
void GuardedCalls::abort() {
  try {
    backend_->abort();
  } catch (const std::exception& error) {
    // The group is lost already, and a call that still waits ends by its time limit.
    log_warn("a group of {} ranks could not be aborted: {}", backend_->getSize(), reason_of(error));
  }
}

void GuardedCalls::check_aborted() const {
  if (!abort_) return;
  if (const auto reason = abort_->reason()) throw std::runtime_error(*reason);
}

void GuardedCalls::run(const char* operation, int peer, const std::function<void()>& body) {
  if (has_failed_) throw RankFailure(operation, peer, "the group failed before");
  try {
    body();
  } catch (const std::exception& error) {
    has_failed_ = true;
    abort();  // Calls of this group that still wait, too.
    // The agent's reason names the lost rank; the error of this call only says that it was ended.
    const auto told = abort_ ? abort_->reason() : std::nullopt;
    throw RankFailure(operation, peer, told.value_or(reason_of(error)));
  }
}

void GuardedCalls::await(c10d::Work& work, int times) const {
  const auto timeout = times * timeout_;
  if (polls_) {
    poll(work, timeout);
  } else if (!work.wait(timeout)) {
    throw std::runtime_error("it was aborted");
  }
  check_aborted();
  if (work.exception()) std::rethrow_exception(work.exception());
}

/// Waits for work on a GPU. Its own wait() sleeps for 1 ms between two looks; most sums take less.
void GuardedCalls::poll(c10d::Work& work, std::chrono::milliseconds timeout) const {
  const auto begin = std::chrono::steady_clock::now();
  while (!work.isCompleted()) {
    const auto waited = std::chrono::steady_clock::now() - begin;
    if (waited > timeout) throw std::runtime_error(fmt::format("no end within {}", timeout));
    check_aborted();
    if (waited < spinning)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(pause_between_looks);
  }
  work.synchronize();
}

}  // namespace fl::site
