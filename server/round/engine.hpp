// The round engine: gather, offer, collect, apply, record, round after round; in an asynchronous
// run (round_mode.hpp) a round is a buffer of updates, and tasks go on from one to the next. It
// decides; sessions carry. Everything here runs on one strand (executor()), reaches the disk
// through Files and Store on worker threads, time through Clock, and clients through Peer: so the
// simulator runs this same code.
//
// What is durable when: a round and its tasks before the first offer; an update, its verdict and
// its place in the spool before it is acknowledged; the new model's file before the row that names
// it; everything else of the round in one transaction (Store::commit_round). Whatever is killed
// when, a restart finds each update accepted once or not at all, and ends in the same model.
#pragma once

#include "server/cohort/codec_choice.hpp"
#include "server/cohort/sampler.hpp"
#include "server/history/store.hpp"
#include "server/round/spool.hpp"
#include "server/run/round_mode.hpp"
#include "server/run/settings.hpp"
#include "server/versions/checkpoints.hpp"
#include "server/versions/delta_references.hpp"
#include "shared/algorithm/strategy.hpp"
#include "shared/base/async/mailbox.hpp"
#include "shared/base/async/offload.hpp"
#include "shared/base/async/task_group.hpp"
#include "shared/codec/encode/codec.hpp"
#include "shared/codec/sums/accumulator.hpp"
#include "shared/wire/message.hpp"
#include "shared/wire/transfer.hpp"

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

namespace fl {

/// A client's session, as the engine sees it. All methods from any thread; none blocks.
class Peer {
 public:
  /// What the client said of itself; its name is what its certificate says.
  struct Facts {
    std::string name;
    std::string serial;  // Of the certificate; empty where the link has none.
    bool evaluator = false;
    std::uint64_t train_examples = 0;
    std::uint64_t holdout_examples = 0;
  };

  virtual ~Peer() = default;
  [[nodiscard]] virtual const Facts& facts() const = 0;
  /// Sends a control message, in order; drops the session when too many wait.
  virtual void post(wire::Header header) = 0;
  /// Says Bye and closes.
  virtual void dismiss(wire::Bye::Cause cause, const std::string& reason) = 0;
  [[nodiscard]] virtual std::uint64_t bytes_up() const = 0;
  [[nodiscard]] virtual std::uint64_t bytes_down() const = 0;
};

/// What the status line and the admin pages show.
struct EngineStatus {
  RunId run = 0;
  std::string run_key;
  std::string model;
  std::string phase;  // "waiting for 2 clients (1 is here)", "collecting", …
  Round round = 0;    // The one under way, or the last.
  Round rounds_total = 0;
  std::uint32_t clients = 0;  // Connected trainers.
  std::uint32_t evaluators = 0;
  std::uint32_t offered = 0;
  std::uint32_t accepted = 0;
  std::uint64_t bytes_up = 0;  // Since this process began the run.
  std::uint64_t bytes_down = 0;
  std::optional<double> accuracy;  // Newest evaluation.
  double round_seconds = 0;        // Mean of the rounds that this process ran.
  double started_at = 0;
};

class RoundEngine {
 public:
  struct Paths {
    std::filesystem::path checkpoints;
    std::filesystem::path spool;
    std::filesystem::path references;
  };
  struct Workers {
    Offload* store;    // One thread: the only one that calls Store.
    Offload* compute;  // Decoding, adding up, writing models.
  };
  enum class Outcome { finished, stopped };

  /// `model`: the model's tensors. The settings have passed check_settings().
  RoundEngine(net::any_io_executor strand, RunSettings settings, RunRecord run, const Layout& model,
              Files& files, Store& store, Workers workers, Paths paths);
  ~RoundEngine();

  /// Runs from where the store says the run is to its end, or to stop(). An error is fatal: the
  /// store or the disk failed in a way that must not be retried; a restart goes on from the last
  /// good state.
  Awaitable<Result<Outcome>> run();
  /// Before run(): no round begins until so many sessions are here, evaluators included.
  void expect(std::size_t sessions) { expected_sessions_ = sessions; }
  /// A clean end as soon as what is being made durable is durable. The next start goes on here.
  void stop();

  // What sessions call, on the engine's strand. --------------------------------------------------

