// SPDX-License-Identifier: Apache-2.0
#include "examples/sim/federation.hpp"

#include "client/agent/agent.hpp"
#include "client/secure/membership.hpp"
#include "examples/sim/in_process_link.hpp"
#include "examples/sim/masked_members.hpp"
#include "examples/sim/scratch_files.hpp"
#include "examples/sim/virtual_trainer.hpp"
#include "examples/sim/worker_trainer.hpp"
#include "server/admin/status_line.hpp"
#include "server/app/newer_files.hpp"
#include "server/app/run_queue.hpp"
#include "server/net/session.hpp"
#include "server/run/best_of_run.hpp"
#include "server/run/masked_settings.hpp"
#include "server/run/run_plan.hpp"
#include "shared/base/async/mutex.hpp"
#include "shared/base/async/stop_signals.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/base/state_lock.hpp"
#include "shared/params/model_table.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>

namespace fl::sim {

namespace {

/// The parts that train: the model, and the makers of the clients' trainers.
struct Learning {
  Layout layout;
  std::function<TrainerFactory(std::uint32_t shard)> client;
  TrainerFactory evaluator;  // Evaluates on central data; null: there are none.
};

/// The parts that all clients share. They outlive the clients.
struct World {
  /// There are as many work slots as threads. More would only compete for memory and caches.
  World(net::io_context& io, std::size_t threads, std::size_t models_max)
      : workers(io.get_executor()), slots(threads), models(models_max) {}

  Offload workers;  // Runs the clients' training and the engine's aggregation.
  WorkSlots slots;
  client::ModelCache models;
  ScratchFiles files;
};

std::string name_of(std::uint32_t shard) { return fmt::format("client-{}", shard + 1); }

constexpr Duration log_pause_min = std::chrono::seconds(1);
constexpr Duration log_pause_max = std::chrono::seconds(10);

Awaitable<void> serve(std::shared_ptr<server::Session> session) { co_await session->run(); }

class VirtualClient final : public client::Connector {
 public:
  VirtualClient(net::any_io_executor strand, std::string name, std::filesystem::path folder,
                World& world, std::shared_ptr<server::SessionHost> host, TrainerFactory factory,
                bool is_evaluator, const MaskedMembers* members, const SimOptions& sim,
                std::function<void()> note_absent)
      : strand_(std::move(strand)),
        name_(std::move(name)),
        host_(std::move(host)),
        slots_(is_evaluator ? nullptr : &world.slots),
        drop_outs_(sim.drop_outs, sim.settings.seed, name_, members != nullptr),
        away_for_(duration_of(sim.drop_outs.seconds)),
        away_(strand_),
        note_absent_(std::move(note_absent)),
        agent_(strand_, *this, nullptr, world.files, std::move(folder), std::move(factory),
               world.workers, agent_options(is_evaluator, world, members, name_)) {}

  Awaitable<Result<std::shared_ptr<Link>>> connect() override {
    // stop() ends it.
    co_await away_.async_wait(net::as_tuple(net::use_awaitable));
    auto drops_out = [this](const wire::Header& message) { return this->drops_out(message); };
    const auto [client_end, server_end] =
        InProcessLink::make(strand_, name_, slots_, std::move(drops_out));
    net::co_spawn(strand_, serve(std::make_shared<server::Session>(server_end, name_, host_)),
                  rethrow);
    co_return std::shared_ptr<Link>(client_end);
  }

  [[nodiscard]] client::Agent& agent() { return agent_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] net::any_io_executor strand() const { return strand_; }
  /// On the strand.
  void stop() {
    agent_.stop();
    away_.cancel();
  }

 private:
  bool drops_out(const wire::Header& message) {
    if (!drop_outs_.breaks_at(message)) return false;
    log_at(LogLevel::debug, "{} drops out at its {}", name_, kind_name(message));
    away_.expires_after(away_for_);
    note_absent_();
    return true;
  }
  /// `members`: null, if the run is not masked.
  static client::Agent::Options agent_options(bool is_evaluator, World& world,
                                              const MaskedMembers* members,
                                              const std::string& name) {
    client::Agent::Options options;
    options.evaluator = is_evaluator;
    options.models = &world.models;
    options.parameters_max = limits::parameters_max;  // No limit: the server is in this process.
    if (members != nullptr && !is_evaluator) options.secure = members->options_of(name);
    return options;
  }

