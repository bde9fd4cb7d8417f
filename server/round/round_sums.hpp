// SPDX-License-Identifier: Apache-2.0
// The sums of the open round: adds the updates up as they come, and anew from the spool after a
// restart, or when an update needs a wider range. On the engine's strand, but for add().
#pragma once

#include "server/round/run_control.hpp"
#include "server/round/spool.hpp"
#include "server/round/tasks.hpp"
#include "server/run/run_plan.hpp"
#include "server/versions/delta_references.hpp"
#include "server/versions/versions.hpp"
#include "shared/codec/sums/accumulator.hpp"

#include <memory>

namespace fl {

class RoundSums {
 public:
  struct Parts {
    RunControl& control;
    StoreThread& store;
    Offload& compute;
    const RunPlan& plan;
    Spool& spool;
    DeltaReferences& references;
    const Versions& versions;
    Tasks& tasks;
    const PastRounds& past;
  };
  explicit RoundSums(const Parts& parts) : parts_(parts) {}

  /// All sums are 0, in the format that the open round's record and weight_bound say. Before the
  /// first begin(), and after release(), there are no sums: nothing else may be called.
  void begin();
  /// Adds up the open round's accepted updates from the spool: the same sums as before. While the
  /// disk is full it waits.
  Awaitable<Result<void>> rebuild();
  /// An update is much larger than all before it, and yet may be right: the open round's sums get
  /// the widest range, and what was accepted is added up again with fewer digits. Only while nobody
  /// adds.
  Awaitable<Result<void>> widen();
  [[nodiscard]] bool can_widen() const;

  /// On a worker, also on several at once: it reads what does not change while a round is open.
  /// Errors: Accumulator::add, PayloadReader::open, DeltaReferences::keep.
  [[nodiscard]] Result<UpdateNorms> add(File& file, std::uint64_t bytes, const TaskRecord& task);
  /// The sums are lost until rebuild().
  [[nodiscard]] bool is_broken() const { return sums_->broken(); }
  [[nodiscard]] const Accumulator& sums() const { return *sums_; }
  /// Frees the memory. Only while no round is open.
  void release() { sums_.reset(); }

 private:
  [[nodiscard]] FixedPoint widest() const;
  [[nodiscard]] Result<AdjustUpdate> adjustment_of(const TaskRecord& task) const;

  Parts parts_;
  std::unique_ptr<Accumulator> sums_;
};

}  // namespace fl