  /// What a new client needs to know. The Error's text goes to the client.
  [[nodiscard]] Result<wire::Welcome> welcome(const std::string& name,
                                              const wire::Hello& hello) const;
  /// A client is ready. A second session of the same client replaces the first (its line broke
  /// without our noticing). The Error's text goes to the client.
  Awaitable<Result<void>> join(std::shared_ptr<Peer> peer);
  /// Without `for_good` the peer may be trying to come back.
  void leave(const std::shared_ptr<Peer>& peer, bool for_good = false);

  struct Download {
    wire::ModelHeader model;
    SegmentSource source;
    std::shared_ptr<const void> version;  // Keeps the files open.
    std::size_t chunk_bytes_max = 0;
  };
  Result<Download> download(const wire::Fetch& fetch);

  /// Either an upload to write chunks to, or a verdict at once.
  struct Grant {
    std::shared_ptr<Upload> upload;
    std::size_t chunk_bytes_max = 0;
    wire::Verdict verdict;
    wire::UploadBegin begin;
    TimePoint began_at{};
    std::uint64_t offset = 0;  // Bytes that were there then.
  };
  Awaitable<Grant> begin_upload(std::shared_ptr<Peer> peer, wire::UploadBegin begin);
  /// After the last byte: checks, makes durable, adds up, decides.
  Awaitable<wire::Verdict> finish_upload(std::shared_ptr<Peer> peer, Grant grant);
  /// A bulk transfer of a session began (+1) or ended (-1).
  void bulk(int change) { bulk_transfers_ += change; }

  Awaitable<void> evaluation(std::shared_ptr<Peer> peer, wire::Evaluation evaluation);
  Awaitable<void> failed(std::shared_ptr<Peer> peer, wire::Failed failed);
  /// For the log and the history: who came and went ("info"), what went wrong with whom
  /// ("warning").
  void report(std::string level, std::string text);
  /// The event without the line in the log.
  void note(std::string level, std::string text);
  /// Reports it, and gives back what the spool keeps in reserve.
  void disk_is_full(const std::string& text);
  /// Ends the session of a client that was revoked.
  void expel(const std::string& name, const std::string& reason);

  [[nodiscard]] EngineStatus status() const;
  [[nodiscard]] net::any_io_executor executor() const { return strand_; }
  [[nodiscard]] std::size_t chunk_bytes_max() const;

  /// Runs `work(store)` on the store's thread; while the disk is full, or another program holds the
  /// database, it waits and tries again.
  /// Other errors come back, and are fatal to whoever needed it done.
  template <class Function>
  Awaitable<std::invoke_result_t<Function&, Store&>> with_store(Function work);

 private:
  class Pause;
  /// Runs `work()` on a worker; while the disk is full, or too many files are open, it waits and
  /// tries again.
  template <class Function>
  Awaitable<std::invoke_result_t<Function&>> with_room(Function work);

  struct Task {
    TaskRecord record;
    bool is_verifying = false;
    bool waits_for_range = false;  // Verifying, but not being added: the sums' range must widen.
    bool has_arrived = false;      // All of its update, which waits for a round that takes it in.
    TimePoint offered_at{};
    TimePoint begun_at{};         // Its upload, the first time.
    std::uint64_t up_before = 0;  // The client's traffic when the task was offered.
    std::uint64_t down_before = 0;
    /// Offered, and its update not yet being taken in.
    [[nodiscard]] bool is_open() const {
      return record.state == TaskState::offered && !is_verifying;
    }
    int failures = 0;          // Of this client in this round, and
    TimePoint ask_again_at{};  // when it may be asked once more.
  };
  struct OpenRound {
    RoundRecord record;
    std::map<std::string, Task> tasks;  // By client.
    TimePoint opened_at{};
    TimePoint deadline = never;
    std::uint64_t up_before = 0;
    std::uint64_t down_before = 0;
    std::uint64_t weight_bound = 0;  // The sum of accepted weights, in units, stays below it.
    bool is_recorded = false;        // It is durable, and with it that carried tasks are of it.
    bool is_closing = false;
    bool is_too_narrow = false;  // An update would fit into a wider range of the sums.

