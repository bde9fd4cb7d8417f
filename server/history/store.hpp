// The history of all runs in one SQLite database, STATE/history.sqlite, and with it everything that
// a restart needs: which run, which round, who was asked, whose update is safe. Large blobs
// (checkpoints, spooled updates) lie in files beside it; a row names a file only after the file is
// durable.
//
// Every call blocks on the disk; the engine calls from its store thread (Offload), one call at a
// time. A call is one transaction: when it returns without an error, what it says is durable (WAL,
// synchronous=FULL). Errors: no_space and, where another program holds the database past the named
// limit, unavailable (pause and try again: will_pass), corrupt, io. After io or corrupt the server
// stops; nothing is retried: the Store answers every later call with that same error. Errors of the
// caller: not_found (an unknown run, round, task, token or name), conflict (decided, closed, used
// or taken already), invalid_input (a value that the schema doesn't allow). A call that returns an
// error has changed nothing.
//
// Times are Unix seconds as double; bytes are bytes on the socket as WebSocket payload. A figure
// that is NaN (the loss of a training that diverged) is stored as NULL and read as NaN.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/digest.hpp"

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

struct sqlite3;

namespace fl {

class Database;

using RunId = std::int64_t;
using Round = std::uint32_t;  // 1-based. Model version r is what round r made; version 0 is the
                              // initial model.

enum class RunState {
  waiting,  // No initial model yet; queued, perhaps, behind another run.
  running,
  finished,
  stopped,  // Given up for another run.
};
enum class TaskState {
  offered,   // Asked; nothing final yet.
  accepted,  // Its update is durable and counts, once.
  refused,   // Its update was bad; `reason` says why.
  late,      // The round closed without it.
  lost,      // Given up (gone, replaced, could not train); `reason` says why.
};
inline constexpr std::size_t task_state_count = 5;

/// Of a Store's error: nothing was changed, and trying again makes sense.
[[nodiscard]] inline bool will_pass(const Error& error) {
  return error.code() == Errc::no_space || error.code() == Errc::unavailable;
}

struct RunRecord {
  RunId id = 0;
  std::string key;  // Random, 16 hex digits: tells this run from any other, on the wire.
  std::string model;
  std::uint64_t seed = 0;
  Round rounds_total = 0;
  std::string config_json;  // The settings it was started with, for the reader.
  RunState state = RunState::waiting;
  double started_at = 0;
  bool queued = false;      // By another process: a server's own flags don't change it.
  std::string checkpoints;  // The folder of its checkpoints inside STATE/checkpoints; "": that one.
};

struct RunSummary {
  RunRecord run;
  Round rounds_closed = 0;
};

struct CheckpointRecord {
  Round version = 0;
  std::string file;  // Name inside the run's folder (RunRecord::checkpoints).
  std::uint64_t bytes = 0;
  Digest digest;           // Of the fp32 values in layout order.
  double value_max = 0;    // Largest magnitude but of statistics, for the next round's sums.
  std::string delta_file;  // Name, there too, of the coded step from version-1, or "".
  std::uint64_t delta_bytes = 0;
};

struct TaskRecord {
  std::int64_t id = 0;     // Unique in the database; names the task on the wire.
  Round round = 0;         // In which it counts, or would. One that outlives a round moves on.
  Round base_version = 0;  // The model version that it trains from.
  std::string client;      // Name, as its certificate says.
  TaskState state = TaskState::offered;
  std::uint64_t examples = 0;  // Weight: as known when offered, then as reported with the update.
  std::uint64_t steps = 0;
  double loss = 0;  // Mean local training loss.
  double train_seconds = 0;
  double norm = 0;                 // L2 norm of the decoded update.
  std::uint64_t update_bytes = 0;  // Payload bytes of the spooled update,
  std::uint64_t raw_bytes = 0;     // and of the same in fp32.
  double encode_seconds = 0;       // On the client.
  double decode_seconds = 0;       // Here, checked and added up.
  double nmse = 0;                 // What coding lost, of the squared norm of what was coded.
  double ready_seconds = 0;        // From the offer to the begin of the upload,
  double upload_seconds = 0;       // and from there to its end, at the pace of its last stretch.
  double seconds = 0;              // From the offer to the verdict.
  Digest update_digest;
  std::string spool_file;  // Name inside STATE/spool.
  std::string codec;
  std::string codec_reason;  // Why this one; "" where all clients have the same (codec_choice.hpp).
  /// Of a delta (delta_references.hpp): the task whose update it may be the difference to, then
  /// what it was; 0: none.
  std::int64_t reference = 0;
  std::string reason;
};

struct RoundRecord {
  Round round = 0;
  Round base_version = 0;  // The model version that was sent out: round - 1.
  double started_at = 0;
  int range_log2 = 0;        // |update value| < 2^range_log2 in this round, and
  int fraction_bits = 0;     // fixed-point fraction bits of the sum: fixed when the round opens.
  std::uint32_t target = 0;  // Accepted updates that close the round.
  /// Weight of all clients that were there when it opened, or were asked in a round before.
  std::uint64_t population = 0;
};

/// One client's traffic in one round: bytes on its socket while the round was open.
struct TaskTraffic {
  std::int64_t task = 0;
  std::uint64_t bytes_up = 0;
  std::uint64_t bytes_down = 0;
  double seconds = 0;  // From the offer to the verdict, or to the end of a round that had none.
};

/// What one round leaves behind; everything in it becomes durable together.
struct RoundCommit {
  RunId run = 0;
  Round round = 0;
  double ended_at = 0;
  double train_loss = 0;       // Examples-weighted mean over the accepted updates.
  std::uint64_t bytes_up = 0;  // Of the whole round, all clients, control included.
  std::uint64_t bytes_down = 0;
  std::vector<TaskTraffic> traffic;  // As for add_traffic, but in this transaction.
  CheckpointRecord checkpoint;       // Version `round`.
  /// Tasks still `offered` from an older version come too late; by default all.
  Round oldest_base = std::numeric_limits<Round>::max();
  std::vector<Round> dropped_versions;  // Checkpoints that retention removes after this commit.
  RunState run_state =
      RunState::running;  // finished with the last round or at the target accuracy.
};

/// An evaluation of one version by one client.
struct EvaluationRecord {
  RunId run = 0;
  Round version = 0;
  std::string client;
  bool evaluator = false;  // An --evaluate-only client, whose figures go first in round_summary.
  std::uint64_t examples = 0;
  double loss = 0;
  double accuracy = 0;
  /// Of the client's own model, where the method has one: the metrics own_loss and own_accuracy.
  struct Own {
    double loss = 0;
    double accuracy = 0;
  };
  std::optional<Own> own;
};

struct ClientRecord {
  std::string name;
  std::string certificate_serial;  // Hexadecimal, of the newest certificate.
  double enrolled_at = 0;
  double last_seen_at = 0;  // When it came last, or a round with an update of its own was closed.
  double revoked_at = 0;    // 0: not revoked.
  bool evaluator = false;
};

/// A join token as it is stored: never the secret.
struct TokenRecord {
  std::string id;           // Hexadecimal.
  std::string name;         // The client it is bound to.
  std::string secret_hash;  // SHA-256 of the secret, hexadecimal.
  double expires_at = 0;
  double used_at = 0;           // 0: unused.
  std::string key_digest = {};  // SHA-256 of the public key it was used for, hexadecimal.
};

/// What a run knows of a client from the rounds before.
struct ClientHistory {
  Round last_round = 0;            // In which it was last asked; 0: never.
  std::optional<double> loss;      // Of its last accepted update, before training on it,
  double seconds = 0;              // and how long that took, from the offer to the verdict.
  std::string late_codec = {};     // Of the last task, if its update came too late; else "".
  std::uint64_t update_bytes = 0;  // Of its last upload whose pace is known; 0: there is none.
  double ready_seconds = 0;        // As of a TaskRecord.
  double upload_seconds = 0;
  TaskState last_state = TaskState::offered;  // What became of the task of last_round,
  double last_seconds = 0;                    // and after how long, as of a TaskRecord.
};

/// Which codec a client was asked for in a round whose clients need not have the same, and why.
struct CodecAsked {
  RunId run = 0;
  Round round = 0;
  std::string client;
  std::string codec;
  std::string reason;
  TaskState state = TaskState::offered;  // What became of it,
  std::uint64_t update_bytes = 0;        // and if that was an update, as of a TaskRecord.
  double ready_seconds = 0;
  double upload_seconds = 0;
};

/// What a codec has cost and brought in a run: of the accepted updates that it has coded.
struct CodecSummary {
  RunId run = 0;
  std::string codec;
  std::uint64_t updates = 0;
  std::uint64_t raw_bytes = 0;     // In fp32,
  std::uint64_t update_bytes = 0;  // and as they were sent.
  double encode_seconds = 0;
  double decode_seconds = 0;
  double train_seconds = 0;
  double nmse = 0;                       // Their mean.
  std::uint64_t bytes = 0;               // Of the rounds with such updates, up and down.
  std::optional<double> accuracy_first;  // Of those that were measured in the run.
  std::optional<double> accuracy_last;
};

enum class EventLevel { info, notice, warning, error };
[[nodiscard]] constexpr std::string_view to_string(EventLevel level) {
  switch (level) {
    case EventLevel::info: return "info";
    case EventLevel::notice: return "notice";
    case EventLevel::warning: return "warning";
    case EventLevel::error: return "error";
  }
  return "";
}

/// What happened and is in no other table: who came and went, what was refused.
struct EventRecord {
  RunId run = 0;  // 0: outside of any run.
  double at = 0;
  std::string level;  // "info", "warning" or "error".
  std::string text;   // May hold what a client said.
};

/// One row of the view round_summary, and how good the clients found models of their own.
struct RoundSummary {
  RunId run = 0;
  Round round = 0;
  double started_at = 0;
  double seconds = 0;
  std::uint32_t clients_offered = 0;
  std::uint32_t clients_accepted = 0;
  std::uint64_t bytes_up = 0;
  std::uint64_t bytes_down = 0;
  std::optional<double> train_loss;
  std::optional<double> eval_loss;
  std::optional<double> eval_accuracy;
  std::string model_digest;
  std::optional<double> own_accuracy;  // Where the method has such models.
};

class Store {
 public:
  struct Options {
    std::filesystem::path path;  // The database file.
    std::string vfs;             // "" for SQLite's own; a test's VFS otherwise.
    bool exclusive = false;      // One process, no shared memory (needed by a VFS without it).
    bool read_only = false;      // history and clients, beside a running server.
    bool durable = true;         // False: the system's end may take what was written last (fl-sim).
  };

