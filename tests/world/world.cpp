// SPDX-License-Identifier: Apache-2.0
#include "tests/world/world.hpp"

#include "server/net/session.hpp"
#include "shared/base/limits.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl::test {

using namespace fl::server;

namespace {

using namespace std::chrono_literals;

constexpr auto simulated_time_max = 6h;
constexpr int world_steps_max = 2'000'000;
const std::filesystem::path state_folder = "/state";

}  // namespace

secure::Secret site_key_of(const std::string& name) {
  return secure::Secret(secure::digest_of({bytes_of("the site key of "), bytes_of(name)}));
}

std::string member_list_of(const WorldOptions& options) {
  const secure::Secret signer = site_key_of("the signer");
  std::string text =
      fmt::format("tributary-members 1\nepoch 1\nsmallest-cohort 3\nneeds 1\nsigner somebody {}\n",
                  secure::key_text(secure::signing_key(signer)));
  for (const auto& member : options.members) {
    if (!member.evaluator)
      text += fmt::format("member {} {}\n", member.name,
                          secure::key_text(secure::signing_key(site_key_of(member.name))));
  }
  const auto list = secure::parse_member_list(text).value();
  return text + secure::signature_line(list, signer).value() + "\n";
}

// Processes ------------------------------------------------------------------------------------

struct World::Server {
  Server(World& world, int number)
      : files(world.server_disk_, [this, &world] { die(world); }),
        vfs(fmt::format("sim-{}", number), files, SqliteFilesVfs::Time::clock),
        store_worker([&world] { return world.draw_duration(world.options_.pause_max); }),
        compute([&world] { return world.draw_duration(world.options_.pause_max); }) {}

  /// Cuts all links and stops the engine. The coroutines then end by themselves.
  void die(World& world) {
    for (const auto& end : links) {
      if (const auto link = end.lock()) link->cut();
    }
    links.clear();
    if (engine) {
      net::post(engine->executor(), [engine = engine] { engine->stop(); });
    }
    world.changed_.notify();
  }

  ProcessFiles files;
  SqliteFilesVfs vfs;
  std::unique_ptr<Store> store;
  Offload store_worker;
  Offload compute;
  std::shared_ptr<RoundEngine> engine;
  std::vector<std::weak_ptr<MemoryLink>> links;
  int sessions = 0;
  std::optional<Result<RoundEngine::Outcome>> outcome;
};

struct World::Client::Process final : client::Connector {
  Process(World& of, Client& who)
      : world(of),
        client(who),
        files(who.disk, [this] { die(); }),
        strand(net::make_strand(of.io_)),
        worker([&of] { return of.draw_duration(of.options_.pause_max); }) {}

  void die() {
    if (const auto link = last_link.lock()) link->cut();
    if (agent) net::post(strand, [this] { agent->stop(); });
    world.changed_.notify();
  }

  Awaitable<Result<std::shared_ptr<Link>>> connect() override {
    co_await sleep_for(world.draw_duration(world.options_.latency_max));
    Line up;
    Line down;
    for (Line* const line : {&up, &down}) {
      line->latency = world.draw_duration(world.options_.latency_max);
      line->bytes_per_s =
          world.options_.bytes_per_s_min * static_cast<double>(1ull << world.below(8));
    }
    const auto link =
        files.is_dead() ? nullptr : world.connect(strand, client.member.name, up, down);
    if (!link) co_return Error(Errc::unavailable, "the server can't be reached");
    last_link = link;
    co_return std::shared_ptr<Link>(link);
  }

  World& world;
  Client& client;
  ProcessFiles files;
  net::any_io_executor strand;
  Offload worker;
  std::unique_ptr<client::Agent> agent;
  std::weak_ptr<MemoryLink> last_link;
  std::optional<Result<client::Agent::Outcome>> outcome;
};

World::World(WorldOptions options)
    : options_(std::move(options)), random_(options_.seed), changed_(io_.get_executor()) {
  for (const auto& member : options_.members) clients_.try_emplace(member.name, member);
}

World::~World() {
  // After a failed run, let all coroutines end, so that none is destroyed while it is suspended.
  for (const auto& server : servers_) server->files.die();
  server_is_over_ = true;
  for (auto& [name, client] : clients_) {
    client.is_over = true;
    for (const auto& process : client.processes) process->files.die();
  }
  for (int i = 0; i < world_steps_max && time_.step(io_); ++i) continue;
}