    /// The tasks that go on from the round before, where they are: some are being decided on.
    void take(std::map<std::string, Task> carried);
    /// A client's task, or the next one of a client whose last one came to nothing.
    Task& put(Task task);
    void decide(Task& task, TaskRecord decided);
    /// Of all tasks, without looking at each: what waits for a round asks at every update.
    [[nodiscard]] std::uint32_t count(TaskState state) const {
      return counts[static_cast<std::size_t>(state)];
    }
    [[nodiscard]] bool is_verifying() const;
    [[nodiscard]] bool is_adding() const;  // Verifying, and not waiting for a wider range.

   private:
    std::array<std::uint32_t, task_state_count> counts{};
  };
  /// A verdict on its way to the disk.
  struct Decision {
    TaskRecord record;
    std::optional<Result<void>> outcome;
  };
  struct Traffic {
    std::uint64_t up = 0;
    std::uint64_t down = 0;
  };

  // The round, in this order (engine.cpp, engine_offer.cpp; of the asynchronous mode, and what goes
  // on from round to round, in engine_async.cpp).
  Awaitable<Result<void>> restore();
  void begin_sums(const FixedPoint& fixed);
  Awaitable<Result<void>> rebuild_sums();
  [[nodiscard]] Result<void> remove_files(const CheckpointRecord& version);
  Awaitable<Result<void>> widen_range();
  [[nodiscard]] FixedPoint widest() const;
  [[nodiscard]] bool is_range_narrow() const {
    return round_->record.range_log2 < widest().range_log2;
  }
  Awaitable<Result<bool>> gather();  // False: stopped.
  Awaitable<Result<void>> offer();
  Awaitable<Result<bool>> collect();  // False: stopped.
  Awaitable<Result<bool>> collect_async();
  Awaitable<Result<void>> apply_and_record();
  Awaitable<void> await_last_evaluations();
  Awaitable<void> await_absent();
  [[nodiscard]] TimePoint end_of_absence();
  Awaitable<void> say_it_is_over();
  void dismiss_all(wire::Bye::Cause cause, const std::string& reason);
  void ask_to_evaluate(Peer& peer, const ModelVersion& version);
  void ask_to_catch_up(Peer& peer);
  void note_evaluated(Peer& peer, Round version);
  [[nodiscard]] bool owes_last_evaluation(const Peer& peer) const;
  [[nodiscard]] Round oldest_awaited(Round made) const;
  [[nodiscard]] bool is_over() const;
  [[nodiscard]] std::string early_end() const;
  [[nodiscard]] std::string names_missing() const;
  void note_displaced(const std::string& name);

  Awaitable<Result<bool>> drop_overdue();  // Whether there were such tasks.
  [[nodiscard]] TimePoint due(const Task& task) const;
  [[nodiscard]] TimePoint deadline_after(TimePoint start) const;  // `never` without --deadline.
  [[nodiscard]] std::size_t free_places() const;
  void carry_tasks(Round oldest_base);
  [[nodiscard]] bool takes_updates() const;
  Awaitable<Task*> admit(const std::string& client, std::int64_t task);
  void enter_clock(const std::string& client);
  /// Of who may be asked: RoundMode::ahead above the slowest of those who are here.
  [[nodiscard]] std::uint64_t clock_max() const;
  [[nodiscard]] Round staleness_of(const TaskRecord& task) const {
    return round_->record.base_version - task.base_version;
  }
  [[nodiscard]] Result<AdjustUpdate> adjustment_of(const TaskRecord& task) const;

  Awaitable<Result<bool>> add_tasks(std::size_t count);  // Whether anyone could be asked.
  [[nodiscard]] bool may_be_asked(const std::string& client) const;
  [[nodiscard]] TimePoint next_candidate_after(TimePoint by_then) const;
  static void note_failure(Task& task);
  Awaitable<Result<void>> read_histories();
  [[nodiscard]] std::vector<TaskRecord> sample(std::size_t count) const;
  [[nodiscard]] std::uint32_t target_clients(std::size_t available) const;
  [[nodiscard]] std::size_t cohort_for(std::uint32_t target) const;
  [[nodiscard]] Candidate candidate(const Peer& peer) const;
  [[nodiscard]] std::vector<Candidate> free_candidates() const;
  [[nodiscard]] std::uint32_t quorum() const;
  void send_offer(Task& task);
  /// Of all offers of a round, by the version that they are of (Seeds, shared/codec/core/plan.hpp).
  [[nodiscard]] std::uint64_t shared_seed_of(Round round) const;
  [[nodiscard]] SummedSketches summed_sketches() const;
  void publish(std::shared_ptr<const ModelVersion> version);
  void ask_evaluators();