  /// How long a call waits for another process (`fl-server enroll` beside a running server).
  static constexpr std::chrono::milliseconds busy_max{5000};

  /// Opens, and migrates to the newest schema. A file that is no database is `corrupt`; one of
  /// another program, or whose schema is newer than this program's, is `conflict`. Both are left as
  /// they were. read_only: a missing file is `not_found`, an older schema `conflict`.
  static Result<std::unique_ptr<Store>> open(const Options& options);
  ~Store();

  // Runs.
  enum class Others { keep, stop };  // What becomes of the runs that are not over.
  /// Returns it with its id and its folder.
  [[nodiscard]] Result<RunRecord> create_run(const RunRecord& run, Others others = Others::keep);
  [[nodiscard]] Result<std::optional<RunRecord>> latest_run();
  [[nodiscard]] Result<std::optional<RunRecord>> open_run();  // The oldest waiting or running one.
  [[nodiscard]] Result<std::size_t> open_runs();              // How many are waiting or running.
  /// What a reader wants to see first: the one that is running, else the newest that ever was, or
  /// else will be.
  [[nodiscard]] Result<std::optional<RunRecord>> shown_run();
  [[nodiscard]] Result<std::optional<RunRecord>> find_run(RunId run);
  [[nodiscard]] Result<std::vector<RunSummary>> runs();  // Oldest first.
  /// The tasks of a run that is finished are `late` if nothing else.
  [[nodiscard]] Result<void> set_run_state(RunId run, RunState state);
  /// Stops a queued run that others are still before, so that no server can have begun it. False:
  /// there is no such run.
  [[nodiscard]] Result<bool> drop_queued_run(RunId run);
  /// Other settings from now on. A later start with a larger --rounds goes on where the run was: a
  /// finished run that has closed fewer rounds than this is `running` again.
  [[nodiscard]] Result<void> change_run(RunId run, Round rounds_total,
                                        const std::string& config_json);
  /// Version 0 and the state `running`, together.
  [[nodiscard]] Result<void> set_initial_model(RunId run, const CheckpointRecord& checkpoint);
  [[nodiscard]] Result<std::vector<CheckpointRecord>> checkpoints(
      RunId run);  // Kept ones, by version.
  /// Those that the newest commit to drop any has dropped: their files may still be there.
  [[nodiscard]] Result<std::vector<CheckpointRecord>> last_dropped(RunId run);

