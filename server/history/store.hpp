// SPDX-License-Identifier: Apache-2.0
// The history of all runs in one SQLite database, STATE/history.sqlite. It also has everything that
// a restart needs: which run, which round, who was asked, whose update is safe. Large blobs
// (checkpoints, spooled updates) lie in files beside it; a row names a file only after the file is
// durable.
//
// Every call blocks on the disk. While a server runs, calls come through StoreThread, one at a
// time. A call is one transaction: when it returns without an error, what it wrote is durable (WAL,
// synchronous=FULL); a call that returns an error has changed nothing.
//
// Errors of the disk: no_space; unavailable, where another program holds the database for longer
// than busy_max (pause and try again: will_pass()); corrupt; io. After io or corrupt the server
// stops. Nothing is retried: the Store answers every later call with that same error. Errors of the
// caller: not_found (an unknown run, round, task, token or name), conflict (decided, closed, used
// or taken already), invalid_input (a value that the schema does not allow).
#pragma once

#include "server/history/page_records.hpp"
#include "server/history/records.hpp"
#include "shared/base/error.hpp"
#include "shared/base/line_limit.hpp"

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

struct sqlite3;

namespace fl {

class Database;

class Store {
 public:
  struct Options {
    std::filesystem::path path;  // The database file.
    std::string vfs = "";        // "" for SQLite's own; a test's VFS otherwise.
    bool exclusive = false;      // One process, no shared memory (needed by a VFS without it).
    bool read_only = false;      // For history and clients, beside a running server.
    bool migrates = true;        // False: an older server may be using the history.
    bool durable = true;         // False: a crash of the system may lose the last writes (fl-sim).
  };

  /// How long a call waits for another process (`fl-server enroll` beside a running server).
  static constexpr std::chrono::milliseconds busy_max{5000};

  /// Opens the file, and migrates it to the newest schema. A file that is not a database is
  /// `corrupt`; a database of another program, or one with a newer schema, or with tables or views
  /// that are not ours, is `conflict`. They are left as they were. read_only: a missing file is
  /// `not_found`. read_only, or without `migrates`: an older schema is `conflict`.
  static Result<std::unique_ptr<Store>> open(const Options& options);
  ~Store();

  // Runs (store.cpp).
  enum class Others { keep, stop };  // What becomes of the runs that are not finished.
  /// Returns the run with its id and its folder.
  [[nodiscard]] Result<RunRecord> create_run(const RunRecord& run, Others others = Others::keep);
  /// The newest run. Queued ones that were dropped or given up before they began come last.
  [[nodiscard]] Result<std::optional<RunRecord>> latest_run();
  [[nodiscard]] Result<std::optional<RunRecord>> open_run();  // The oldest waiting or running one.
  [[nodiscard]] Result<std::size_t> open_runs();              // How many are waiting or running.
  /// The run that a reader wants to see first: the running one; else the newest that has a round;
  /// else the one that begins next.
  [[nodiscard]] Result<std::optional<RunRecord>> shown_run();
  [[nodiscard]] Result<std::optional<RunRecord>> find_run(RunId run);
  [[nodiscard]] Result<std::vector<RunSummary>> runs();  // Oldest first.
  /// With `finished`, tasks of the run that are still `offered` become `late`.
  [[nodiscard]] Result<void> set_run_state(RunId run, RunState state);
  /// Stops a queued run, if another run is still before it, so that no server can have begun it.
  /// False: there is no such run.
  [[nodiscard]] Result<bool> drop_queued_run(RunId run);
  /// Records that the run ends before its last round. What evaluators answer later does not change
  /// that; other settings (change_run()) do.
  [[nodiscard]] Result<void> end_early(RunId run, const std::string& why);
  /// Gives the run other settings. A finished run that has closed fewer than `rounds_total` rounds
  /// is `running` again: so a start with a larger --rounds goes on where the run was.
  [[nodiscard]] Result<void> change_run(RunId run, Round rounds_total,
                                        const std::string& config_json);
  /// Records version 0 and makes the run `running`, together.
  [[nodiscard]] Result<void> set_initial_model(RunId run, const CheckpointRecord& checkpoint);
  /// The kept ones, by version.
  [[nodiscard]] Result<std::vector<CheckpointRecord>> checkpoints(RunId run);
  /// The checkpoints that the newest commit with any has dropped: their files may still be there.
  [[nodiscard]] Result<std::vector<CheckpointRecord>> last_dropped(RunId run);