  // Uploads (engine_uploads.cpp).
  Awaitable<Grant> begin_initial(std::shared_ptr<Peer> peer, wire::UploadBegin begin);
  Awaitable<wire::Verdict> finish_initial(std::shared_ptr<Peer> peer, Grant grant);
  Awaitable<Grant> open_upload(wire::UploadBegin begin);
  Awaitable<wire::Verdict> verdict_of_earlier(const std::string& client,
                                              const wire::UploadBegin& begin);
  [[nodiscard]] Result<void> check_begin(const wire::UploadBegin& begin, const Task& task) const;
  /// The client's task of the open round, or one that goes on from the last; or nullptr.
  [[nodiscard]] Task* task_of(const std::string& client);
  [[nodiscard]] Task* find_task(const std::string& client, std::int64_t task);
  Awaitable<Result<void>> settle(Task& task, TaskRecord record);
  static constexpr std::int64_t any_task = 0;  // Ids are above it.
  Awaitable<void> lose_task(std::string client, std::int64_t id, std::string reason);
  void end_tasks_of_expelled();
  Awaitable<Result<void>> decide(TaskRecord record);
  Awaitable<void> commit_decisions();
  void pick_initialiser();
  Awaitable<Result<void>> take_initial_file();

  [[nodiscard]] std::vector<std::shared_ptr<Peer>> trainers() const;
  [[nodiscard]] std::size_t trainer_count() const;
  [[nodiscard]] std::uint64_t weight_of(const TaskRecord& task) const {
    return strategy_->weight_of(task.examples);
  }
  /// What it adds to the sums: with its discount, in units.
  [[nodiscard]] std::uint64_t discounted_weight_of(const TaskRecord& task) const {
    return mode_.discounted(weight_of(task), staleness_of(task));
  }
  Result<UpdateNorms> add_to_sums(File& file, std::uint64_t bytes, const TaskRecord& task);
  [[nodiscard]] std::uint64_t accepted_weight() const;  // In the open round.
  [[nodiscard]] RoundFacts facts_of_round() const;
  /// What is asked in the offers of a round, the open one or one before: always the same.
  [[nodiscard]] TrainSettings work_of(Round round) const {
    return local_work(settings_, *strategy_, round, losses_);
  }
  void note_accuracy(Round version, double accuracy);
  [[nodiscard]] Traffic traffic_of(const std::string& client) const;
  [[nodiscard]] Traffic traffic() const;
  [[nodiscard]] bool came_from_seed() const;
  /// The accepted tasks of the open round that do.
  [[nodiscard]] std::map<std::string, std::int64_t> accepted_deltas() const;
  void fail(const Error& error);

  net::any_io_executor strand_;
  RunSettings settings_;
  RunRecord run_;
  std::vector<std::string> ladder_;  // Of codecs; mostly it has one.
  RoundMode mode_;
  std::shared_ptr<const Strategy> strategy_;
  Layout model_;
  RunLayout vector_;      // What versions, updates and sums are of,
  const Layout& layout_;  // and its tensors.
  Files& files_;
  Store& store_;
  Workers workers_;
  Paths paths_;
  Spool spool_;
  DeltaReferences references_;

