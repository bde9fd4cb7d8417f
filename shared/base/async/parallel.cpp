// SPDX-License-Identifier: Apache-2.0
#include "shared/base/async/parallel.hpp"

#include "shared/base/machine.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

namespace fl {

int threads_for(int wanted) { return wanted > 0 ? wanted : this_machine().cores; }

Lanes::Lanes(int threads, std::uint64_t most) {
  const std::size_t count = std::min<std::uint64_t>(most, threads_for(threads));
  try {
    for (std::size_t lane = 1; lane < count; ++lane)
      others_.emplace_back(&Lanes::serve, this, lane);
  } catch (const std::system_error&) {
    // The machine gives no more threads; the ones that started do the work.
  }
}

Lanes::~Lanes() {
  {
    const MutexLock lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  for (std::thread& other : others_) other.join();
}

void Lanes::for_each_run(std::size_t count, std::size_t run, const Use& use) {
  {
    const MutexLock lock(mutex_);
    work_ = {count, run, &use};
    next_ = 0;
    if (count > run) {
      busy_ = others_.size();
      ++works_;
    }
  }
  if (count > run) changed_.notify_all();
  do_runs(0);
  const MutexLock lock(mutex_);
  while (busy_ > 0) changed_.wait(mutex_);
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Lanes::serve(std::size_t lane) {
  std::uint64_t done = 0;
  while (true) {
    {
      const MutexLock lock(mutex_);
      while (!is_over_ && works_ == done) changed_.wait(mutex_);
      if (is_over_) return;
      done = works_;
    }
    do_runs(lane);
    const MutexLock lock(mutex_);
    if (--busy_ == 0) changed_.notify_all();
  }
}

void Lanes::do_runs(std::size_t lane) {
  const auto [count, run, use] = work_;
  try {
    for (std::size_t begin = next_.fetch_add(run); begin < count; begin = next_.fetch_add(run))
      (*use)(lane, begin, std::min(count, begin + run));
  } catch (...) {
    const MutexLock lock(mutex_);
    if (!failure_) failure_ = std::current_exception();
    next_ = count;
  }
}

}  // namespace fl
