// The client's main loop: connect, serve tasks, reconnect. One coroutine on one strand reads like
// that; training, evaluation and everything on disk run on one worker thread. It knows the server
// through Link, the model through Trainer, the disk through Files: so the simulator runs this same
// code.
#pragma once

#include "client/agent/model_cache.hpp"
#include "client/learn/trainer.hpp"
#include "client/state/client_state.hpp"
#include "client/state/resumable_download.hpp"
#include "shared/base/async/mailbox.hpp"
#include "shared/base/async/offload.hpp"
#include "shared/base/async/task_group.hpp"
#include "shared/wire/link.hpp"
#include "shared/wire/transfer.hpp"

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <variant>

namespace fl {

/// Opens connections to the server; the link runs on the agent's strand.
class Connector {
 public:
  virtual ~Connector() = default;
  virtual Awaitable<Result<std::shared_ptr<Link>>> connect() = 0;
};

/// The certificate's life: asks for a renewal when it is due. On the agent's strand.
class IdentityKeeper {
 public:
  virtual ~IdentityKeeper() = default;
  /// A signing request, when renewal is due.
  virtual Result<std::optional<std::string>> renewal_request() = 0;
  virtual Result<void> take_renewal(const wire::Renewed& renewed) = 0;
};

/// Makes the trainer of a model, loading the data. Called on the worker, once per model.
using TrainerFactory = std::function<Result<std::unique_ptr<Trainer>>(const std::string& model)>;

class Agent {
 public:
  struct Options {
    bool evaluator = false;
    bool stay = false;              // Waits for the next run when one is over.
    std::string model;              // Refuses a run of another model; "": any.
    int threads = 1;                // That code an update (0: one a core), on files of any thread.
    std::uint64_t jitter_seed = 0;  // Spreads the reconnections of many clients.
    ModelCache* models = nullptr;   // Shared with other agents of this process; null: its own.
  };
  enum class Outcome { finished, stopped };

  /// Everything given must outlive the agent, which gives `worker` one piece of work at a time.
  Agent(net::any_io_executor strand, Connector& connector, IdentityKeeper* keeper, Files& files,
        std::filesystem::path folder, TrainerFactory factory, Offload& worker, Options options);
  ~Agent();

  /// Until the run ends, stop() is called, or something is wrong that trying again will not mend:
  /// the server refuses this client, the model is unknown, the data can't be read, the disk fails.
  Awaitable<Result<Outcome>> run();
  void stop();

 private:
  /// The worker is done with what it was given.
  struct JobDone {
    std::int64_t task = 0;  // 0: not a training.
    Result<void> result = success();
    std::optional<wire::Evaluation> evaluation;
    bool is_initial = false;
  };
  /// From the link of one connection.
  struct Arrival {
    std::uint64_t connection = 0;
    Result<Message> message;
  };
  using Event = std::variant<JobDone, Arrival>;

  struct Download {
    wire::ModelHeader model;
    ModelCache::Model known;        // Another agent has it: what comes is checked, not kept.
    std::vector<float> values;      // Of a whole model,
    std::vector<std::byte> deltas;  // or of its coded steps.
    std::uint64_t received = 0;
    TimePoint save_at = never;  // When what has come is kept on disk, next.
    [[nodiscard]] MutableBytes target() {
      return model.full() ? std::as_writable_bytes(std::span(values)) : MutableBytes(deltas);
    }
  };
  /// What the agent has; its values are on the shelf.
  struct Replica {
    bool is_there = false;
    std::uint32_t version = 0;
    Digest digest;
  };
  struct Sending {
    wire::UploadBegin begin;
    SegmentSource source;
    std::uint64_t offset = 0;
    std::optional<ChunkSize> size;  // Once the server said where to go on.
    TimePoint begin_at{};           // When to (re)announce it.
    bool is_announced = false;
    bool is_damaged = false;  // There is nothing to send.
  };
  /// How one connection ended: by the run's end, by stop(), or by an error (unavailable:
  /// reconnect).
  Awaitable<Result<Outcome>> serve(std::shared_ptr<Link> link);
  Awaitable<Result<void>> shake_hands();
  Awaitable<Result<void>> prepare(const wire::Welcome& welcome);
  Awaitable<void> read_all(std::shared_ptr<Link> link, std::uint64_t connection);
  Awaitable<bool> end_job();
  Awaitable<void> leave_run();
  Awaitable<void> export_own_tensors();
  Awaitable<void> back_off(int attempt);

  Awaitable<Result<void>> handle(Message message);
  Awaitable<Result<void>> finish_job(JobDone done);
  Awaitable<Result<void>> advance();  // Begins what can begin now.
  Awaitable<Result<void>> announce();
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
  Awaitable<Result<void>> send(wire::Header header);

  [[nodiscard]] ModelCache::Model replica(std::uint32_t version, const std::string& digest) const;
  void forget_offer(std::int64_t task);
  void start_job(std::int64_t task, std::function<JobDone()> work);
  Awaitable<void> run_job(std::int64_t task, std::function<JobDone()> work);
  JobDone train(const wire::Offer& offer, std::span<const float> model, std::stop_token stop);
  JobDone evaluate(std::uint32_t version, std::span<const float> values, std::stop_token stop);
  JobDone make_initial(std::uint64_t seed);
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
  [[nodiscard]] std::vector<float> initial_values(std::uint64_t seed) const;

  net::any_io_executor strand_;
  Connector& connector_;
  IdentityKeeper* keeper_;
  Files& files_;
  std::filesystem::path folder_;
  TrainerFactory factory_;
  Offload& worker_;
  Options options_;
  std::minstd_rand jitter_;

  std::optional<ClientState> state_;          // Touched by the worker while a job runs.
  std::optional<ResumableDownload> partial_;  // Of a download that an earlier process began, or we.
  std::unique_ptr<Trainer> trainer_;
  std::optional<DeviceCoder> coder_;  // Of the trainer's device, once it was needed.
  std::shared_ptr<const Strategy> strategy_;
  RunLayout layout_;  // Of the trainer's model, and what the strategy lets travel with it.
  std::string model_;
  std::uint64_t seed_ = 0;
  std::optional<Digest> initial_digest_;  // Of (model, seed), once made.
  std::string run_initial_;               // wire::Offer::initial_digest, once said.
  std::string run_key_;
  std::string told_run_;  // The last run of which the server was told why this client is not in it.

  std::shared_ptr<Link> link_;
  std::uint64_t connection_ = 0;
  Mailbox<Event> events_;
  Signal stopped_;
  TaskGroup group_;

  std::optional<wire::Offer> offer_;     // The newest; cleared when its update is made.
  std::deque<wire::Evaluate> evaluate_;  // Versions to evaluate, oldest first.
  bool wants_initial_ = false;
  std::optional<Download> download_;  // Kept over reconnections, to go on where it broke.
  bool is_fetching_ = false;          // Asked on this connection, not yet complete.
  Replica replica_;
  ModelCache own_models_;
  ModelCache& models_;
  std::optional<Sending> sending_;
  TimePoint retry_at_{};           // After a full disk: no job begins before.
  int refusals_ = 0;               // Of updates, one after the other, and
  std::int64_t refused_task_ = 0;  // whose the last one was: it may be told again.
  std::int64_t job_task_ = 0;
  bool has_job_ = false;
  std::stop_source job_stop_;
  bool stopping_ = false;
};

}  // namespace fl