  std::map<Round, std::shared_ptr<const ModelVersion>>
      versions_;  // Kept ones; the last is the newest.
  std::unique_ptr<Accumulator> sums_;
  std::optional<OpenRound> round_;
  std::map<std::string, Task> carried_;             // Between two rounds: what is under way still.
  std::vector<double> losses_;                      // Training losses of the recorded rounds.
  Store::RoundsBefore before_;                      // Of them.
  std::map<std::string, ClientHistory> histories_;  // Of the clients, before the open round.
  std::map<std::string, std::shared_ptr<Peer>> peers_;
  std::set<std::string> know_initial_;           // Whose session was told the digest of version 0.
  std::map<std::string, Traffic> departed_;      // Traffic of ended sessions, by client.
  std::map<std::string, std::string> expelled_;  // Why, by client: nobody waits for their tasks.
  std::optional<Traffic> recorded_;              // All that the last round's record has counted.
  std::map<std::string, std::uint64_t> clocks_;  // Updates of each client: for RoundMode::ahead.
  std::set<std::string> initialisers_;           // Who was asked for the initial weights, and
  TimePoint next_initialiser_at_{};              // when another is asked.
  bool initial_under_way_ = false;
  std::deque<std::shared_ptr<Decision>> decisions_;
  std::optional<double> accuracy_;
  Round accuracy_version_ = 0;
  double best_accuracy_ = 0;
  Round best_version_ = 0;
  std::map<std::string, Round> next_evaluation_;     // After the newest that one has answered for.
  std::map<std::string, Round> unasked_evaluation_;  // After the newest asked of each evaluator.
  /// Who is not here and has not said that it goes, and until when it is waited for at the end.
  std::map<std::string, TimePoint> absent_;
  struct Displaced {
    TimePoint since{};
    int times = 0;
  };
  std::map<std::string, Displaced> displaced_;  // By the client's name.
  std::string phase_ = "starting";
  std::string pause_;  // Why what waits for the disk does not go on, or "", and
  int paused_ = 0;     // how much waits.
  int bulk_transfers_ = 0;
  double rounds_seconds_ = 0;
  Round rounds_run_ = 0;
  double started_at_ = 0;
  std::size_t expected_sessions_ = 0;
  int notes_ = 0;             // Events on their way into the history.
  bool is_restored_ = false;  // Until then nobody joins.
  bool stopping_ = false;
  bool ended_ = false;
  std::optional<Error> fatal_;
  Signal changed_;  // Anything that the main loop waits for.
  Signal decided_;  // decisions_ grew, or one of them is durable.
  TaskGroup group_;
};

/// Of one that waits for the disk, or for the database: the last to go on ends the pause.
class RoundEngine::Pause {
 public:
  explicit Pause(RoundEngine& engine) : engine_(engine) {}
  ~Pause() {
    if (has_begun_ && --engine_.paused_ == 0) engine_.pause_.clear();
  }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;

  /// What is said of it, if that is news; or "". Then the engine waits for a moment.
  std::string begin(const Error& error) {
    engine_.paused_ += std::exchange(has_begun_, true) ? 0 : 1;
    const std::string why = error.code() == Errc::no_space
                                ? "paused, the disk is full"
                                : "paused: too many files are open, or another program holds the "
                                  "database";
    if (std::exchange(why_, why) == why || engine_.pause_ == why) return "";
    engine_.pause_ = why;
    return why + ": " + error.message();
  }

 private:
  RoundEngine& engine_;
  bool has_begun_ = false;
  std::string why_;
};

template <class Function>
Awaitable<std::invoke_result_t<Function&, Store&>> RoundEngine::with_store(Function work) {
  Pause pause(*this);
  for (;;) {
    auto call = [this, &work] { return work(store_); };
    auto result = co_await workers_.store->run(std::move(call));
    if (result || !will_pass(result.error())) {
      // The store answers nothing else from now on.
      const bool is_broken =
          !result && (result.error().code() == Errc::io || result.error().code() == Errc::corrupt);
      if (is_broken) fail(result.error());
      co_return result;
    }
    if (const std::string news = pause.begin(result.error()); !news.empty())
      report("warning", news);
    co_await sleep_for(limits::full_disk_pause);
    if (stopping_) co_return result;
  }
}

template <class Function>
Awaitable<std::invoke_result_t<Function&>> RoundEngine::with_room(Function work) {
  Pause pause(*this);
  for (;;) {
    auto call = [&work] { return work(); };
    auto result = co_await workers_.compute->run(std::move(call));
    if (result || !will_pass(result.error())) co_return result;
    const std::string news = pause.begin(result.error());
    if (!news.empty() && result.error().code() == Errc::no_space) disk_is_full(news);
    if (!news.empty() && result.error().code() != Errc::no_space) report("warning", news);
    co_await sleep_for(limits::full_disk_pause);
    if (stopping_) co_return result;
  }
}

}  // namespace fl
