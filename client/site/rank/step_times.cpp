// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/step_times.hpp"

#include "shared/base/async/clock.hpp"
#include "shared/base/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fl::site {

namespace {

constexpr const char* steps_track = "steps";
constexpr const char* gradients_track = "gradients";
constexpr const char* coding_track = "coding";
constexpr const char* calls_track = "collectives";
constexpr const char* other_calls_track = "other collectives";
constexpr auto seam = std::chrono::microseconds(10);  // A shorter pause between calls is no coding.

}  // namespace

void StepTimes::begin_round(bool keeps_spans) {
  const MutexLock lock(mutex_);
  keeps_spans_ = keeps_spans;
  unix_offset_s_ = fl::Clock::unix_seconds() - seconds(Clock::now().time_since_epoch());
  spans_.clear();
  calls_.clear();
  ready_.reset();
  is_in_forward_ = is_in_pass_ = false;
  compute_ = exposed_ = together_ = reducing_ = calling_ = 0;
}

void StepTimes::forward() {
  const MutexLock lock(mutex_);
  const TimePoint now = Clock::now();
  end_forward(now);  // In a pipeline there may be several in a row.
  is_in_forward_ = is_in_pass_ = true;
  part_began_ = now;
}

void StepTimes::end_forward(TimePoint now) {
  if (!std::exchange(is_in_forward_, false)) return;
  compute_ += seconds(now - part_began_);
  keep("forward", steps_track, part_began_, now);
}

void StepTimes::backward() {
  const MutexLock lock(mutex_);
  const TimePoint now = Clock::now();
  end_forward(now);
  is_in_pass_ = true;
  part_began_ = now;
}

void StepTimes::backward_ended(bool is_last) {
  const MutexLock lock(mutex_);
  is_in_pass_ = false;
  const TimePoint now = Clock::now();
  // Once the last gradients are there, nothing is left to compute: the rest is waiting.
  const TimePoint computed = is_last ? std::exchange(ready_, {}).value_or(now) : now;
  compute_ += seconds(computed - part_began_);
  exposed_ += seconds(now - computed);
  keep("backward", steps_track, part_began_, computed);
  if (computed < now) keep("wait for gradients", steps_track, computed, now);
  part_began_ = now;
}

void StepTimes::waited(TimePoint begin, TimePoint end) {
  const MutexLock lock(mutex_);
  // None of the hook's work after a step is hidden.
  exposed_ += seconds(end - begin);
  reducing_ += seconds(end - begin);
  compute_ += seconds(begin - part_began_);
  keep("optimizer", steps_track, part_began_, begin);
  keep("after the step", steps_track, begin, end);
  part_began_ = end;
}

void StepTimes::waited_for_parameters(TimePoint begin) {
  waited_within("wait for parameters", begin);
}

void StepTimes::waited_for_gradients(TimePoint begin) {
  waited_within("wait for gradients", begin);
}

void StepTimes::waited_for_stage(TimePoint begin) {
  const MutexLock lock(mutex_);
  const TimePoint now = Clock::now();
  end_forward(begin);
  together_ += seconds(now - begin);
  keep("wait for a stage", steps_track, begin, now);
  part_began_ = now;
}

void StepTimes::waited_within(const char* what, TimePoint begin) {
  const MutexLock lock(mutex_);
  const TimePoint now = Clock::now();
  // It lies within a pass, whose end counts the whole of it as computing.
  exposed_ += seconds(now - begin);
  compute_ -= seconds(now - begin);
  keep(what, steps_track, begin, now);
}

void StepTimes::bucket_ready() {
  const MutexLock lock(mutex_);
  ready_ = Clock::now();
}

void StepTimes::reduced(std::size_t bucket, TimePoint begin) {
  const MutexLock lock(mutex_);
  const TimePoint now = Clock::now();
  reducing_ += seconds(now - begin);
  if (!keeps_spans_) return;
  keep(fmt::format("bucket {}", bucket), gradients_track, begin, now);
  keep_coding(begin, now);
}

void StepTimes::gathered(std::size_t unit, TimePoint begin) {
  const MutexLock lock(mutex_);
  const TimePoint now = Clock::now();
  reducing_ += seconds(now - begin);
  if (keeps_spans_) keep(fmt::format("gather {}", unit), gradients_track, begin, now);
  calls_.clear();  // Nothing is coded in it.
}

void StepTimes::reduced_beside(TimePoint begin) {
  const MutexLock lock(mutex_);
  reducing_ += seconds(Clock::now() - begin);
  calls_.clear();  // These calls belong to no bucket.
}

/// Keeps spans of coding: what a bucket's work from `begin` to `end` was outside of collectives.
void StepTimes::keep_coding(TimePoint begin, TimePoint end) {
  calls_.emplace_back(end, end);
  for (const auto& [call_begin, call_end] : std::exchange(calls_, {})) {
    if (call_begin - begin >= seam) keep("code", coding_track, begin, call_begin);
    begin = std::max(begin, call_end);
  }
}

void StepTimes::called(const Ranks::Call& call) {
  const MutexLock lock(mutex_);
  calling_ += seconds(call.end - call.begin);
  if (keeps_spans_) calls_.emplace_back(call.begin, call.end);
  keep(call.operation, calls_track, call.begin, call.end, call.bytes);
}

void StepTimes::called_beside(const Ranks::Call& call) {
  const MutexLock lock(mutex_);
  keep(call.operation, other_calls_track, call.begin, call.end, call.bytes);
}

void StepTimes::called_within(const Ranks::Call& call) {
  called_beside(call);
  const MutexLock lock(mutex_);
  if (!is_in_pass_) return;
  const double took = seconds(call.end - call.begin);
  together_ += took;
  compute_ -= took;  // The end of the pass counts the whole of it as computing.
}

SyncTimes StepTimes::sums() const {
  const MutexLock lock(mutex_);
  return {.ranks = 0,
          .compute = std::max(0.0, compute_),
          .exposed = exposed_ + together_,
          .hidden = std::max(0.0, reducing_ - exposed_),
          .coding = std::max(0.0, reducing_ - calling_)};
}

std::vector<TraceSpan> StepTimes::take_spans() {
  const MutexLock lock(mutex_);
  keeps_spans_ = false;
  calls_.clear();
  return std::exchange(spans_, {});
}

void StepTimes::keep(std::string_view name, const char* track, TimePoint begin, TimePoint end,
                     std::uint64_t bytes) {
  if (!keeps_spans_ || spans_.size() >= limits::trace_spans_max) return;
  const auto unix_us = [offset = unix_offset_s_](TimePoint time) {
    return static_cast<std::int64_t>((offset + seconds(time.time_since_epoch())) * 1e6);
  };
  spans_.push_back({.name = std::string(name),
                    .track = track,
                    .begin_us = unix_us(begin),
                    .duration_us = unix_us(end) - unix_us(begin),
                    .bytes = bytes});
}

}  // namespace fl::site
