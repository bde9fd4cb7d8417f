// SPDX-License-Identifier: Apache-2.0
#include "server/round/verdict_log.hpp"

#include "shared/base/failpoint.hpp"

#include <utility>

namespace fl::server {

Awaitable<Result<void>> VerdictLog::commit_verdicts(std::vector<TaskRecord> records) {
  control_.expect_strand();
  for (const TaskRecord& record : records) {
    FL_ASSERT(record.state != TaskState::offered);
    // After a restart the sums are made of the files that accepted tasks name.
    FL_ASSERT((record.state == TaskState::accepted) == !record.spool_file.empty());
  }
  if (is_closed_) co_return Error(Errc::unavailable, "the server is shutting down");
  const auto decision = std::make_shared<Decision>();
  decision->records = std::move(records);
  waiting_.push_back(decision);
  changed_.notify();
  while (!decision->outcome) co_await changed_.wait();
  co_return *decision->outcome;
}

Awaitable<void> VerdictLog::commit_all() {
  for (;;) {
    while (waiting_.empty() && !is_closed_) co_await changed_.wait();
    if (waiting_.empty()) co_return;
    const auto group = std::exchange(waiting_, {});
    std::vector<TaskRecord> records;
    for (const auto& decision : group)
      records.insert(records.end(), decision->records.begin(), decision->records.end());
    auto write = [this, records](Store& store) -> Result<void> {
      FL_CHECK(spool_.sync_names());
      failpoint("task.before_decided");
      FL_CHECK(store.rounds().decide(records));
      failpoint("task.decided");
      return {};
    };
    const auto written = co_await control_.store.with_store(std::move(write));
    if (!written && !will_pass(written.error())) control_.fail(written.error());
    for (const auto& decision : group) decision->outcome = written;
    changed_.notify();
  }
}

void VerdictLog::close() {
  is_closed_ = true;
  changed_.notify();
}

}  // namespace fl::server
