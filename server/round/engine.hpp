// SPDX-License-Identifier: Apache-2.0
// The round engine: gather, offer, collect, settle, apply, record, round after round. In an
// asynchronous run (round_mode.hpp) a round is a buffer of updates, and tasks go on from one round
// to the next. The engine decides; sessions carry. It and its parts run on one strand (executor()).
// They reach the disk through Files and StoreThread, time through Clock, and clients through Peer:
// so the simulated federations of the tests run this same code. Long work (syncs of data, decoding,
// models, SQLite) runs on workers; short calls of Files (open, rename, remove) run on the strand,
// and so does the tidying up after a round.
//
// The parts know nothing of the engine; it knows them all. A part's header says what it owns.
// Sessions and admission know the engine's host(), those who watch its view().
//
// What is durable when: a round and its tasks before the first offer; an update, its verdict and
// its place in the spool before it is acknowledged; the new model's file before the row that names
// it; everything else of the round in one transaction (Rounds::commit). After a kill at any
// moment a restart finds each update accepted once or not at all, and ends in the same model.
#pragma once

#include "server/history/recorded_rounds.hpp"
#include "server/round/collector.hpp"
#include "server/round/decoded_intake.hpp"
#include "server/round/initial_model.hpp"
#include "server/round/next_version.hpp"
#include "server/round/run_files.hpp"
#include "server/round/run_host.hpp"
#include "server/round/run_view.hpp"

#include <memory>
#include <optional>

namespace fl::server {

class RoundEngine {
 public:
  /// The engines of one server share these.
  struct Shared {
    Offload* store;    // One thread: the only one that calls this Store.
    Offload* compute;  // Workers that decode, add up and write models.
    /// Shared with the server's own StoreThread too, if there is one.
    std::shared_ptr<StoreThread::Pause> pause = std::make_shared<StoreThread::Pause>();
    /// Receives every round that is recorded. Null: no one reads them.
    std::shared_ptr<RecordedRounds> recorded = nullptr;
    /// The text of the member list for masked runs: parse_member_list() has read it. Empty: the
    /// server has none, and no masked run.
    std::string members = {};
    /// The memory for the transfers of all runs.
    std::shared_ptr<BulkBudget> bulk = std::make_shared<BulkBudget>();
  };
  enum class Outcome { finished, stopped };

  /// `model`: the model's tensors. The settings have passed check_settings(). `files`, `store` and
  /// the workers must outlive the engine. `paths`: no other run that goes on may use them.
  /// `make_weights` makes version 0 of a run without a file of initial weights.
  RoundEngine(net::any_io_executor strand, RunSettings settings, RunRecord run, const Layout& model,
              Files& files, Store& store, Shared shared, RunFiles::Paths paths,
              WeightsFromSeed make_weights = builtin_initial_weights);

  /// Runs from where the store says the run is to its end, or to stop(). An error is fatal.
  /// Either the store or the disk failed in a way that must not be retried; a restart goes on from
  /// the last good state. Or the round can't be closed (its version would not be finite, or an
  /// accepted update's file is gone); then the message says what to do, as a restart alone does not
  /// help. Spawn it once, on executor(); the engine must live until it has returned.
  Awaitable<Result<Outcome>> run();
  /// No round begins until `sessions` sessions are here, evaluators included. Before run(), or on
  /// the strand.
  void wait_for_sessions(std::size_t sessions) { expected_sessions_ = sessions; }
  /// Asks for a clean end: the engine ends as soon as what is being made durable is durable. The
  /// next start goes on from here.
  void stop();
  /// The store failed in work that was not this engine's: the run stops.
  void fail(const Error& error) { control_.fail(error); }
  [[nodiscard]] int calls_off_strand() const { return control_.calls_off_strand(); }

  // From any thread. What these two do is for the engine's strand.
  [[nodiscard]] SessionHost& host() { return host_; }
  [[nodiscard]] const RunView& view() const { return view_; }
  [[nodiscard]] net::any_io_executor executor() const { return control_.strand(); }
  [[nodiscard]] RunId run_id() const { return plan_.run.id; }
  [[nodiscard]] const RunFiles::Paths& paths() const { return files_.paths; }

 private:
  // The main loop's steps, in its order. Each returns early when the run is to stop.
  Awaitable<Result<void>> restore();
  Awaitable<Result<void>> restore_versions();
  Awaitable<Result<void>> restore_clients();
  Awaitable<Result<void>> restore_kept();
  Awaitable<Result<void>> restore_round();
  Awaitable<Result<void>> gather();
  Awaitable<Result<bool>> settle();
  Awaitable<Result<std::optional<CheckpointRecord>>> apply();
  Awaitable<Result<void>> record(CheckpointRecord made, Duration apply_time);
  Awaitable<Result<void>> finish();
  Awaitable<Result<Outcome>> end(Result<void> going, bool is_finished);

  [[nodiscard]] std::unique_ptr<MaskedRound> make_masked(std::string members);
  [[nodiscard]] std::unique_ptr<UpdateIntake> make_intake();
  [[nodiscard]] RoundCommit commit_of(const CheckpointRecord& made) const;
  Awaitable<void> await_absent();
  Awaitable<void> dismiss_finished();
  [[nodiscard]] bool is_going() const { return !control_.is_stopping() && !end_.is_over(); }

  const RunPlan plan_;
  Offload& compute_;
  const std::shared_ptr<RecordedRounds> recorded_;
  StoreThread store_;
  RunControl control_;
  RunFiles files_;
  Roster roster_;
  PastRounds past_;
  Tasks tasks_;
  Evaluations evaluations_;
  RunEnd end_;
  RoundSums sums_;
  VerdictLog verdicts_;
  TaskDecisions decisions_;
  UploadFiles upload_files_;
  Transfers transfers_;
  const std::unique_ptr<MaskedRound> masked_;  // Null: the run is not masked.
  const std::unique_ptr<UpdateIntake> intake_;
  Uploads uploads_;
  InitialModel initial_;
  Offers offers_;
  Collector collector_;
  NextVersion next_;
  Attendance attendance_;
  RunHost host_;
  RunView view_;
  std::size_t expected_sessions_ = 0;
};

/// The engine's host, which keeps the engine alive.
[[nodiscard]] inline std::shared_ptr<SessionHost> host_of(std::shared_ptr<RoundEngine> engine) {
  SessionHost* const host = &engine->host();
  return {std::move(engine), host};
}

}  // namespace fl::server
