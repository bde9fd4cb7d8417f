// SPDX-License-Identifier: Apache-2.0
// Agent: the client's main loop, which connects, does the tasks that the server offers, and
// reconnects. It is one coroutine on one strand. Training, evaluation and all access to the disk
// run on one worker thread. The agent uses the server through Link, the model through Trainer and
// the disk through Files, so fl-sim and the tests run this same code.
#pragma once

#include "client/agent/model_cache.hpp"
#include "client/agent/patience.hpp"
#include "client/learn/trace.hpp"
#include "client/learn/trainer.hpp"
#include "client/state/client_state.hpp"
#include "client/state/resumable_download.hpp"
#include "shared/base/async/mailbox.hpp"
#include "shared/base/async/offload.hpp"
#include "shared/base/async/task_group.hpp"
#include "shared/base/limits.hpp"
#include "shared/wire/link.hpp"
#include "shared/wire/transfer.hpp"

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <variant>

namespace fl {

/// Opens connections to the server. The link runs on the agent's strand.
class Connector {
 public:
  virtual ~Connector() = default;
  virtual Awaitable<Result<std::shared_ptr<Link>>> connect() = 0;
};

/// Renews the client's certificate. Called on the agent's strand.
class IdentityKeeper {
 public:
  virtual ~IdentityKeeper() = default;
  /// Returns a signing request (PEM) if the certificate must be renewed now, else nothing.
  /// `authorities`: which are to be trusted now (wire::Welcome::authorities); "": not known.
  virtual Result<std::optional<std::string>> renewal_request(const std::string& authorities) = 0;
  /// Stores the new certificate that the server has sent.
  virtual Result<void> take_renewal(const wire::Renewed& renewed) = 0;
};

class Agent {
 public:
  struct Options {
    bool evaluator = false;  // Evaluates every version and trains none.
    bool stay = false;       // Waits for the next run when one is over.
    std::string model;       // The only model that it trains; "": any.
    std::uint64_t parameters_max = limits::client_parameters_max;  // Larger models are refused.
    int threads = 1;                // Threads that encode an update; 0: one per core.
    std::uint64_t jitter_seed = 0;  // Spreads the reconnections of many clients over time.
    ModelCache* models = nullptr;   // Shared with other agents of the process; null: its own.
    TraceFile* trace = nullptr;     // The agent writes its work there; null: no trace.
    Patience patience;
  };
  enum class Outcome { finished, stopped, gave_up };

  /// All arguments that are references or pointers must outlive the agent. `keeper` may be null.
  /// The agent gives `worker` one piece of work at a time. `folder` is the client's state folder.
  /// With `options.threads` other than 1, `files` must be usable from any thread.
  Agent(net::any_io_executor strand, Connector& connector, IdentityKeeper* keeper, Files& files,
        std::filesystem::path folder, TrainerFactory factory, Offload& worker, Options options);
  ~Agent();

  /// Runs until the run ends (with `stay`: never), until stop() is called, until the server can't
  /// be reached for longer than the patience lasts, or until a permanent error: the server rejects
  /// this client, the model is unknown, the data can't be read, the disk fails.
  Awaitable<Result<Outcome>> run();
  /// Ends run() soon. On the agent's strand.
  void stop();

 private:
  /// The worker has finished a job.
  struct JobDone {
    std::int64_t task = 0;  // 0: the job was not a training.
    Result<void> result = success();
    std::optional<wire::Evaluation> evaluation;
  };
  /// A message or the end of a connection's link.
  struct Arrival {
    std::uint64_t connection = 0;
    Result<Message> message;
  };
  using Event = std::variant<JobDone, Arrival>;

  struct Download {
    wire::ModelHeader model;
    ModelCache::Model known;        // Not null: the cache has the version, so bytes are dropped.
    std::vector<float> values;      // A full model: its values.
    std::vector<std::byte> deltas;  // Otherwise: the coded deltas.
    std::uint64_t received = 0;     // Bytes.
    TimePoint save_at = never;      // When to save the received bytes to disk again.
    [[nodiscard]] MutableBytes target() {
      return model.full() ? std::as_writable_bytes(std::span(values)) : MutableBytes(deltas);
    }
  };
  /// The model version that this agent has. Its values are in the ModelCache.
  struct Replica {
    bool is_there = false;
    std::uint32_t version = 0;
    Digest digest;
  };
  struct Sending {
    wire::UploadBegin begin;
    SegmentSource source;
    std::uint64_t offset = 0;
    std::optional<ChunkSize> size;  // Set by the server's Resume: chunks may be sent.
    TimePoint begin_at{};           // When to announce it (again).
    TimePoint announced_at{};
    bool is_announced = false;
    bool is_damaged = false;  // The file can't be read, so there is nothing to send.
  };
  /// Serves one connection until the run ends, stop() is called, or an error ends the connection.
  Awaitable<Result<Outcome>> serve(std::shared_ptr<Link> link);
  Awaitable<Result<void>> shake_hands();
  Awaitable<Result<void>> renew_between_runs();
  [[nodiscard]] static Result<void> check_welcome(const wire::Welcome& welcome);
  [[nodiscard]] Result<void> check_size(const std::string& model, std::uint64_t parameters) const;
  Awaitable<Result<void>> prepare(const wire::Welcome& welcome);
  Awaitable<Result<void>> enter_run(std::string run_key);
  Awaitable<Result<void>> load_model(std::string model);
  Awaitable<void> read_all(std::shared_ptr<Link> link, std::uint64_t connection);
  Awaitable<bool> end_job();
  Awaitable<void> leave_run();
  Awaitable<void> export_own_tensors();
  Awaitable<void> back_off(int attempt, TimePoint latest);

