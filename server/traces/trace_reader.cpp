// SPDX-License-Identifier: Apache-2.0
#include "server/traces/trace_reader.hpp"

#include <fmt/format.h>

#include <utility>

namespace fl::server {

Result<std::unique_ptr<TraceReader>> TraceReader::open(const std::filesystem::path& history,
                                                       bool by_client) {
  Store::Options options;
  options.path = history;
  options.read_only = true;
  FL_TRY(auto store, Store::open(options));
  return std::unique_ptr<TraceReader>(new TraceReader(std::move(store), by_client));
}

TraceBatch TraceReader::next(RecordedRounds& rounds) {
  constexpr std::size_t spans_of_read =
      limits::trace_tasks_of_read * limits::trace_spans_of_task + limits::trace_spans_of_round;
  TraceBatch batch;
  if (current_) batch.rounds.push_back(current_->recorded);
  while (batch.spans.size() + spans_of_read <= limits::otlp_spans_max) {
    Result<void> done;
    RecordedRound recorded;
    if (current_) {
      recorded = current_->recorded;
      done = read_on(batch.spans);
    } else {
      const auto taken = rounds.take();
      if (!taken) break;
      recorded = *taken;
      done = begin(recorded);
      if (done) batch.rounds.push_back(recorded);
    }
    if (done) continue;
    current_.reset();
    batch.lost.push_back(recorded);
    batch.trouble = done.error();
  }
  return batch;
}

Result<void> TraceReader::begin(const RecordedRound& recorded) {
  FL_TRY(auto run, store_->runs().find(recorded.run));
  if (!run) return Error(Errc::not_found, fmt::format("there is no run {}", recorded.run));
  Current current;
  current.recorded = recorded;
  current.trace = trace_id_of(run->key, recorded.round);
  current.run = std::move(*run);
  current_ = std::move(current);
  return {};
}

/// Reads the next tasks of the round and, behind the last ones, the round itself.
Result<void> TraceReader::read_on(std::vector<Span>& spans) {
  const RecordedRound& recorded = current_->recorded;
  FL_TRY(const auto tasks, store_->pages().tasks(recorded.run, recorded.round, current_->after,
                                                 limits::trace_tasks_of_read));
  for (const TaskRow& row : tasks) {
    current_->after = row.task.id;
    // An asynchronous run's task goes on, in another round.
    if (row.task.state == TaskState::offered) continue;
    ++current_->counts[static_cast<std::size_t>(row.task.state)];
    add_task_spans(current_->trace, row, by_client_, spans);
  }
  if (tasks.size() == static_cast<std::size_t>(limits::trace_tasks_of_read)) return {};
  FL_TRY(const auto summaries,
         store_->pages().rounds(recorded.run, recorded.round - 1, 1, limits::admin_mean_min));
  if (summaries.empty() || summaries.front().round != recorded.round)
    return Error(Errc::not_found,
                 fmt::format("run {} has no closed round {}", recorded.run, recorded.round));
  add_round_spans(current_->trace, current_->run, summaries.front(), recorded, current_->counts,
                  spans);
  current_.reset();
  return {};
}

}  // namespace fl::server