  net::any_io_executor strand_;
  std::string name_;
  std::shared_ptr<server::SessionHost> host_;
  WorkSlots* slots_;
  DropOuts drop_outs_;
  Duration away_for_;
  net::steady_timer away_;  // Until when it is away.
  std::function<void()> note_absent_;
  client::Agent agent_;
};

std::filesystem::path folder_of(const SimOptions& options, const std::string& client) {
  return std::filesystem::absolute(options.state) / "clients" / client;
}

/// Federation's trainers, for models that are built in. `options` must outlive them.
Result<SharedLearning> load_builtin(const SimOptions& options) {
  FL_TRY(SharedLearning learning, load_shared_learning(options.learn));
  learning.epochs_from = options.epochs_from;
  FL_TRY(learning.attack, parse_attack(options.attack));
  learning.malicious = options.malicious;
  learning.client_seed = [](std::uint32_t shard) {
    const std::string name = name_of(shard);
    return Digest::of(bytes_of(std::string_view(name))).short_id();
  };
  learning.folder = [&options](std::uint32_t shard) {
    return folder_of(options, name_of(shard)).string();
  };
  learning.task_seed = [seed = options.settings.seed](server::Round round, std::uint32_t shard) {
    return server::client_seed(seed, round, name_of(shard));
  };
  return learning;
}

/// Makes the trainers of built-in models. `shared` must outlive them.
Learning builtin_learning(const SharedLearning& shared, const SimOptions& options) {
  Learning learning{.layout = shared.layout, .client = {}, .evaluator = nullptr};
  learning.client = [&shared](std::uint32_t shard) -> TrainerFactory {
    return [&shared, shard, seed = shared.client_seed(shard)](const std::string&) {
      return Result<std::unique_ptr<Trainer>>(make_virtual_trainer(shared, shard, seed));
    };
  };
  if (options.test.empty()) return learning;
  LearnOptions test = options.learn;
  test.data = options.test;
  test.evaluate_only = true;
  learning.evaluator = [test](const std::string&) { return make_trainer(test); };
  return learning;
}

/// Starts the user's programs. Without a file of initial weights, one of them makes it.
Result<std::unique_ptr<WorkerPool>> start_workers(SimOptions& options) {
  const StopWhileStarting stop;
  const auto state = std::filesystem::absolute(options.state);
  const int programs = std::min(options.threads, static_cast<int>(options.clients));
  FL_TRY(auto workers, WorkerPool::start(options.trainer, state, programs, stop.token()));
  if (options.settings.initial_weights.empty()) {
    const auto file = state / "initial-weights.safetensors";
    FL_CHECK(workers->write_initial_weights(options.settings.seed, file));
    options.settings.initial_weights = file.string();
  }
  FL_CHECK(take_tensors(posix_files(), options.settings));
  FL_TRY(const Layout layout, model_layout(options.settings));
  if (layout.digest() == workers->hello().layout.digest()) return workers;
  return Error(Errc::conflict,
               fmt::format("--initial-weights {} has other tensors than the trainer's model",
                           options.settings.initial_weights));
}

/// Makes the trainers that programs stand behind. `workers` must outlive them.
Learning worker_learning(WorkerPool& workers, const SimOptions& options) {
  Learning learning{.layout = workers.hello().layout, .client = {}, .evaluator = nullptr};
  learning.client = [&workers, &options](std::uint32_t shard) -> TrainerFactory {
    const PlayedClient client{.number = shard,
                              .clients = options.clients,
                              .state = folder_of(options, name_of(shard)),
                              .examples = {}};
    return [&workers, client](const std::string& model) {
      return make_worker_trainer(workers, model, client);
    };
  };
  if (workers.hello().examples.holdout == 0) return learning;
  learning.evaluator = [&workers](const std::string& model) {
    return make_worker_trainer(workers, model, std::nullopt);
  };
  return learning;
}

Result<void> check(const SimOptions& options) {
  // The model of a program is unknown before it says hello; choose_run() checks then.
  if (!options.trainer.is_set()) FL_CHECK(check_settings(options.settings));
  if (options.settings.min_clients > options.clients) {
    return Error(Errc::invalid_input, fmt::format("--min-clients {} is more than --clients {}",
                                                  options.settings.min_clients, options.clients));
  }
  if (options.settings.keep_updates != "none")
    return Error(Errc::invalid_input, "--keep-updates: fl-sim keeps none; runs of fl-server do");
  if (options.epochs_from > std::max(1u, options.settings.local_epochs)) {
    return Error(Errc::invalid_input,
                 fmt::format("--epochs-from {} is more than --local-epochs {}", options.epochs_from,
                             options.settings.local_epochs));
  }
  FL_TRY(const Attack attack, parse_attack(options.attack));
  if ((attack.kind == Attack::Kind::none) != (options.malicious == 0))
    return Error(Errc::invalid_input, "--malicious N and --attack NAME go together: give both");
  if (options.malicious >= options.clients) {
    return Error(Errc::invalid_input,
                 fmt::format("--malicious {} of --clients {} leaves no honest client",
                             options.malicious, options.clients));
  }
  if (options.epochs_from > 0 && options.settings.local_steps > 0)
    return Error(Errc::invalid_input, "--epochs-from has no effect with --local-steps: use one");
  if (!options.test.empty() && options.settings.model.starts_with("synthetic:")) {
    return Error(Errc::invalid_input,
                 fmt::format("--test: model \"{}\" can't be evaluated", options.settings.model));
  }
  return {};
}

/// The engine, its clients, and the io_context that runs all their strands.
class Federation {
 public:
  /// `members`: of a masked run.
  Federation(const SimOptions& options, server::ChosenRun run, Learning learning,
             server::Store& store, std::optional<MaskedMembers> members)
      : options_(options),
        run_(std::move(run)),
        members_(std::move(members)),
        world_(io_, static_cast<std::size_t>(options.threads), models_max(run_.settings)),
        engine_(std::make_shared<server::RoundEngine>(
            net::make_strand(io_), run_.settings, run_.record, learning.layout, world_.files, store,
            server::RoundEngine::Shared{.store = &store_thread_,
                                        .compute = &world_.workers,
                                        .members = members_ ? members_->list() : ""},
            paths_of(options.state, run_.record))),
        signals_(io_),
        stopped_(engine_->executor()) {
    for (std::uint32_t shard = 0; shard < options.clients; ++shard)
      add(name_of(shard), false, learning.client(shard));
    has_evaluator_ = learning.evaluator != nullptr;
    if (has_evaluator_) add("evaluator", true, std::move(learning.evaluator));
  }

