// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/conductor.hpp"

#include "shared/base/error.hpp"
#include "shared/base/limits.hpp"

#include <future>
#include <utility>

namespace fl::site {

Conductor::Conductor(Ranks& ranks) : ranks_(ranks), thread_([this] { loop(); }) {}

Conductor::~Conductor() {
  {
    const MutexLock lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Conductor::start(Work work, Done done) {
  FL_ASSERT(std::this_thread::get_id() != thread_.get_id());  // The thread would wait for itself.
  const MutexLock lock(mutex_);
  while (queue_.size() >= limits::tensors_max) changed_.wait(mutex_);
  queue_.push_back({.work = std::move(work), .done = std::move(done), .is_too_late = false});
  changed_.notify_all();
}

void Conductor::run(const Work& work) {
  std::promise<void> ended;
  start(work, [&ended](const std::exception_ptr& error) {
    if (error)
      ended.set_exception(error);
    else
      ended.set_value();
  });
  ended.get_future().get();
}

/// Waits for work. None: the conductor ends.
std::optional<Conductor::Item> Conductor::next() {
  const MutexLock lock(mutex_);
  while (queue_.empty()) {
    if (is_ending_) return std::nullopt;
    changed_.wait(mutex_);
  }
  Item item = std::move(queue_.front());
  queue_.pop_front();
  item.is_too_late = is_ending_;
  changed_.notify_all();
  return item;
}

void Conductor::loop() {
  while (auto item = next()) {
    std::exception_ptr error;
    try {
      if (item->is_too_late)
        throw RankFailure("queued work", -1, "the group's conductor is ending");
      item->work(ranks_);
    } catch (...) {
      error = std::current_exception();
    }
    item->done(error);
  }
}

}  // namespace fl::site