Result<void> World::run() noexcept {
  spawn(live_as_server());
  for (auto& [name, client] : clients_) spawn(live_as_client(client));
  for (std::size_t i = 0; i < options_.malicious.size(); ++i)
    spawn(live_as_malicious(fmt::format("mallory-{}", i + 1), options_.malicious[i]));
  spawn(make_trouble());
  for (int i = 0; lives_ > 0 && !complaint_; ++i) {
    if (!time_.step(io_) && lives_ > 0)
      complain("deadlock: no event is left, but the run is not over");
    if (time_.elapsed() > simulated_time_max || i == world_steps_max)
      complain("the run does not end");
  }
  // Let the remaining timers and closing links end.
  while (!complaint_ && time_.step(io_)) {
    if (time_.elapsed() > simulated_time_max + 2h)
      complain("events go on after the end of the run");
  }
  bury();
  if (complaint_) return *complaint_;
  return {};
}

/// No event is left, so an object that is still referred to is leaked.
void World::bury() {
  for (const auto& server : servers_) {
    if (!complaint_ && (!server->outcome || server->sessions != 0) && server->engine)
      complain("a server did not end");
    if (!complaint_ && server->engine && server->engine.use_count() != 1)
      complain("a session was leaked");
    if (!complaint_ && server->engine && server->engine->calls_off_strand() != 0)
      complain("a part of the engine was called off its strand");
  }
  for (auto& [name, client] : clients_) {
    for (const auto& process : client.processes) {
      if (!complaint_ && !process->outcome) complain(name + " did not end");
    }
    client.disk.fail_at(0);  // Cancel a fault that no process has met.
  }
  server_disk_.fail_at(0);
}

void World::complain(const std::string& what) {
  if (complaint_) return;
  const RoundEngine* const now = engine();
  complaint_ =
      Error(Errc::internal,
            now == nullptr ? what : what + " (server: " + now->view().status().phase + ")");
  note("complaint: " + complaint_->message());
}

void World::note(const std::string& text) {
  const std::string line = fmt::format("{:12.6f} {}\n", seconds(time_.elapsed()), text);
  trace_.update(bytes_of(std::string_view(line)));
  if (options_.is_verbose) fmt::print("{}", line);
}

void World::spawn(Awaitable<void> task) {
  ++lives_;
  net::co_spawn(io_, std::move(task), [this](const std::exception_ptr& failure) {
    --lives_;
    rethrow(failure);
  });
}

std::uint64_t World::below(std::uint64_t bound) { return random_() % bound; }

Duration World::draw_duration(Duration max) {
  return Duration(1 + static_cast<Duration::rep>(below(static_cast<std::uint64_t>(max.count()))));
}

RoundEngine* World::engine() {
  if (servers_.empty() || servers_.back()->files.is_dead()) return nullptr;
  return servers_.back()->engine.get();
}

MemoryLink* World::link_of(const std::string& client) {
  const auto& processes = clients_.at(client).processes;
  if (processes.empty()) return nullptr;
  const auto link = processes.back()->last_link.lock();
  return link && !link->is_down() ? link.get() : nullptr;
}

// The server -----------------------------------------------------------------------------------

Result<void> World::boot(Server& server) {
  FL_CHECK(server.files.make_folder(state_folder));
  FL_TRY(server.store, Store::open({.path = state_folder / "history.sqlite",
                                    .vfs = server.vfs.name(),
                                    .exclusive = true}));
  FL_TRY(auto run, server.store->runs().latest());
  if (!run) {
    RunRecord fresh;
    fresh.key = fmt::format("{:016x}", options_.settings.seed);
    fresh.model = options_.problem.model;
    fresh.seed = options_.settings.seed;
    fresh.rounds_total = options_.settings.rounds;
    fresh.config_json = to_json(options_.settings);
    fresh.started_at = Clock::unix_seconds();
    FL_TRY(run, server.store->runs().create(fresh));
  }
  server.files.before_remove = [this](const std::filesystem::path& path) {
    if (path.parent_path() != state_folder / "spool") return;
    spooled_[path.filename().string()].push_back(peek(server_disk_, path));
  };
  server.engine = std::make_shared<RoundEngine>(
      net::make_strand(io_), options_.settings, *run, options_.problem.layout, server.files,
      *server.store,
      RoundEngine::Shared{.store = &server.store_worker,
                          .compute = &server.compute,
                          .members = options_.is_masked() ? member_list_of(options_) : ""},
      RunFiles::Paths{state_folder / "checkpoints", state_folder / "spool",
                      state_folder / "references", state_folder / "kept-updates"},
      [problem = options_.problem](std::string_view, std::uint64_t seed) {
        return Result<std::vector<float>>(problem.initial_weights(seed));
      });
  if (server_starts_ == 1) server.engine->wait_for_sessions(options_.sessions_first);
  net::co_spawn(
      server.engine->executor(), server.engine->run(),
      [this, &server](const std::exception_ptr& failure, Result<RoundEngine::Outcome> result) {
        rethrow(failure);
        server.outcome = std::move(result);
        changed_.notify();
      });
  return {};
}

