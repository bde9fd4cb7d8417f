// SPDX-License-Identifier: Apache-2.0
// Opens rounds and sends their offers: chooses which clients are asked to train, and asks others in
// place of clients that will not answer. On the engine's strand; the main loop alone opens rounds
// and adds tasks. Errors are the store's.
#pragma once

#include "server/cohort/picker.hpp"
#include "server/round/masked_round.hpp"
#include "server/round/run_files.hpp"
#include "server/round/task_decisions.hpp"
#include "server/round/update_intake.hpp"

#include <set>
#include <string>
#include <vector>

namespace fl::server {

class Offers {
 public:
  struct Parts {
    RunControl& control;
    const RunFiles& files;
    Roster& roster;
    Tasks& tasks;
    UpdateIntake& intake;
    TaskDecisions& decisions;
    const PastRounds& past;
    MaskedRound* masked;  // Null: the run is not masked.
  };
  explicit Offers(const Parts& parts);

  /// Reads what the picker needs of the clients' histories, before a round is opened.
  Awaitable<Result<void>> read_histories();
  /// Opens the next round: its row and its tasks are durable before the first offer is sent.
  Awaitable<Result<void>> open_round();
  /// Asks up to `count` more clients in the open round. Returns false if nobody can be asked now.
  Awaitable<Result<bool>> add(std::size_t count);
  /// Sends a task's offer, even if it was sent before. Does nothing while the client is not here.
  void send(Task& task);
  /// Sends the offers of all open tasks again: a masked round has begun another attempt.
  void send_all();

 private:
  [[nodiscard]] std::vector<TaskRecord> pick(std::size_t count) const;
  [[nodiscard]] std::size_t cohort_size(std::uint32_t target) const;
  void weigh_everyone(RoundRecord& round);
  void warn_of_settings(std::size_t available);

  Parts parts_;
  Picker picker_;
  std::set<std::string>
      capped_;  // Clients for which reaching the limit (--weight-cap) was reported.
};

}  // namespace fl::server