  // Rounds.
  /// The round and its tasks; returns the tasks with their ids, in the given order. Tasks of
  /// earlier rounds that are still `offered` move into this one.
  [[nodiscard]] Result<std::vector<TaskRecord>> open_round(RunId run, const RoundRecord& round,
                                                           std::vector<TaskRecord> tasks);
  /// More tasks in an open round: replacements.
  [[nodiscard]] Result<std::vector<TaskRecord>> add_tasks(RunId run, Round round,
                                                          std::vector<TaskRecord> tasks);
  /// The round that was open when the server stopped, with all its tasks.
  struct StoredRound {
    RoundRecord round;
    std::vector<TaskRecord> tasks;
  };
  [[nodiscard]] Result<std::optional<StoredRound>> open_round_of(RunId run);
  /// Those that are `offered`, in whatever round, by id.
  [[nodiscard]] Result<std::vector<TaskRecord>> offered_tasks(RunId run);
  /// What the next round is made with, of the rounds that are closed; and of all tasks, examples.
  struct RoundsBefore {
    std::uint64_t population = 0;                   // Of the last one; 0: there is none.
    double norm_max = 0;                            // Of all accepted updates.
    std::map<std::string, std::uint64_t> examples;  // Of who was ever asked, by its newest task.
  };
  [[nodiscard]] Result<RoundsBefore> rounds_before(RunId run);
  /// How many updates of each client were accepted, of those that had any; the open round's too.
  [[nodiscard]] Result<std::map<std::string, std::uint64_t>> accepted_counts(RunId run);
  /// Each client's last accepted task with a codec "delta+…", of the recorded rounds.
  [[nodiscard]] Result<std::map<std::string, std::int64_t>> newest_deltas(RunId run);
  [[nodiscard]] Result<std::optional<TaskRecord>> find_task(RunId run, std::int64_t task);
  /// Final states of several tasks at once (the engine commits in groups). A task that already has
  /// a final state is `conflict`, and nothing is changed.
  [[nodiscard]] Result<void> decide_tasks(const std::vector<TaskRecord>& tasks);
  /// Closes the round; tasks still `offered` from before its commit's oldest_base become `late`.
  [[nodiscard]] Result<void> commit_round(const RoundCommit& commit);
  /// The open round's sums have another fixed point from now on.
  [[nodiscard]] Result<void> set_fixed_point(RunId run, Round round, int range_log2,
                                             int fraction_bits);

