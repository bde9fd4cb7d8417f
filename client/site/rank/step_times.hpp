// SPDX-License-Identifier: Apache-2.0
// StepTimes notes where a rank's time goes while it trains with others: sums for the summary of a
// round, and with --trace a span for each part. On a GPU these are the times of the host, which
// runs ahead of the device.
#pragma once

#include "client/learn/trace.hpp"
#include "client/learn/trainer.hpp"
#include "client/site/rank/ranks.hpp"
#include "shared/base/async/mutex.hpp"

#include <chrono>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace fl::site {

/// Any thread. What is noted on the thread that trains is in the order of a step: forward,
/// backward, backward_ended, waited.
class StepTimes {
 public:
  using Clock = std::chrono::steady_clock;
  using TimePoint = Clock::time_point;

  /// Forgets the round before. `keeps_spans`: for a trace.
  void begin_round(bool keeps_spans);

  // Called by the thread that trains.
  void forward();
  void backward();
  /// The gradients have been computed. is_last: they are the mean over the ranks.
  void backward_ended(bool is_last);
  /// Between these two points of time, after the optimizer's step, the hook did its part of it.
  void waited(TimePoint begin, TimePoint end);

  /// Within a pass the thread that computes waited since `begin`: for a unit's parameters, which it
  /// needed, or for gradients on their way, of which there were too many.
  void waited_for_parameters(TimePoint begin);
  void waited_for_gradients(TimePoint begin);
  /// In a pipeline it waited since `begin` for the stage before or behind: a part of the bubble.
  void waited_for_stage(TimePoint begin);

  /// A bucket's gradients go to the conductor. Called by the thread of the backward pass.
  void bucket_ready();
  // Called by the conductor's thread.
  void reduced(std::size_t bucket, TimePoint begin);
  /// A unit's parameters have come together.
  void gathered(std::size_t unit, TimePoint begin);
  /// A reduction that belongs to no bucket has ended; it began at `begin`.
  void reduced_beside(TimePoint begin);
  void called(const Ranks::Call& call);
  /// A call between the stages of a pipeline: for the trace only. Any thread.
  void called_beside(const Ranks::Call& call);
  /// A call of the thread that trains, such as the model's broadcast. Within a pass, where ranks
  /// have layers, texts or experts together, it is waiting. Any thread.
  void called_within(const Ranks::Call& call);

  /// The sums of the round so far.
  [[nodiscard]] SyncTimes sums() const;
  /// Returns the spans; none are noted from now on.
  [[nodiscard]] std::vector<TraceSpan> take_spans();

 private:
  void waited_within(const char* what, TimePoint begin);
  void end_forward(TimePoint now) FL_REQUIRES(mutex_);
  void keep_coding(TimePoint begin, TimePoint end) FL_REQUIRES(mutex_);
  void keep(std::string_view name, const char* track, TimePoint begin, TimePoint end,
            std::uint64_t bytes = 0) FL_REQUIRES(mutex_);

  mutable Mutex mutex_;
  bool keeps_spans_ FL_GUARDED_BY(mutex_) = false;
  /// Unix time minus Clock's time, constant in a round.
  double unix_offset_s_ FL_GUARDED_BY(mutex_) = 0;
  std::vector<TraceSpan> spans_ FL_GUARDED_BY(mutex_);
  /// Collectives since the last bucket, for a trace. Coding lies between them.
  std::vector<std::pair<TimePoint, TimePoint>> calls_ FL_GUARDED_BY(mutex_);
  /// When the training thread began what it does now.
  TimePoint part_began_ FL_GUARDED_BY(mutex_){};
  bool is_in_forward_ FL_GUARDED_BY(mutex_) = false;
  bool is_in_pass_ FL_GUARDED_BY(mutex_) = false;
  /// When the newest bucket of this backward pass was ready.
  std::optional<TimePoint> ready_ FL_GUARDED_BY(mutex_);
  double compute_ FL_GUARDED_BY(mutex_) = 0;
  double exposed_ FL_GUARDED_BY(mutex_) = 0;   // Waiting for gradients and parameters.
  double together_ FL_GUARDED_BY(mutex_) = 0;  // For ranks that have a part of the pass.
  double reducing_ FL_GUARDED_BY(mutex_) = 0;  // Seconds of the conductor for all reductions.
  double calling_ FL_GUARDED_BY(mutex_) = 0;   // The part of reducing_ in collectives.
};

}  // namespace fl::site