  // Rounds (store_rounds.cpp).
  /// Opens a round with its tasks, and returns the tasks with their ids, in the given order. Tasks
  /// of earlier rounds that are still `offered` move into this one.
  [[nodiscard]] Result<std::vector<TaskRecord>> open_round(RunId run, const RoundRecord& round,
                                                           std::vector<TaskRecord> tasks);
  /// Adds tasks to an open round: replacements.
  [[nodiscard]] Result<std::vector<TaskRecord>> add_tasks(RunId run, Round round,
                                                          std::vector<TaskRecord> tasks);
  /// The round that was open when the server stopped, with all its tasks.
  struct StoredRound {
    RoundRecord round;
    std::vector<TaskRecord> tasks;
  };
  [[nodiscard]] Result<std::optional<StoredRound>> open_round_of(RunId run);
  /// A round that is recorded, with all its tasks. Errors: not_found; conflict, if it is open.
  [[nodiscard]] Result<StoredRound> closed_round(RunId run, Round round);
  /// The `offered` tasks of all rounds, by id.
  [[nodiscard]] Result<std::vector<TaskRecord>> offered_tasks(RunId run);
  /// What the next round needs to know of the closed rounds, and of all tasks.
  struct RoundsBefore {
    std::uint64_t population = 0;  // Of the last closed round; 0: there is none.
    /// By client: the norm of its last update that was accepted in a closed round, or refused for
    /// its norm.
    std::map<std::string, double> norms;
    /// Of every client that was ever asked: the examples of its newest task.
    std::map<std::string, std::uint64_t> examples;
  };
  [[nodiscard]] Result<RoundsBefore> rounds_before(RunId run);
  /// How many updates of each client were accepted, with those of the open round. Clients without
  /// any are missing.
  [[nodiscard]] Result<std::map<std::string, std::uint64_t>> accepted_counts(RunId run);
  /// Each client's last accepted task with a codec "delta+…" in a closed round.
  [[nodiscard]] Result<std::map<std::string, TaskId>> newest_deltas(RunId run);
  /// The clients whose newest decided tasks did not count. A task that was late is one of them if
  /// its round lasted for `deadline_s`; with 0 it never is. `now` is in seconds since 1970.
  [[nodiscard]] Result<std::map<std::string, Misses>> misses(RunId run, double deadline_s,
                                                             double now);
  [[nodiscard]] Result<std::optional<TaskRecord>> find_task(RunId run, TaskId task);
  /// Writes the verdicts of several tasks at once (the engine commits in groups). If one of them
  /// has a verdict already, that is `conflict`, and nothing is changed.
  [[nodiscard]] Result<void> decide_tasks(const std::vector<TaskRecord>& tasks);
  /// Closes the round: ends its row, inserts the row of the checkpoint, adds each task's traffic
  /// and marks the dropped checkpoints. Tasks that are still `offered`, with a base before
  /// `oldest_base`, become `late`. The clients of accepted updates were seen now. Errors: conflict
  /// if the round is not open; then nothing is changed.
  [[nodiscard]] Result<void> commit_round(const RoundCommit& commit);

  // Measurements (store_metrics.cpp).
  /// A client's second evaluation of the same version replaces the first.
  [[nodiscard]] Result<void> add_evaluation(const EvaluationRecord& evaluation);
  struct NewestEvaluation {
    Version version = 0;
    bool is_evaluator = false;
  };
  /// The newest version that each client of the run has evaluated, by the client's name, without
  /// members that were revoked.
  [[nodiscard]] Result<std::map<std::string, NewestEvaluation>> newest_evaluations(RunId run);
  /// The answers of the run's evaluators on so many examples or more, by version and name, without
  /// those of members that were revoked. Without `own` and `kinds`.
  [[nodiscard]] Result<std::vector<EvaluationRecord>> evaluator_answers(RunId run,
                                                                        std::uint64_t examples_min);
  /// The metrics of the run's evaluations so far, each as most evaluators declare it, or most
  /// trainers where no evaluator does: the one that most declare as their first, then those of
  /// evaluators, and each group in the order in which they were declared. "loss" is one of them if
  /// an evaluator has no other. What revoked members declare counts where nobody else does.
  [[nodiscard]] Result<std::vector<DeclaredMetric>> declared_metrics(RunId run);
  /// The name of the run's main metric. Errors: not_found.
  [[nodiscard]] Result<std::string> main_metric(RunId run);
  /// `run` 0: an event outside of any run. The newest `events_max` are kept.
  [[nodiscard]] Result<void> add_event(RunId run, EventLevel level, std::string_view text);
  static constexpr std::int64_t events_max = 100'000;