  Awaitable<Result<void>> handle(Message message);
  Awaitable<Result<void>> finish_job(JobDone done);
  Awaitable<Result<void>> advance();
  Awaitable<Result<void>> announce();
  void announce_again_after(Duration pause);
  /// Our own disk is full: the connection stays, and the update is announced again after a pause.
  void put_off(const Error& error);
  /// Returns false if the agent was stopped meanwhile.
  Awaitable<bool> pause_for_disk();
  Awaitable<Result<void>> resume(const wire::Resume& resume);
  Awaitable<Result<void>> send_some();
  Awaitable<Result<void>> take_verdict(const wire::Verdict& verdict);
  Awaitable<Result<void>> begin_download(const wire::ModelHeader& model);
  Awaitable<void> save_download();
  Awaitable<Result<void>> take_chunk(const Message& message);
  Result<void> finish_download();
  Result<std::vector<float>> apply_deltas();
  Awaitable<Result<void>> fetch(std::uint32_t version);
  Awaitable<Result<void>> prepare_pending();
  Awaitable<Result<void>> check_renewal();
  Result<void> take_renewal(const wire::Renewed& renewed);
  Awaitable<Result<void>> send(wire::Header header);

  /// A reason that an end of the connection tells the other, short and safe to show.
  [[nodiscard]] static std::string shown_reason(std::string_view text);
  [[nodiscard]] static Result<void> check_length(std::string_view what, std::string_view text,
                                                 std::size_t bytes_max);
  [[nodiscard]] ModelCache::Model replica(std::uint32_t version, const std::string& digest) const;
  void forget_offer(std::int64_t task);
  void trace(const char* what, std::uint32_t round, TimePoint begin, std::uint64_t bytes = 0);
  void start_job(std::int64_t task, std::function<JobDone()> work);
  Awaitable<void> run_job(std::int64_t task, std::function<JobDone()> work);
  JobDone train(const wire::Offer& offer, std::span<const float> model, std::stop_token stop);
  JobDone evaluate(std::uint32_t version, std::span<const float> values, std::stop_token stop);
  void make_version_0();
  DeviceCopy device_for(const Codec& codec);
  Result<void> check_initial(const wire::Offer& offer);
  Result<void> train_by_rule(const wire::Offer& offer, std::span<const float> version,
                             wire::UploadBegin& begin, std::span<float> update,
                             std::span<float> kept, std::stop_token stop);
  [[nodiscard]] Result<std::vector<float>> local_values(std::span<const float> version) const;
  [[nodiscard]] const OwnModel* own_model() const;
  [[nodiscard]] std::size_t kept_vector_elements() const;
  std::optional<ClientState::OwnTensors> own_tensors() const;
  Result<void> train_own(TrainSettings settings, std::span<const float> global,
                         std::span<float> own, std::stop_token stop);
  [[nodiscard]] std::span<const float> whole_model(std::span<const float> version,
                                                   std::span<const float> kept,
                                                   std::vector<float>& room) const;
  [[nodiscard]] Result<std::vector<float>> initial_values(std::uint64_t seed) const;

  net::any_io_executor strand_;
  Connector& connector_;
  IdentityKeeper* keeper_;
  Files& files_;
  std::filesystem::path folder_;
  TrainerFactory factory_;
  Offload& worker_;
  Options options_;
  std::minstd_rand jitter_;

  std::optional<ClientState> state_;          // Used by the worker while a job runs.
  std::optional<ResumableDownload> partial_;  // The saved part of a slow download.
  std::unique_ptr<Trainer> trainer_;
  std::optional<DeviceCoder> coder_;  // The coder on the trainer's device, made when needed.
  std::shared_ptr<const Strategy> strategy_;
  RunLayout layout_;  // The trainer's model, and the vectors that the strategy sends with it.
  std::string model_;
  std::uint64_t seed_ = 0;
  std::optional<Digest> initial_digest_;  // Of the weights made from (model, seed), when known.
  std::string run_initial_;               // wire::Offer::initial_digest of this run, when known.
  std::string run_key_;
  std::string authorities_;  // As the Welcome of this connection names them.
  std::string told_run_;  // The last run that this client declined, with its reason, to the server.

  std::shared_ptr<Link> link_;
  std::uint64_t connection_ = 0;
  Mailbox<Event> events_;
  Signal stopped_;
  TaskGroup group_;

  std::optional<wire::Offer> offer_;     // The newest offer; cleared when its update is made.
  std::deque<wire::Evaluate> evaluate_;  // Versions to evaluate, oldest first.
  bool wants_renewal_ = false;           // This client has asked for a new certificate.
  bool is_between_runs_ = false;         // The last answer to Hello: no run is on.
  std::optional<Download> download_;     // Kept when the connection breaks, to resume it.
  TimePoint fetched_at_{};               // When the newest Fetch was sent.
  bool is_fetching_ = false;             // A Fetch of this connection is not complete yet.
  Replica replica_;
  ModelCache own_models_;
  ModelCache& models_;
  std::optional<Sending> sending_;
  TimePoint retry_at_{};           // After a full disk: nothing begins before this time.
  int refusals_ = 0;               // Updates that were refused one after the other.
  std::int64_t refused_task_ = 0;  // The last refused one; its verdict may arrive twice.
  std::int64_t job_task_ = 0;
  bool has_job_ = false;
  std::stop_source job_stop_;
  bool stopping_ = false;
};

}  // namespace fl