  // Measurements.
  /// A second evaluation of one version by one client replaces the first.
  [[nodiscard]] Result<void> add_evaluation(const EvaluationRecord& evaluation);
  struct NewestEvaluation {
    Round version = 0;
    bool is_evaluator = false;
  };
  /// The newest version that each client of the run has measured, by the client's name.
  [[nodiscard]] Result<std::map<std::string, NewestEvaluation>> newest_evaluations(RunId run);
  /// What the run's evaluators have measured, each for itself, as it came.
  [[nodiscard]] Result<std::vector<std::pair<Round, double>>> evaluator_accuracies(RunId run);
  /// Adds the bytes to what is there; `seconds` replaces a smaller figure.
  using TaskTraffic = fl::TaskTraffic;
  [[nodiscard]] Result<void> add_traffic(const std::vector<TaskTraffic>& traffic);
  /// `run` 0: an event outside of any run. The newest `events_max` are kept.
  [[nodiscard]] Result<void> add_event(RunId run, std::string_view level, std::string_view text);
  static constexpr std::int64_t events_max = 100'000;

  // Clients and tokens.
  [[nodiscard]] Result<void> add_token(const TokenRecord& token);
  [[nodiscard]] Result<std::optional<TokenRecord>> find_token(std::string_view id);
  /// Marks the token used for the key with this digest and records the client's certificate, which
  /// alone lets it in from now on. Again for the same key, unless the name has joined with another
  /// token since. A token used otherwise, or a client that is revoked, is `conflict`; a token bound
  /// to another name is `invalid_input`. Secret and expiry are the caller's to check.
  [[nodiscard]] Result<void> use_token(std::string_view id, const ClientRecord& client,
                                       std::string_view key_digest);
  /// One more certificate of a client, a renewed one. Those before it go on letting it in until it
  /// comes with this one, as the answer that brings it may be lost; at most `certificates_max`, and
  /// `proven`, with which its session came. Unknown names: not_found; revoked ones: conflict;
  /// `proven` lets nobody in any more: unauthenticated.
  [[nodiscard]] Result<void> add_certificate(std::string_view name, std::string_view serial,
                                             std::string_view proven);
  static constexpr int certificates_max = 4;  // Of one client.
  /// Whether this certificate lets the client in; those before it no longer do. Otherwise
  /// `unauthenticated`, in words for the client.
  [[nodiscard]] Result<void> admit(std::string_view name, std::string_view serial);
  /// The client is here now. One that isn't in the table (its certificate is older than this
  /// database, or it is simulated) is put there, enrolled now.
  [[nodiscard]] Result<void> touch_client(std::string_view name, bool evaluator);
  /// For good; a second time changes nothing. Where nobody has joined by that name yet, its tokens
  /// are void; if there are none either: not_found.
  [[nodiscard]] Result<void> revoke(std::string_view name);
  [[nodiscard]] Result<std::vector<ClientRecord>> clients();  // By name.
  [[nodiscard]] Result<std::optional<ClientRecord>> find_client(std::string_view name);
  /// Changes when another process has committed to the database (PRAGMA data_version).
  [[nodiscard]] Result<std::int64_t> data_version();

  // Reading.
  [[nodiscard]] Result<std::vector<RoundSummary>> summary(std::optional<RunId> run);
  [[nodiscard]] Result<std::vector<CodecSummary>> codecs(std::optional<RunId> run);
  [[nodiscard]] Result<std::vector<CodecAsked>> codecs_asked(std::optional<RunId> run);
  /// Oldest first. Of one run, with those outside of any; or of all.
  [[nodiscard]] Result<std::vector<EventRecord>> events(std::optional<RunId> run);
  [[nodiscard]] Result<std::vector<TaskRecord>> tasks(RunId run, Round round);
  /// Of the rounds that are closed, by client.
  [[nodiscard]] Result<std::map<std::string, ClientHistory>> client_histories(RunId run);

  [[nodiscard]] sqlite3* raw();  // For tests.

 private:
  explicit Store(std::unique_ptr<Database> db);
  std::unique_ptr<Database> db_;
};

/// Store::add_event where a line in the history is no reason to stop: on a full disk it is left
/// out, and the log says so.
void note_event(Store& store, RunId run, std::string_view level, std::string_view text);
inline void note_event(Store& store, RunId run, EventLevel level, std::string_view text) {
  note_event(store, run, to_string(level), text);
}

}  // namespace fl