  Result<void> run() {
    signals_.on_stop([this] { stop(); });
    for (const auto& client : clients_) {
      net::co_spawn(client->strand(), client->agent().run(),
                    [this, &client](const std::exception_ptr& failure, const auto& outcome) {
                      rethrow(failure);
                      if (!outcome) fail(outcome.error().at(client->name()));
                    });
    }
    net::co_spawn(engine_->executor(), live(), rethrow);
    const bool is_live = ::isatty(STDERR_FILENO) == 1 && !options_.log_json;
    net::co_spawn(engine_->executor(), is_live ? show_status(engines_, is_over_) : log_rounds(),
                  rethrow);
    {
      std::vector<std::jthread> crew;
      crew.reserve(static_cast<std::size_t>(crew_size()));
      const WithoutStopSignals guard;
      for (int i = 0; i < crew_size(); ++i) crew.emplace_back([this] { io_.run(); });
    }
    const MutexLock lock(mutex_);
    if (failure_) return *failure_;
    return {};
  }

 private:
  /// The number of threads: one for each client at work, one for the evaluator if there is one, and
  /// one that handles signals and messages while the others train.
  [[nodiscard]] int crew_size() const { return options_.threads + (has_evaluator_ ? 2 : 1); }
  /// As many versions as the server keeps. An older one is useless: the server has no deltas from
  /// it.
  static std::size_t models_max(const server::RunSettings& settings) {
    return settings.keep_checkpoints > 0 ? settings.keep_checkpoints : settings.rounds + 1;
  }

  void add(const std::string& name, bool is_evaluator, TrainerFactory factory) {
    const auto folder = std::filesystem::path(options_.state) / "clients" / name;
    clients_.push_back(std::make_unique<VirtualClient>(
        net::make_strand(io_), name, folder, world_, host_of(engine_), std::move(factory),
        is_evaluator, members_ ? &*members_ : nullptr, options_, [this] { note_absent(); }));
  }

  /// From then on no round waits for all.
  void note_absent() {
    net::post(engine_->executor(), [engine = engine_] { engine->wait_for_sessions(0); });
  }

  Awaitable<void> live() {
    // Wait for all clients, so that the first cohort does not depend on the order of connecting.
    engine_->wait_for_sessions(clients_.size());
    const auto outcome = co_await engine_->run();
    if (!outcome) fail(outcome.error());
    stop();
  }