/// Runs one server process after the other, until one of them finishes the run.
Awaitable<void> World::live_as_server() {
  while (!server_is_over_) {
    note(fmt::format("server start {}", ++server_starts_));
    has_lost_power_ = false;
    servers_.push_back(std::make_unique<Server>(*this, server_starts_));
    Server& server = *servers_.back();
    const auto booted = boot(server);
    while (booted && !server.outcome && !server.files.is_dead()) co_await changed_.wait();
    if (!server.files.is_dead()) {
      const auto error = !booted            ? std::optional(booted.error())
                         : !*server.outcome ? std::optional(server.outcome->error())
                                            : std::nullopt;
      if (error) {
        note("server ends: " + error->message());
        const bool is_full = !booted && error->code() == Errc::no_space;
        if (!is_server_excused_ && !is_full)
          complain("the server ended without cause: " + error->message());
        is_server_excused_ = false;
        server_disk_.fail_at(0);
      } else {
        server_is_over_ = **server.outcome == RoundEngine::Outcome::finished;
        note(server_is_over_ ? "server finished" : "server stopped");
        co_await wait_for_sessions(server);
        if (server.sessions == 0) {
          server.store.reset();
          server.links.clear();  // Do not cut them: data that were sent still arrive.
        }
      }
      server.files.die();
    } else {
      note(power_loss_ ? "server lost power" : "server was killed");
    }
    has_lost_power_ = power_loss_;
    if (power_loss_) {
      server_disk_.crash(random_());
    } else {
      server_disk_.kill();
    }
    power_loss_ = false;
    if (!server_is_over_) co_await sleep_for(draw_duration(2s));
  }
  changed_.notify();
}

Awaitable<void> World::wait_for_sessions(Server& server) {
  const TimePoint until = Clock::now() + limits::close_max;
  while (server.sessions > 0 && Clock::now() < until && !server.files.is_dead())
    co_await changed_.wait(until);
}

void World::stop_server() {
  if (engine() == nullptr) return;
  const auto now = servers_.back()->engine;
  net::post(now->executor(), [now] { now->stop(); });
}

void World::revoke(const std::string& client) {
  if (engine() == nullptr) return;
  Server& server = *servers_.back();
  net::post(server.engine->executor(), [this, &server, now = server.engine, client] {
    // As the sub-command does. A faulty disk may refuse it.
    if (server.store && !server.store->members().revoke(client, "the world"))
      note(client + " was revoked in memory only");
    now->host().revoke(client);
  });
}

void World::pardon(const std::string& client) {
  if (engine() == nullptr) return;
  Server& server = *servers_.back();
  net::post(server.engine->executor(), [&server, now = server.engine, client] {
    // As the sub-command does.
    if (server.store) FL_ASSERT(server.store->members().pardon(client));
    now->host().pardon(client, Clock::unix_seconds());
  });
}

void World::kill_server(bool power_loss) {
  if (engine() == nullptr) return;
  power_loss_ = power_loss;
  servers_.back()->files.die();
}

void World::kill_server_at(std::uint64_t n, bool power_loss) {
  if (engine() == nullptr) return;
  power_loss_ = power_loss;
  servers_.back()->files.die_at(n);
}

std::shared_ptr<MemoryLink> World::connect(net::any_io_executor executor, const std::string& client,
                                           Line up, Line down) {
  if (engine() == nullptr || servers_.back()->outcome) return nullptr;
  if (on_connect && !on_connect(client, up, down)) return nullptr;
  Server& server = *servers_.back();
  Client* const known = clients_.contains(client) ? &clients_.at(client) : nullptr;
  if (known == nullptr) has_played_clients_ = true;
  auto observe = [this, client, known](const MemoryLink& from, const wire::Header& header,
                                       std::size_t bytes) {
    const bool is_up = from.remote() == "server";
    note(fmt::format("{} {} {} {} bytes", client, is_up ? "->" : "<-", kind_name(header), bytes));
    (is_up ? bytes_up_ : bytes_down_) += bytes;
    if (known != nullptr) {
      const bool is_acknowledgement =
          header.has_verdict() && header.verdict().outcome() == wire::Verdict::ACCEPTED;
      if (is_acknowledgement) known->acknowledged.push_back(header.verdict().task());
    }
    if (on_frame) on_frame(client, is_up, header);
  };
  MemoryLink::End ours{std::move(executor), "server", std::move(up)};
  MemoryLink::End theirs{net::make_strand(io_), client, std::move(down)};
  auto [near_end, far_end] =
      MemoryLink::make(std::move(ours), std::move(theirs), std::move(observe));
  far_end->expect_messages_of(limits::hello_bytes_max);  // As accept_ws() does.
  server.links.push_back(far_end);
  const auto session = std::make_shared<Session>(far_end, client, host_of(server.engine));
  ++server.sessions;
  net::co_spawn(far_end->executor(), session->run(),
                [this, &server](const std::exception_ptr& failure) {
                  --server.sessions;
                  changed_.notify();
                  rethrow(failure);
                });
  return near_end;
}

