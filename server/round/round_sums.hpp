// SPDX-License-Identifier: Apache-2.0
// The sums of the open round: adds the updates up as they come, and anew from the spool after a
// restart. With a robust rule (--aggregate) they only check the updates and measure their norms;
// the rule reads the spool when the round closes. count(), read_accepted() and is_broken() on any
// thread; mean() on a worker; the others on the engine's strand, and they work on workers.
#pragma once

#include "server/history/store_thread.hpp"
#include "server/round/spool.hpp"
#include "server/round/tasks.hpp"
#include "server/run/run_plan.hpp"
#include "server/sums/accumulator.hpp"
#include "server/versions/delta_references.hpp"
#include "server/versions/make_version.hpp"
#include "server/versions/versions.hpp"

#include <memory>
#include <vector>

namespace fl::server {

class RoundSums {
 public:
  struct Parts {
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

  /// Sets all sums to 0. Before the first begin(), and after release(), there are no sums: nothing
  /// else may be called.
  void begin();
  /// Adds up the open round's accepted updates from the spool: the result is the same sums as
  /// before. While the disk is full it waits.
  Awaitable<Result<void>> rebuild();
  /// Makes the sums those of the accepted updates, whatever order they came in (sum_range.hpp).
  /// Parts of some are read again from the spool. While the disk is full it waits. Only while
  /// nobody adds.
  Awaitable<Result<void>> settle();
  /// Reads the result of the accepted updates: their weighted mean, or what the robust rule makes
  /// of them. On a worker, after settle(). It is valid until the next round; with a robust rule it
  /// keeps a block of each update in memory. Errors: those of reading the spool.
  [[nodiscard]] Result<ReadValues> mean() const;

  /// Makes a complete upload durable (Spool::finish) and adds it; then count() or take_back(). Also
  /// several at once: a worker reads what does not change while a round is open. `task` must live
  /// until it returns, and gets the time that decoding took. Errors: those of Spool::finish,
  /// Accumulator::add, PayloadReader::open and DeltaReferences::keep.
  Awaitable<Result<Accumulator::Added>> add(std::shared_ptr<Upload> upload, TaskRecord& task);
  void count(const Accumulator::Added& added) { sums_->count(added); }
  /// Takes an update that was added out again, and writes nothing to the disk. While the disk is
  /// full it waits. Errors: those of opening its files, and then nothing has changed; after others
  /// is_broken() is true.
  Awaitable<Result<void>> take_back(std::shared_ptr<Upload> upload, const TaskRecord& task);
  /// Gives an accepted update to `use` as it counts, block by block, and changes nothing. On a
  /// worker. Errors: those of opening its files, and those of `use`; they name the update.
  [[nodiscard]] Result<void> read_accepted(const TaskRecord& task,
                                           const Accumulator::AddUpdate& use) const;
  /// The sums are lost until rebuild().
  [[nodiscard]] bool is_broken() const { return sums_->broken(); }
  /// Frees the memory. Only while no round is open.
  void release();

 private:
  /// Whether an update is read for the first time, or again: then its reference is on the disk
  /// already.
  enum class Reading { first, again };
  [[nodiscard]] const Layout& layout() const;
  [[nodiscard]] std::uint64_t expected_weight() const;
  Result<Accumulator::Added> add_file(File& file, std::uint64_t bytes, const TaskRecord& task);
  [[nodiscard]] std::vector<TaskRecord> accepted_tasks() const;
  [[nodiscard]] std::uint64_t discounted_weight_of(const std::vector<TaskRecord>& tasks) const;
  [[nodiscard]] Result<std::shared_ptr<File>> open_accepted(const TaskRecord& task) const;
  Result<void> read(File& file, std::uint64_t bytes, const TaskRecord& task, Reading reading,
                    const Accumulator::AddUpdate& use) const;
  [[nodiscard]] Result<AdjustUpdate> adjustment_of(const TaskRecord& task, Reading reading) const;
  [[nodiscard]] Result<ReadValues> robust_mean() const;

  Parts parts_;
  std::unique_ptr<Accumulator> sums_;
};

}  // namespace fl::server
