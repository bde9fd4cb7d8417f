// SPDX-License-Identifier: Apache-2.0
// The history's records, as plain structs: runs, rounds, tasks, checkpoints, evaluations, clients,
// tokens and events. The parts of the Store read and write them; tables.hpp says which column each
// field is.
//
// Times are Unix seconds as double; a time that never was is 0. Traffic is counted in whole
// messages, without WebSocket, TLS and TCP (Link::bytes_received); up is from a client to the
// server. Other byte counts say what they count. A figure that is NaN (the loss of a training that
// diverged) is stored as NULL and read as NaN.
#pragma once

#include "shared/base/io/digest.hpp"
#include "shared/params/metric.hpp"

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace fl::server {

using RunId = std::int64_t;
using Round = std::uint32_t;    // From 1.
using Version = std::uint32_t;  // A model's: round r makes version r; 0 is the first.

// A round's number and a version's are one type to the compiler, and one number to a run whose
// rounds all make the whole model. Code that goes from one to the other says so by these functions.

/// The version that the clients of a round train from.
[[nodiscard]] constexpr Version base_of(Round round) { return round - 1; }
/// The version that a round makes.
[[nodiscard]] constexpr Version made_by(Round round) { return round; }
/// The round that made a version; 0: none did, it is the initial model.
[[nodiscard]] constexpr Round round_of(Version version) { return version; }
/// The round in which clients are asked to train from a version.
[[nodiscard]] constexpr Round round_from(Version base) { return base + 1; }

/// Unique in the database; names the task on the wire. A type of its own, as tasks and runs are
/// both numbers from the same kind of column.
enum class TaskId : std::int64_t { none = 0 };
[[nodiscard]] constexpr std::int64_t number_of(TaskId id) { return static_cast<std::int64_t>(id); }
[[nodiscard]] constexpr std::int64_t format_as(TaskId id) { return number_of(id); }  // For fmt.

enum class RunState {
  waiting,  // It has no initial model yet, and may wait in the queue behind another run.
  running,
  finished,
  stopped,  // Given up for another run.
};
enum class TaskState {
  offered,   // The client was asked; nothing is final yet.
  accepted,  // The update is durable and counts, once.
  refused,   // The update was bad; `reason` says why.
  late,      // The round closed without it.
  lost,      // Given up (the client left, was replaced, could not train); `reason` says why.
};
inline constexpr std::size_t task_state_count = 5;

/// The weight of an event for an operator.
enum class EventLevel {
  info,     // Somebody came or went.
  notice,   // The run took an unusual turn that nobody is to blame for.
  warning,  // Something went wrong with one client.
  error,    // The run or the server has ended by it.
};

/// The kinds of rows that the audit has.
enum class AuditKind {
  enrolment,     // A name joined, or the same key asked for its certificate again.
  takeover,      // A name joined again, with another key: the one before lets nobody in any more.
  refusal,       // Somebody was not let in, or an enrolment was refused.
  displacement,  // A session ended because the same member connected again.
  renewal,       // A member got a new certificate for its old one.
  revocation,    // A member, or the tokens of a name.
  repeats,       // A number of rows of one kind and member that a minute left out.
  operators,     // Somebody may control the server now, or may not any more.
  control,       // An operator, or somebody at the command line, did something.
  login,         // Somebody logged in at the admin pages.
};

struct RunRecord {
  RunId id = 0;
  std::string key;  // Random, 16 hex digits: tells this run from any other, on the wire.
  std::string model;
  std::uint64_t seed = 0;
  Round rounds_total = 0;
  std::string config_json;  // The settings (server/run/settings.hpp).
  RunState state = RunState::waiting;
  double started_at = 0;
  bool queued = false;      // Added by `fl-server queue`: a server's flags do not change it.
  std::string checkpoints;  // Folder of its checkpoints in STATE/checkpoints; "": that itself.
  double aside_at = 0;      // When it stepped aside for others (Runs::step_aside()); 0: never.
  std::string early_end;  // Why it ends before its last round (Runs::end_early()); "": it doesn't.
};

struct RunSummary {
  RunRecord run;
  Round rounds_closed = 0;
};

/// Somebody who may log in at the admin pages.
struct OperatorRecord {
  std::string name;
  std::string role;        // "viewer", "operator" or "admin".
  std::string token_hash;  // SHA-256 of its token, hexadecimal.
  double made_at = 0;
  double revoked_at = 0;  // 0: not revoked.
};

/// A finished or stopped run, as `fl-server prune` looks at it.
struct EndedRun {
  RunId id = 0;
  double ended_at = 0;  // The end of its last round; without one, when it was made.
  std::uint64_t tasks = 0;
};

struct CheckpointRecord {
  Version version = 0;
  std::string file;  // Name inside the run's folder (RunRecord::checkpoints).
  std::uint64_t bytes = 0;
  Digest digest;           // Digest of the fp32 values in layout order.
  std::string delta_file;  // Name in the same folder of the coded step from version - 1; "": none.
  std::uint64_t delta_bytes = 0;
  /// The steps of "lanes" for updates that are trained from it, as an Offer has them
  /// (shared/codec/core/lane_step.hpp); "": none is known.
  std::string lane_steps;
};

/// A message of a masked round (server/round/masked_round.hpp), as a serialized wire::Header.
struct MaskedMessage {
  std::uint32_t attempt = 0;   // From 1, in each round.
  std::string client;          // "": the server's.
  TaskId task = TaskId::none;  // The client's; none: the server's.
  std::string kind;            // The kind of the header.
  std::string message;
};

struct TaskRecord {
  TaskId id = TaskId::none;
  Round round = 0;           // Where its update counts. A task that outlives a round moves on.
  Version base_version = 0;  // The version it trains from.
  std::string client;        // Name, as its certificate says.
  TaskState state = TaskState::offered;
  std::uint64_t examples = 0;  // Weight: as known when offered, then as reported with the update.
  std::uint64_t steps = 0;
  double loss = 0;  // Mean local training loss.
  /// The number of predictions that this mean is over: its weight. None: as many as examples.
  std::optional<double> predictions;
  double train_seconds = 0;
  double norm = 0;  // L2 norm of the decoded update.
  /// With what the round made of all updates, on a sample of the parameters (mean_sample.hpp); it
  /// is known when the round is recorded.
  std::optional<double> cosine;
  std::uint64_t update_bytes = 0;  // Payload bytes of the spooled update.
  std::uint64_t raw_bytes = 0;     // Bytes that the same update has in fp32.
  double encode_seconds = 0;       // On the client.
  double save_seconds = 0;         // There, with what else it does before it announces the update:
  double residual_seconds = 0;     // making what is carried from update to update,
  double digest_seconds = 0;       // the payload's digest,
  double sync_seconds = 0;         // and waiting for the disk.
  double decode_seconds = 0;       // On the server: decoding, checking and adding up.
  double nmse = 0;            // Loss by coding, as a part of the squared norm of what was coded.
  double ready_seconds = 0;   // From the offer to the begin of the upload.
  double upload_seconds = 0;  // From there to its end, at the pace of its last stretch.
  double seconds = 0;         // From the offer to the upload's end, or to the verdict without one.
  Digest update_digest;
  std::string spool_file;  // Name inside STATE/spool.
  std::string codec;
  std::string codec_reason;  // Why this one; "" where all clients have the same (codec_choice.hpp).
  /// For a delta codec (delta_references.hpp): while offered, the task whose update this one may be
  /// the difference to; afterwards, the task that it was. 0: none.
  TaskId reference = TaskId::none;
  std::string reason;
  /// For a client that is a site: how many ranks trained, and how they spent train_seconds, as the
  /// first one saw it (SyncTimes in proto/wire.proto). 0: one process.
  std::uint32_t ranks = 0;
  double compute_seconds = 0;
  double exposed_seconds = 0;
  double hidden_seconds = 0;
  double coding_seconds = 0;
  std::uint64_t fp32_steps = 0;  // Steps that were in fp32, where the precision is adaptive.
  std::string setup;             // How the client has trained, in its words.
};

struct RoundRecord {
  Round round = 0;
  Version base_version = 0;  // The version that was sent out: base_of(round).
  double started_at = 0;
  std::uint32_t target = 0;  // Accepted updates that close the round.
  /// Weight of all clients that were connected when it opened, or were asked in an earlier round.
  std::uint64_t population = 0;
  std::uint64_t examples_max = 0;  // The most examples that an update counts with; 0: no limit.
};

/// One client's traffic in one round: while the round was open.
struct TaskTraffic {
  TaskId task = TaskId::none;
  std::uint64_t bytes_up = 0;
  std::uint64_t bytes_down = 0;
  double seconds = 0;  // As in TaskRecord; of a task without a verdict, to the end of the round.
};

struct TaskCosine {
  TaskId task = TaskId::none;
  double cosine = 0;
};

/// The end of a round. All of it becomes durable together.
struct RoundCommit {
  RunId run = 0;
  Round round = 0;
  double ended_at = 0;
  double train_loss = 0;       // Mean over the accepted updates (Tasks::training_loss()).
  std::uint64_t bytes_up = 0;  // The whole round: all clients, with control messages.
  std::uint64_t bytes_down = 0;
  /// Bytes are added to those that are there; `seconds` replaces a smaller figure.
  std::vector<TaskTraffic> traffic;
  std::vector<TaskCosine> cosines;
  CheckpointRecord checkpoint;  // Version `round`.
  /// Tasks that are still `offered` and train from an older version than this become `late`; by
  /// default all.
  Version oldest_base = std::numeric_limits<Version>::max();
  std::vector<Version> dropped_versions;  // Checkpoints that retention removes after this commit.
};

/// One client's evaluation of one version.
struct EvaluationRecord {
  RunId run = 0;
  Version version = 0;
  std::string client;
  bool evaluator = false;  // An --evaluate-only client: round_summary prefers its figures.
  std::uint64_t examples = 0;
  double loss = 0;
  double predictions = 0;  // The weight of the losses; 0: as many as examples.
  std::vector<MetricValue> metrics;
  /// The figures of the client's own model, if the method has one. They are stored as own_loss,
  /// own_accuracy and so on.
  struct Own {
    double loss = 0;
    std::vector<MetricValue> metrics;
  };
  std::optional<Own> own;
  std::vector<MetricKind> kinds;  // The client's declaration.
};

/// A metric as the run has it: as most of its evaluators with this metric declare it, or as long as
/// there is none, most of its trainers.
struct DeclaredMetric {
  MetricKind kind;
  bool by_evaluator = false;
};

/// A value of a version, made of all clients' that count.
struct MetricFigure {
  std::string name;
  double value = 0;
  bool is_exact = true;  // False: a mean of values that no mean makes exact (Combine::none).
};

struct ClientRecord {
  std::string name;
  std::string certificate_serial;  // The newest certificate's, hexadecimal.
  double enrolled_at = 0;
  double last_seen_at = 0;         // When it was last here: to limits::last_seen_pace.
  double revoked_at = 0;           // 0: not revoked.
  bool evaluator = false;          // The role: it evaluates and never trains. Else it is a trainer.
  std::uint64_t examples_max = 0;  // The most examples that it may claim; 0: no limit.
  double pardoned_at = 0;  // When an operator forgave its misses (Members::pardon()); 0: never.
  std::string model;       // The only one that it trains, as it said last; "": any, or unknown.
  std::string tensors;     // The only tensors that it trains, likewise (HelloFacts::tensors).
};

/// A client that is here now.
struct ClientHere {
  std::string name;
  bool evaluator = false;
  std::string model;  // This and `tensors` as in ClientRecord.
  std::string tensors;
};

/// A join token as it is stored: never the secret.
struct TokenRecord {
  std::string id;           // Hexadecimal.
  std::string name;         // The client it is for.
  std::string secret_hash;  // SHA-256 of the secret, hexadecimal.
  double expires_at = 0;
  double used_at = 0;           // 0: unused.
  std::string key_digest = {};  // SHA-256 of the public key that used it, hexadecimal.
  bool evaluator = false;       // This and the next field are for the client, as in ClientRecord.
  std::uint64_t examples_max = 0;
};

/// A run's knowledge of a client from earlier rounds.
struct ClientHistory {
  Round last_round = 0;            // In which it was last asked; 0: never.
  std::optional<double> loss;      // The loss of its last accepted update, before training on it.
  double seconds = 0;              // That update's, as in TaskRecord.
  std::string late_codec = {};     // Codec of its last task if that update was late; "": it wasn't.
  std::uint64_t update_bytes = 0;  // The last upload with a known pace; 0: there is none.
  double ready_seconds = 0;        // That upload's, as in TaskRecord.
  double upload_seconds = 0;
  TaskState last_state = TaskState::offered;  // The fate of its task in last_round.
  double last_seconds = 0;                    // After how long, as TaskRecord::seconds.
};

/// A client's tasks in a row that ended without an update that counts.
struct Misses {
  int in_a_row = 0;
  double lost_seconds = 0;   // The time that the last of them took.
  double seconds_since = 0;  // Since the round of the last one was closed; 0: it is open.
};

/// Which codec a client was asked for in a round whose clients may have different ones, and why.
struct CodecAsked {
  RunId run = 0;
  Round round = 0;
  std::string client;
  std::string codec;
  std::string reason;
  TaskState state = TaskState::offered;  // The fate of the task.
  std::uint64_t update_bytes = 0;        // This and the two below: as in TaskRecord.
  double ready_seconds = 0;
  double upload_seconds = 0;
};

/// The cost and the gain of a codec in a run, over the accepted updates that it has coded.
struct CodecSummary {
  RunId run = 0;
  std::string codec;
  std::uint64_t updates = 0;
  std::uint64_t raw_bytes = 0;     // In fp32.
  std::uint64_t update_bytes = 0;  // The bytes that were sent.
  double encode_seconds = 0;
  double save_seconds = 0;
  double residual_seconds = 0;
  double digest_seconds = 0;
  double sync_seconds = 0;
  double decode_seconds = 0;
  double train_seconds = 0;
  double nmse = 0;                       // Their mean.
  std::uint64_t bytes = 0;               // All traffic of the rounds with such updates.
  std::optional<double> accuracy_first;  // The first and the last that were measured in the run.
  std::optional<double> accuracy_last;
  std::string metric;  // The run's main metric, and its first and last value.
  std::optional<double> value_first;
  std::optional<double> value_last;
};

/// Something that happened and is in no other table: who came and went, what was refused.
struct EventRecord {
  RunId run = 0;  // 0: outside of any run.
  double at = 0;
  EventLevel level = EventLevel::info;
  std::string text;  // May contain what a client said.
};

/// One row of the audit: somebody came in or was kept out, or did something. Rows are only ever
/// added.
struct AuditRecord {
  double at = 0;
  AuditKind kind = AuditKind::refusal;
  std::string client;  // The one that it is about, as its certificate or token says; "": none.
  std::string text;    // May contain what a peer said.
  std::string who;     // The one who did it (audit.hpp); "": an older server has written the row.
};

/// One metric of a version ("loss" is one too), as evaluators have measured it, or trainers in a
/// run without evaluators.
struct MetricSummary {
  RunId run = 0;
  Version version = 0;
  std::string name;  // "own_..." is of the clients' own models.
  double value = 0;
  bool is_exact = true;  // As in MetricFigure.
  std::uint32_t clients = 0;
  std::uint64_t examples = 0;  // All clients' together.
  bool by_evaluators = false;
};

/// One row of the view round_summary, the run's main metric, and how good the clients' own models
/// are.
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
  std::optional<double> own_accuracy;  // For methods whose clients have models of their own.
  std::string metric;                  // The name of the run's main metric.
  std::optional<double> eval_metric;
  std::optional<double> own_metric;  // As own_accuracy.
  bool is_exact = true;              // eval_metric, as in MetricFigure.
};

}  // namespace fl::server