  /// How many rows the audit has; it keeps all.
  [[nodiscard]] Result<std::int64_t> audit_rows();
  /// Adds a row to the audit. Of what a peer can cause by itself, a few of a kind and client in a
  /// minute become rows; the others are counted. `who`: whose rows are counted together; "": the
  /// client's, or without one all strangers'.
  [[nodiscard]] Result<void> add_audit(AuditKind kind, std::string_view client,
                                       std::string_view text, std::string_view who = "");
  /// Adds a row for each kind and client whose rows were only counted, once their minute is over.
  /// After an error the next call adds them.
  [[nodiscard]] Result<void> add_audit_counts();
  /// Oldest first; without a client all.
  [[nodiscard]] Result<std::vector<AuditRecord>> audit(const std::string& client = "");

  // Clients and tokens (store_clients.cpp). What changes who may come in is in the audit, in the
  // same transaction.
  [[nodiscard]] Result<void> add_token(const TokenRecord& token);
  [[nodiscard]] Result<std::optional<TokenRecord>> find_token(std::string_view id);
  /// Unused tokens that have expired by `now` stay so, whatever the clock says later.
  [[nodiscard]] Result<void> expire_tokens(double now);
  /// Marks the token as used by the key with this digest, and records the client's certificate, and
  /// the role and limit that the token gives it: from now on no other certificate lets it in. The
  /// same key may use the token again, unless the name has joined with another token since. A token
  /// that another key has used and a revoked client are `conflict`; a token for another name is
  /// `invalid_input`. The caller checks secret and expiry.
  [[nodiscard]] Result<void> use_token(std::string_view id, const ClientRecord& client,
                                       std::string_view key_digest);
  /// Records a client's renewed certificate. Its earlier certificates remain valid until it
  /// connects with this one, as the answer that brings it may be lost: at most `certificates_max`,
  /// and `proven`, the one of its session. An unknown name is not_found; a revoked client is
  /// conflict; a `proven` that is no longer valid is unauthenticated.
  [[nodiscard]] Result<void> add_certificate(std::string_view name, std::string_view serial,
                                             std::string_view proven);
  static constexpr int certificates_max = 4;  // Of one client.
  /// Succeeds if this certificate lets the client in; the ones before it no longer do. Otherwise
  /// `unauthenticated`, with a text for the client.
  [[nodiscard]] Result<void> admit(std::string_view name, std::string_view serial);
  /// Records that the client is connected now. A client that is not in the table (it is simulated)
  /// is added, as enrolled now. `evaluator` is the role of such a client; the role of one with a
  /// certificate stays.
  [[nodiscard]] Result<void> touch_client(std::string_view name, bool evaluator);
  /// Revokes the client for good; a second time changes nothing. If nobody has joined by that name,
  /// its tokens become void; if there are none either, not_found.
  [[nodiscard]] Result<void> revoke(std::string_view name);
  [[nodiscard]] Result<std::vector<ClientRecord>> clients();  // By name.
  [[nodiscard]] Result<std::optional<ClientRecord>> find_client(std::string_view name);
  /// Changes when another process has committed to the database (PRAGMA data_version).
  [[nodiscard]] Result<std::int64_t> data_version();

