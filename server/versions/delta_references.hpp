// Where clients send deltas (a codec's "delta+", shared/codec/encode/feedback.hpp): what each one's
// last accepted one made of its update, as it counted. A file of fp32 values for each client, named
// by the task; so memory does not grow with the clients, and the disk by 4 bytes a parameter for
// each, and while a round is open by as much again for who takes part. They stay at the end of a
// run, which may go on with more rounds, and go when another begins.
//
// An update's file is written while it is added to the sums, and again whenever they are added up
// again, from the spool and the file that it refers to: so it need be durable only when the round
// is recorded. Which file is a client's newest follows from the history: its last accepted delta of
// a recorded round.
//
// On the engine's strand, but for the functions that keep() returns and sync(), on workers.
#pragma once

#include "server/history/store.hpp"
#include "shared/base/io/file.hpp"
#include "shared/codec/sums/accumulator.hpp"

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace fl {

class DeltaReferences {
 public:
  using Tasks = std::map<std::string, std::int64_t>;  // By client.

  /// `bytes`: of one of these files, 4 for each value of an update.
  DeltaReferences(Files& files, std::filesystem::path folder, std::uint64_t bytes)
      : files_(files), folder_(std::move(folder)), bytes_(bytes) {}

  /// At a start. `newest`: each client's newest task (Store::newest_deltas). Those whose file is
  /// not there, whole, are forgotten, as if there had been none. All other files go.
  [[nodiscard]] Result<void> prepare(Tasks newest);

  /// The task that this client's next update may refer to; 0: none.
  [[nodiscard]] std::int64_t of(const std::string& client) const;

  /// Makes of the decoded delta of `task` the update: adds what `reference` was, unless 0, and
  /// writes it to the task's file. Errors name the file.
  [[nodiscard]] Result<AdjustUpdate> keep(std::int64_t task, std::int64_t reference) const;

  /// The task was refused. With `is_reference_bad` what it refers to can't be read, and the
  /// client's next one refers to nothing.
  [[nodiscard]] Result<void> refuse(const std::string& client, std::int64_t task,
                                    bool is_reference_bad);

  /// The files of these clients' tasks, and their names, are on stable storage when it returns. A
  /// sync that fails is `io`, of a full disk too: it must not be tried again.
  [[nodiscard]] Result<void> sync(const Tasks& tasks) const;

  /// Their round is recorded: these are their clients' newest from now on. Files of others go.
  [[nodiscard]] Result<void> advance(const Tasks& tasks);

 private:
  [[nodiscard]] std::filesystem::path path_of(std::int64_t task) const;
  [[nodiscard]] Result<bool> is_whole(std::int64_t task) const;
  [[nodiscard]] Result<void> remove_others() const;

  Files& files_;
  std::filesystem::path folder_;
  std::uint64_t bytes_;
  Tasks newest_;
};

}  // namespace fl