// A client -------------------------------------------------------------------------------------

void World::boot(Client& client) {
  client.processes.push_back(std::make_shared<Client::Process>(*this, client));
  auto& process = *client.processes.back();
  process.files.after_rename = [this, &client](const std::filesystem::path& path) {
    watch_manifest(client, path);
  };
  const auto factory = [this, &client,
                        &process](const std::string&) -> Result<std::unique_ptr<Trainer>> {
    auto record = [this, &client, &process](const TrainSettings& settings,
                                            std::span<float> update) {
      if (on_trained) on_trained(client.member.name, settings, update);
      if (!process.files.is_dead())
        client.updates[settings.round].assign(update.begin(), update.end());
    };
    return std::unique_ptr<Trainer>(
        std::make_unique<ToyTrainer>(options_.problem, client.member.part, record));
  };
  client::Agent::Options options;
  options.evaluator = client.member.evaluator;
  if (options_.is_masked() && !client.member.evaluator) {
    options.secure = client::SecureOptions{
        .site_key = site_key_of(client.member.name),
        .trusted = secure::parse_member_list(member_list_of(options_)).value()};
  }
  options.jitter_seed = random_();
  process.agent = std::make_unique<client::Agent>(process.strand, process, nullptr, process.files,
                                                  state_folder, factory, process.worker, options);
  net::co_spawn(
      process.strand, process.agent->run(),
      [this, &process](const std::exception_ptr& failure, Result<client::Agent::Outcome> result) {
        rethrow(failure);
        process.outcome = std::move(result);
        changed_.notify();
      });
}

/// Runs one client process after the other, until the run is over for this client.
Awaitable<void> World::live_as_client(Client& client) {
  co_await sleep_for(draw_duration(200ms));
  TimePoint give_up = never;
  while (!server_is_over_ && !client.is_over) {
    note(fmt::format("{} start {}", client.member.name, ++client.starts));
    boot(client);
    auto& process = *client.processes.back();
    while (!process.outcome && !process.files.is_dead()) {
      co_await changed_.wait(give_up);
      // A client that was away when the run ended would try to reconnect for ever.
      if (server_is_over_ && give_up == never)
        give_up = Clock::now() + limits::liveness_max + limits::backoff_max;
      if (Clock::now() >= give_up && !client.is_over) {
        client.is_over = true;
        process.agent->stop();
        give_up = never;
      }
    }
    if (!process.files.is_dead()) {
      client.outcome = *process.outcome;
      if (client.outcome) {
        client.is_over = *client.outcome == client::Agent::Outcome::finished ||
                         !std::exchange(client.comes_back, false);
      } else {
        note(client.member.name + " ends: " + client.outcome.error().message());
        if (!client.is_excused && !client.may_fail)
          complain(client.member.name +
                   " ended without cause: " + client.outcome.error().message());
        client.is_excused = false;
        client.disk.fail_at(0);
      }
      process.files.die();
    } else {
      note(client.member.name + (client.power_loss ? " lost power" : " was killed"));
    }
    if (client.power_loss) {
      client.disk.crash(random_());
    } else {
      client.disk.kill();
    }
    client.power_loss = false;
    settle_manifest(client);
    if (!server_is_over_ && !client.is_over) co_await sleep_for(draw_duration(2s));
  }
  client.is_over = true;
}

void World::kill_client(const std::string& name, bool power_loss) {
  Client& client = clients_.at(name);
  if (client.is_over || client.processes.empty() || client.processes.back()->files.is_dead())
    return;
  client.power_loss = power_loss;
  client.processes.back()->files.die();
}

void World::restart_client(const std::string& name) {
  Client& client = clients_.at(name);
  client.comes_back = true;
  client.processes.back()->agent->stop();
}

void World::kill_client_at(Client& client, std::uint64_t n, bool power_loss) {
  if (client.is_over || client.processes.empty() || client.processes.back()->files.is_dead())
    return;
  client.power_loss = power_loss;
  client.processes.back()->files.die_at(n);
}

}  // namespace fl::test