  // Reading. Without a run: of all runs.
  [[nodiscard]] Result<std::vector<RoundSummary>> summary(std::optional<RunId> run);
  /// By version and name.
  [[nodiscard]] Result<std::vector<MetricSummary>> metrics(std::optional<RunId> run);
  [[nodiscard]] Result<std::vector<CodecSummary>> codecs(std::optional<RunId> run);
  [[nodiscard]] Result<std::vector<CodecAsked>> codecs_asked(std::optional<RunId> run);
  /// Page by page: of the run, the rounds after `after`, `rounds_max` at most.
  /// Figures that fewer than `clients_min` clients have made are left out, but not evaluators'.
  [[nodiscard]] Result<std::vector<RoundSummary>> summary_page(RunId run, Round after,
                                                               int rounds_max,
                                                               std::uint32_t clients_min = 0);
  [[nodiscard]] Result<std::vector<CodecAsked>> codecs_asked_page(RunId run, Round after,
                                                                  int rounds_max);
  /// Newest first: the runs before `before` (0: all). `clients_min`: as for summary_page().
  [[nodiscard]] Result<std::vector<RunRow>> runs_page(RunId before, int runs_max,
                                                      std::uint32_t clients_min = 0);
  /// The run's codecs without figures that fewer than `clients_min` clients have made.
  [[nodiscard]] Result<std::vector<CodecSummary>> codecs_page(RunId run, std::uint32_t clients_min);
  /// The run's newest round, or this one.
  [[nodiscard]] Result<std::optional<RoundRow>> find_round(RunId run, std::optional<Round> round);
  /// By id, of those after `after`.
  [[nodiscard]] Result<std::vector<TaskRow>> tasks_page(RunId run, Round round, TaskId after,
                                                        int tasks_max);
  /// The figures of the accepted updates of a round, one value for each client: the training loss,
  /// the norm, how long it took, and what trainers measured of the version.
  [[nodiscard]] Result<std::vector<SpreadFigures>> spread(RunId run, Round round);
  /// Newest first.
  [[nodiscard]] Result<std::vector<EventRow>> events_page(const LogQuery& query);
  [[nodiscard]] Result<std::vector<AuditRow>> audit_page(const LogQuery& query);
  [[nodiscard]] Result<NewestRows> newest_rows();
  /// Kept versions, newest first, of those before `before` (none: all).
  [[nodiscard]] Result<std::vector<VersionRow>> versions_page(RunId run,
                                                              std::optional<Version> before,
                                                              int versions_max);
  /// By name, of those after `after` with `text` in their name.
  [[nodiscard]] Result<std::vector<ClientRecord>> clients_page(const std::string& after,
                                                               const std::string& text,
                                                               int clients_max);
  [[nodiscard]] Result<std::size_t> client_count();
  /// By client: bytes a second of the newest uploads in the run's last rounds.
  [[nodiscard]] Result<std::map<std::string, double>> upload_paces(RunId run);
  /// Oldest first. With a run: its events, and those outside of any run.
  [[nodiscard]] Result<std::vector<EventRecord>> events(std::optional<RunId> run);
  [[nodiscard]] Result<std::vector<TaskRecord>> tasks(RunId run, Round round);
  /// From the closed rounds, by client.
  [[nodiscard]] Result<std::map<std::string, ClientHistory>> client_histories(RunId run);

  // Operators (store_operators.cpp). `by` says who does it, in the audit.
  /// Errors: conflict, if an operator has the name who is not revoked.
  [[nodiscard]] Result<void> add_operator(const OperatorRecord& record, std::string_view by);
  /// Errors: not_found.
  [[nodiscard]] Result<void> revoke_operator(std::string_view name, std::string_view by);
  [[nodiscard]] Result<std::vector<OperatorRecord>> operators();  // By name, with revoked ones.
  /// These two: nobody, if it is revoked.
  [[nodiscard]] Result<std::optional<OperatorRecord>> find_operator(std::string_view name);
  [[nodiscard]] Result<std::optional<OperatorRecord>> operator_with(std::string_view token_hash);
  /// A row of the audit: what somebody did at the control desk or the command line, and to which
  /// client; "": to none.
  [[nodiscard]] Result<void> add_control(std::string_view by, std::string_view client,
                                         std::string_view text);

  // Copies and removals (store_archive.cpp).
  /// Writes the history as it is at this moment into a new file, while others go on writing. The
  /// file is whole, but not synced yet.
  [[nodiscard]] Result<void> copy_into(const std::filesystem::path& file);
  /// In a copy: the files of this version are not there. Tasks that would train from it are late.
  [[nodiscard]] Result<void> forget_checkpoint(RunId run, Version version);
  /// In a copy: the file of an update that an open round has counted is not there. Errors:
  /// not_found.
  [[nodiscard]] Result<void> forget_update(TaskId task, std::string_view reason);
  [[nodiscard]] Result<std::vector<EndedRun>> ended_runs();  // Oldest first.
  /// Removes all rows of a run that is over, in several transactions; the row of the run goes last.
  /// The audit stays. Errors: not_found; conflict, if it is not over.
  [[nodiscard]] Result<void> remove_run(RunId run);
  /// Makes the file as small as its rows. Nobody else may have it open.
  [[nodiscard]] Result<void> give_back_space();

  [[nodiscard]] sqlite3* raw();  // For tests.

 private:
  explicit Store(std::unique_ptr<Database> db);
  Result<void> note_security(AuditKind kind, std::string_view client, std::string_view text);
  Result<void> add_main_metrics(std::vector<RoundSummary>& rounds, std::uint32_t clients_min);
  Result<MetricEnds> metric_ends(RunId run, std::uint32_t clients_min);

  std::unique_ptr<Database> db_;
  LineLimit audit_lines_;
};

/// Store::add_event for callers that must not fail by it: on a full disk, say, the event is left
/// out, and the log says so.
void note_event(Store& store, RunId run, EventLevel level, std::string_view text);

}  // namespace fl