  /// Logs the progress now and then, if the round has changed, where there is no terminal.
  Awaitable<void> log_rounds() {
    server::Round said = 0;
    Duration pause = log_pause_min;
    while (!*is_over_) {
      co_await stopped_.wait(Clock::now() + pause);
      const server::EngineStatus status = engine_->view().status();
      if (!*is_over_ && status.round != said) log_progress(format_status(status));
      said = status.round;
      pause = std::min(2 * pause, log_pause_max);
    }
  }

  void fail(const Error& error) {
    const MutexLock lock(mutex_);
    if (!failure_) failure_ = error;
    stop();
  }

  /// Any thread; may be called more than once.
  void stop() {
    *is_over_ = true;
    net::post(engine_->executor(), [this] {
      engine_->stop();
      stopped_.notify();
      signals_.cancel();
    });
    for (const auto& client : clients_) net::post(client->strand(), [&client] { client->stop(); });
  }

  const SimOptions& options_;
  server::ChosenRun run_;
  const std::optional<MaskedMembers> members_;
  net::io_context io_;
  // The io_context's threads do all the work. Waking other threads for each piece of work would
  // cost a tenth of the time.
  Offload store_thread_{net::make_strand(io_)};
  World world_;
  std::shared_ptr<server::RoundEngine> engine_;
  server::Engines engines_{engine_};
  std::vector<std::unique_ptr<VirtualClient>> clients_;
  bool has_evaluator_ = false;
  StopSignals signals_;
  Signal stopped_;  // On the engine's strand.
  std::shared_ptr<std::atomic<bool>> is_over_ = std::make_shared<std::atomic<bool>>(false);
  Mutex mutex_;
  std::optional<Error> failure_ FL_GUARDED_BY(mutex_);  // The first error.
};

}  // namespace

Result<SimulatedRun> run_federation(SimOptions options) {
  FL_CHECK(check(options));
  const bool has_programs = options.trainer.is_set();
  std::optional<SharedLearning> builtin;
  if (!has_programs) {
    FL_TRY(builtin, load_builtin(options));
  }
  FL_CHECK(make_state_folder(posix_files(), options.state));
  FL_TRY([[maybe_unused]] const auto lock, StateLock::take(options.state));
  std::unique_ptr<WorkerPool> workers;
  if (has_programs) {
    auto started = start_workers(options);
    if (!started && started.error().code() == Errc::cancelled) return SimulatedRun();
    FL_TRY(workers, std::move(started));
  }
  Learning learning =
      builtin ? builtin_learning(*builtin, options) : worker_learning(*workers, options);
  FL_CHECK(server::check_nothing_newer(options.state));
  server::Store::Options store_options;
  store_options.path = std::filesystem::path(options.state) / "history.sqlite";
  store_options.durable = false;
  FL_TRY(const auto store, server::Store::open(store_options));
  server::ServeOptions wanted;
  wanted.settings = options.settings;
  // Marks both as given, so that the default too overrides the model of the run before, and no seed
  // is drawn.
  wanted.given = options.given;
  wanted.given.insert({"model", "seed"});
  wanted.new_run = true;
  FL_TRY(server::ChosenRun run, choose_run(*store, wanted));
  const server::RunId id = run.record.id;
  std::optional<MaskedMembers> members;
  FL_TRY(const auto masked, server::parse_secure_aggregation(run.settings.secure_aggregation));
  if (masked) {
    std::vector<std::string> names;
    for (std::uint32_t shard = 0; shard < options.clients; ++shard) {
      names.push_back(name_of(shard));
      FL_CHECK(client::forget_members(posix_files(), folder_of(options, names.back())));
    }
    FL_TRY(members, MaskedMembers::make(names));
  }
  Federation federation(options, std::move(run), std::move(learning), *store, std::move(members));
  const auto ended = federation.run();
  // A run that was interrupted can't be resumed, because the clients' state is lost.
  FL_TRY(const auto open, store->runs().next_open());
  if (open && open->id == id) FL_CHECK(store->runs().set_state(id, server::RunState::stopped));
  FL_CHECK(ended);
  FL_TRY(auto rounds, store->summaries().rounds(id));
  FL_TRY(const auto record, store->runs().find(id));
  if (rounds.empty() && record && !record->early_end.empty())
    return Error(Errc::invalid_input, record->early_end);
  FL_TRY(auto best, server::best_of_runs(*store, rounds));
  return SimulatedRun{std::move(rounds), std::move(best)};
}

}  // namespace fl::sim
