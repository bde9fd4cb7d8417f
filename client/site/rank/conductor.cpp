// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/conductor.hpp"

#include "shared/base/error.hpp"
#include "shared/base/limits.hpp"

#include <future>
#include <utility>

namespace fl {

Conductor::Conductor(Ranks& ranks) : ranks_(ranks), thread_([this] { loop(); }) {}

Conductor::~Conductor() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Conductor::start(Work work, Done done) {
  std::unique_lock lock(mutex_);
  FL_ASSERT(std::this_thread::get_id() != thread_.get_id());  // The thread would wait for itself.
  changed_.wait(lock, [this] { return queue_.size() < limits::tensors_max; });
  queue_.push_back({.work = std::move(work), .done = std::move(done)});
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

void Conductor::loop() {
  while (true) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_ending_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Item item = std::move(queue_.front());
    queue_.pop_front();
    const bool is_ending = is_ending_;
    lock.unlock();
    changed_.notify_all();
    std::exception_ptr error;
    try {
      if (is_ending) throw RankFailure("queued work", -1, "the group's conductor is ending");
      item.work(ranks_);
    } catch (...) {
      error = std::current_exception();
    }
    item.done(error);
  }
}

}  // namespace fl
