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
//
// What is durable when: a round and its tasks before the first offer; an update, its verdict and
// its place in the spool before it is acknowledged; the new model's file before the row that names
// it; everything else of the round in one transaction (Rounds::commit). After a kill at any
// moment a restart finds each update accepted once or not at all, and ends in the same model.
#pragma once

#include "server/history/recorded_rounds.hpp"
#include "server/round/decoded_intake.hpp"
#include "server/round/initial_model.hpp"
#include "server/round/kept_updates.hpp"
#include "server/round/next_version.hpp"
#include "server/round/offers.hpp"
#include "server/round/peer.hpp"
#include "server/round/status.hpp"
#include "server/round/transfers.hpp"
#include "server/round/uploads.hpp"
#include "server/versions/versions.hpp"

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace fl {

class RoundEngine {
 public:
  struct Paths {
    std::filesystem::path checkpoints;
    std::filesystem::path spool;
    std::filesystem::path references;
    std::filesystem::path kept_updates;
  };
  struct Workers {
    Offload* store;    // One thread: the only one that calls this Store.
    Offload* compute;  // Workers that decode, add up and write models.
    /// Shared with the server's own StoreThread, if there is one.
    std::shared_ptr<StoreThread::Pause> pause = std::make_shared<StoreThread::Pause>();
    /// Receives every round that is recorded. Null: no one reads them.
    std::shared_ptr<RecordedRounds> recorded = nullptr;
  };
  enum class Outcome { finished, stopped };

  /// `model`: the model's tensors. The settings have passed check_settings(). `files`, `store` and
  /// `workers` must outlive the engine.
  /// `make_weights` makes version 0 of a run without a file of initial weights.
  RoundEngine(net::any_io_executor strand, RunSettings settings, RunRecord run, const Layout& model,
              Files& files, Store& store, Workers workers, Paths paths,
              WeightsFromSeed make_weights = builtin_initial_weights);

  /// Runs from where the store says the run is to its end, or to stop(). An error is fatal.
  /// Either the store or the disk failed in a way that must not be retried; a restart goes on from
  /// the last good state. Or the round can't be closed (its version would not be finite, or an
  /// accepted update's file is gone); then the message says what to do, as a restart alone does not
  /// help. Spawn it once, on executor(); the engine must live until it has returned.
  Awaitable<Result<Outcome>> run();
  /// Call before run(): no round begins until `sessions` sessions are here, evaluators included.
  void wait_for_sessions(std::size_t sessions) { expected_sessions_ = sessions; }
  /// Asks for a clean end: the engine ends as soon as what is being made durable is durable. The
  /// next start goes on from here.
  void stop();

  // What sessions call, on the engine's strand. --------------------------------------------------

  /// What the Welcome tells a new client. The Error's text goes to the client.
  [[nodiscard]] Result<wire::Welcome> welcome(const std::string& name,
                                              const wire::Hello& hello) const;
  /// The error for a client whose tensors, in its Bye, are not the run's.
  [[nodiscard]] Error other_tensors(const wire::Bye& bye) const;
  /// Notes that a client was turned away before it joined. The history has it once, until the
  /// client joins.
  void note_refusal(const std::string& name, const std::string& remote, const Error& error);
  /// A client is ready. A second session of the same client replaces the first, whose connection
  /// broke without our noticing. The Error's text goes to the client.
  Awaitable<Result<void>> join(std::shared_ptr<Peer> peer);
  /// A session has ended. Without `for_good` the client may be trying to come back. Otherwise it
  /// loses its task, for this `reason`.
  void leave(const std::shared_ptr<Peer>& peer, bool for_good = false,
             std::string reason = "the client left");
  /// Returns what answers a client's Fetch. Errors: not_found for a version that is not kept;
  /// unavailable while the run ends or too many files are open. Any other error has stopped the
  /// run.
  Awaitable<Result<Download>> download(std::shared_ptr<Peer> peer, wire::Fetch fetch);
  /// A client announces an update. Waits while a round is closing. The grant has the file that
  /// takes the bytes, and the offset of the first one; or a verdict at once. The session asks for
  /// one upload at a time. Each grant with an upload ends with one end_transfer(): after
  /// finish_upload() has returned, or without it when the upload breaks off.
  Awaitable<UploadGrant> begin_upload(std::shared_ptr<Peer> peer, wire::UploadBegin begin);
  /// Call it after the last byte: checks the update, makes it durable, adds it up, decides. May
  /// take until the round closes (UpdateIntake::take).
  Awaitable<wire::Verdict> finish_upload(std::shared_ptr<Peer> peer, UploadGrant grant);
  /// A transfer that a session was granted, to send or to receive, has ended.
  void end_transfer(const Peer& peer, Transfers::Way way, std::size_t chunk_bytes_max) {
    bulk_.end(chunk_bytes_max);
    transfers_.end(peer, way);
  }
  /// Records a client's answer to Evaluate. An invalid answer is reported and ignored.
  Awaitable<void> record_evaluation(std::shared_ptr<Peer> peer, wire::Evaluation evaluation);
  /// A client can't do its task or an evaluation, and says why.
  Awaitable<void> record_failure(std::shared_ptr<Peer> peer, wire::Failed failed);
  /// Ends an upload that came too slowly, as `text` says; its session ends.
  Awaitable<void> end_slow_upload(std::shared_ptr<Peer> peer, TaskId task, bool trickles,
                                  std::string text);
  /// Writes a line into the log, and an event of this run into the history.
  void report(EventLevel level, std::string text) { control_.report(level, std::move(text)); }
  /// Reports something that a client has caused (RunControl::report_of).
  void report_of(const std::string& client, EventLevel level, std::string text) {
    control_.report_of(client, level, std::move(text));
  }
  /// Reports it, and gives back what the spool keeps in reserve.
  void report_full_disk(std::string text) { store_.report_full_disk(std::move(text)); }

  // What others call, on the engine's strand. ----------------------------------------------------

  /// Expels a client that was revoked, and forgets its evaluations.
  void revoke(const std::string& name);
  /// Ends the session of a client whose certificate is not valid any more, and its task.
  void expel(const std::string& name, const std::string& reason);
  /// An operator has ended the run, and the history says so: no round opens after this one.
  void end_early(std::string why) { evaluations_.take_end(std::move(why)); }
  /// The store failed in work that was not this engine's: the run stops.
  void fail(const Error& error) { control_.fail(error); }
  [[nodiscard]] EngineStatus status() const;
  /// What a dashboard shows at a glance, with at most limits::admin_transfers_max of the transfers
  /// under way.
  [[nodiscard]] LiveStatus live_status() const;
  /// What the clients with these names are doing, in the same order.
  [[nodiscard]] std::vector<MemberStatus> members(const std::vector<std::string>& names) const;
  [[nodiscard]] int calls_off_strand() const { return control_.calls_off_strand(); }

  // From any thread. -----------------------------------------------------------------------------

  [[nodiscard]] net::any_io_executor executor() const { return strand_; }
  [[nodiscard]] RunId run_id() const { return plan_.run.id; }

 private:
  // The main loop's steps, in its order. Each returns early when the run is to stop.
  Awaitable<Result<void>> restore();
  Awaitable<Result<void>> restore_versions();
  Awaitable<Result<void>> restore_clients();
  Awaitable<Result<void>> restore_kept();
  Awaitable<Result<void>> restore_round();
  Awaitable<Result<void>> gather();
  Awaitable<Result<void>> collect();
  Awaitable<Result<bool>> settle();
  Awaitable<Result<std::optional<CheckpointRecord>>> apply();
  Awaitable<Result<void>> record(CheckpointRecord made, Duration apply_time);
  Awaitable<Result<void>> finish();
  Awaitable<Result<Outcome>> end(Result<void> going, bool is_finished);

  [[nodiscard]] RoundCommit commit_of(const CheckpointRecord& made) const;
  Awaitable<void> await_absent();
  Awaitable<void> dismiss_finished();
  [[nodiscard]] bool is_going() const { return !control_.is_stopping() && !end_.is_over(); }
  [[nodiscard]] std::string phase_text() const;
  [[nodiscard]] QueueLengths queues() const;
  [[nodiscard]] const Task* task_of(const std::string& client) const;
  [[nodiscard]] Activity activity_of(const std::string& client, const Peer* peer,
                                     const Task* task) const;
  [[nodiscard]] MemberStatus member(const std::string& name) const;
  void report_unless_over(const std::string& client, std::string text);

  const net::any_io_executor strand_;
  const RunPlan plan_;
  Offload& compute_;
  const std::shared_ptr<RecordedRounds> recorded_;
  StoreThread store_;
  RunControl control_;
  Spool spool_;
  KeptUpdates kept_;
  DeltaReferences references_;
  Versions versions_;
  Roster roster_;
  PastRounds past_;
  Tasks tasks_;
  Evaluations evaluations_;
  RunEnd end_;
  Picker picker_;
  RoundSums sums_;
  DecodedIntake intake_;
  VerdictLog verdicts_;
  TaskDecisions decisions_;
  UploadFiles upload_files_;
  BulkBudget bulk_;
  Transfers transfers_;
  Uploads uploads_;
  InitialModel initial_;
  Offers offers_;
  NextVersion next_;
  std::map<std::string, std::string> refused_;  // The reasons, by client.
  std::size_t expected_sessions_ = 0;
  double started_at_ = 0;  // Unix seconds.
  TaskGroup group_;
};

}  // namespace fl
