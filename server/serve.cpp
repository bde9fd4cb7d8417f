#include "server/serve.hpp"

#include "server/admin.hpp"
#include "server/commands.hpp"
#include "server/engine.hpp"
#include "server/history.hpp"
#include "server/house.hpp"
#include "server/listener.hpp"
#include "server/status_line.hpp"
#include "shared/base/limits.hpp"
#include "shared/params/model_table.hpp"

#include <boost/asio/signal_set.hpp>

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <thread>

namespace fl {

namespace {

/// Holds STATE/lock for the life of the process, so that two servers never share a state.
class StateLock {
 public:
  static Result<StateLock> take(const std::filesystem::path& folder) {
    const auto path = folder / "lock";
    StateLock lock(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
    if (lock.fd_ < 0) return errno_error(path.string());
    if (::flock(lock.fd_, LOCK_EX | LOCK_NB) != 0) {
      return Error(Errc::conflict, fmt::format("another fl-server uses {}; choose another --state",
                                               folder.string()));
    }
    return lock;
  }
  StateLock(StateLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  StateLock& operator=(StateLock&&) = delete;
  ~StateLock() {
    if (fd_ >= 0) ::close(fd_);
  }

 private:
  explicit StateLock(int fd) : fd_(fd) {}
  int fd_;
};

std::string random_key() {
  std::array<std::byte, 8> bytes{};
  fill_random(bytes).value();
  return to_hex(bytes);
}

/// The first address of this machine that others can reach, or its loopback address.
std::string own_address() {
  ifaddrs* all = nullptr;
  std::string found = "127.0.0.1";
  if (::getifaddrs(&all) != 0) return found;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    const bool fits = one->ifa_addr != nullptr && one->ifa_addr->sa_family == AF_INET &&
                      (one->ifa_flags & IFF_LOOPBACK) == 0 && (one->ifa_flags & IFF_UP) != 0;
    char text[64];
    if (fits && ::getnameinfo(one->ifa_addr, sizeof(sockaddr_in), text, sizeof text, nullptr, 0,
                              NI_NUMERICHOST) == 0) {
      found = text;
      break;
    }
  }
  ::freeifaddrs(all);
  return found;
}

/// The address in join tokens: --advertise, with the port that we really have.
Result<ServerAddress> advertised(const ServerOptions& options, const ServerAddress& bound) {
  if (!options.advertise.empty()) {
    const bool has_port = options.advertise.find(':') != std::string::npos;
    auto address = parse_server_address(
        has_port ? options.advertise : fmt::format("{}:{}", options.advertise, bound.port));
    if (!address) return address.error().at("--advertise");
    return address;
  }
  const bool is_any = bound.host == "0.0.0.0" || bound.host == "::";
  return ServerAddress{is_any ? own_address() : bound.host, bound.port};
}

/// HOST:PORT where the port may be 0.
Result<ServerAddress> parse_listen(const std::string& text, std::string_view flag) {
  const bool takes_any = text.ends_with(":0");
  // parse_server_address() wants a port that a client can connect to.
  auto address = parse_server_address(takes_any ? text.substr(0, text.size() - 1) + "1" : text);
  if (!address) return address.error().at(flag);
  if (takes_any) address->port = 0;
  return address;
}

/// The run to go on with, or a new one. Settings that were given now replace the stored ones, but
/// for what a run can't change.
Result<RunRecord> choose_run(Store& store, const ServerOptions& options, RunSettings& settings) {
  FL_TRY(const auto latest, store.latest_run());
  const bool goes_on = latest && !options.new_run && latest->state != RunState::finished;
  const bool was_longer = latest && !options.new_run && latest->state == RunState::finished &&
                          options.given.contains("rounds") &&
                          options.settings.rounds > latest->rounds_total;
  if (goes_on || was_longer) {
    FL_TRY(RunSettings stored, settings_from_json(latest->config_json));
    if (options.given.contains("model") && options.settings.model != latest->model) {
      return Error(Errc::conflict,
                   fmt::format("the run in {} trains '{}', not '{}'; --new-run begins another",
                               options.state, latest->model, options.settings.model));
    }
    if (options.given.contains("seed") && options.settings.seed != latest->seed) {
      return Error(Errc::conflict,
                   fmt::format("the run in {} has seed {}; --new-run begins another", options.state,
                               latest->seed));
    }
    auto merged = nlohmann::json::parse(to_json(stored));
    const auto now = nlohmann::json::parse(to_json(options.settings));
    for (std::string flag : options.given) {
      std::replace(flag.begin(), flag.end(), '-', '_');
      if (flag == "deadline") flag = "deadline_s";
      merged[flag] = now.at(flag);
    }
    FL_TRY(settings, settings_from_json(merged.dump()));
    if (settings.rounds != latest->rounds_total)
      FL_CHECK(store.set_rounds_total(latest->id, settings.rounds));
    RunRecord run = *latest;
    run.rounds_total = settings.rounds;
    return run;
  }
  if (latest && !options.new_run) {
    return Error(Errc::conflict,
                 fmt::format("the run in {} is finished after {} rounds: --rounds N with a larger "
                             "N goes on with it, --new-run begins another",
                             options.state, latest->rounds_total));
  }
  settings = options.settings;
  RunRecord run;
  run.key = random_key();
  run.model = settings.model;
  run.seed = settings.seed;
  run.rounds_total = settings.rounds;
  run.config_json = to_json(settings);
  run.started_at = Clock::unix_seconds();
  return store.create_run(run);
}

void print_invitation(Store& store, const Authority& authority, const ServerAddress& address,
                      const RunRecord& run) {
  const auto clients = store.clients();
  if (!clients || !clients->empty()) return;
  const auto token = make_join_token(store, authority.fingerprint(), address, "client-1", 3600);
  if (!token) return;
  const bool needs_data = !run.model.starts_with("synthetic:");
  fmt::print(
      "\nTo join from another machine (once, within the hour):\n\n  fl-client --join {}{}\n\n"
      "More clients: fl-server enroll --name NAME prints a token for each.\n\n",
      *token, needs_data ? " --data fashion-mnist" : "");
  std::fflush(stdout);
}

Result<void> write_addresses(const ServerOptions& options, const ServerAddress& listen,
                             const ServerAddress& advertise,
                             const std::optional<ServerAddress>& admin, const RunRecord& run) {
  nlohmann::json json{{"listen", to_string(listen)},
                      {"advertise", to_string(advertise)},
                      {"pid", ::getpid()},
                      {"run", run.key}};
  if (admin) json["admin"] = to_string(*admin);
  const std::string text = json.dump() + "\n";
  FL_CHECK(posix_files().write_atomically(std::filesystem::path(options.state) / "address.json",
                                          bytes_of(text)));
  if (!options.ready_file.empty())
    FL_CHECK(posix_files().write_atomically(options.ready_file, bytes_of(text)));
  return {};
}

void print_summary(Store& store, RunId run, const ServerOptions& options) {
  const auto rounds = store.summary(run);
  if (rounds) fmt::print("\n{}", format_history_table(*rounds));
  const std::filesystem::path state(options.state);
  fmt::print("\nhistory      {}\ncheckpoints  {}\n", (state / "history.sqlite").string(),
             (state / "checkpoints").string());
  std::fflush(stdout);
}

}  // namespace

Result<int> serve(const ServerOptions& options) {
  std::signal(SIGPIPE, SIG_IGN);
  Files& files = posix_files();
  const std::filesystem::path state(options.state);
  FL_TRY(const auto listen, parse_listen(options.listen, "--listen"));
  FL_CHECK(check_settings(options.settings));
  FL_CHECK(files.make_folder(state));
  FL_TRY([[maybe_unused]] const auto lock, StateLock::take(state));

  Store::Options store_options;
  store_options.path = state / "history.sqlite";
  FL_TRY(const auto store, Store::open(store_options));
  RunSettings settings;
  if (auto layout = builtin_layout(options.settings.model); !layout)
    return layout.error().at("--model");
  FL_TRY(const RunRecord run, choose_run(*store, options, settings));
  FL_CHECK(check_settings(settings));
  FL_TRY(const Layout layout, builtin_layout(run.model));
  FL_TRY(const Authority authority,
         Authority::open_or_create(files, state / "identity", Clock::unix_seconds()));

  const auto threads = std::max(4u, std::thread::hardware_concurrency());
  Offload store_thread(1);
  Offload compute(std::max(2u, std::thread::hardware_concurrency()));
  net::io_context io;
  auto engine = std::make_shared<RoundEngine>(
      net::make_strand(io), settings, run, layout, files, *store,
      RoundEngine::Workers{&store_thread, &compute},
      RoundEngine::Paths{state / "checkpoints", state / "spool", options.initial_weights});
  House house(engine, authority, {"localhost", "127.0.0.1", own_address()});
  FL_CHECK(house.renew_certificate());
  Listener listener(io, house);
  FL_TRY(const auto bound, listener.open(listen));
  FL_TRY(const auto advertise, advertised(options, bound));
  Admin admin(io, engine);
  std::optional<ServerAddress> admin_bound;
  if (options.admin != "off") {
    FL_TRY(const auto admin_address, parse_listen(options.admin, "--admin"));
    auto opened = admin.open(admin_address);
    if (!opened) return opened.error().at("--admin (another HOST:PORT, or 'off')");
    admin_bound = *opened;
    admin.start();
  }
  listener.start();
  auto stop = std::make_shared<std::atomic<bool>>(false);
  net::signal_set signals(io, SIGINT, SIGTERM);
  std::function<void(const boost::system::error_code&, int)> on_signal = [&](const auto& ec, int) {
    if (ec) return;
    spdlog::info("stopping; once more ends at once");
    *stop = true;
    net::post(engine->executor(), [engine] { engine->stop(); });
    std::signal(SIGINT, SIG_DFL);
    std::signal(SIGTERM, SIG_DFL);
  };
  signals.async_wait(on_signal);

  // Whoever waits for the ready file may send a signal at once.
  FL_CHECK(write_addresses(options, bound, advertise, admin_bound, run));
  spdlog::info("listening on {}, run {} of '{}', {} rounds{}", to_string(bound), run.key, run.model,
               settings.rounds,
               admin_bound ? ", admin pages at http://" + to_string(*admin_bound) : "");
  print_invitation(*store, authority, advertise, run);

  net::co_spawn(engine->executor(), house.watch_revocations(stop), rethrow);
  const bool is_live = ::isatty(STDERR_FILENO) == 1 && !options.log_json;
  if (is_live) net::co_spawn(engine->executor(), show_status(engine, stop), rethrow);

  std::optional<Result<RoundEngine::Outcome>> outcome;
  net::co_spawn(engine->executor(), engine->run(),
                [&](const std::exception_ptr& failure, Result<RoundEngine::Outcome> result) {
                  rethrow(failure);
                  outcome = std::move(result);
                });
  std::vector<std::jthread> crew;
  for (unsigned i = 0; i < threads; ++i) crew.emplace_back([&io] { io.run(); });

  // The run is over when the engine says so; then sessions have limits::close_max to end.
  std::atomic<bool> is_over = false;
  class Watch {
   public:
    static Awaitable<void> run(std::optional<Result<RoundEngine::Outcome>>& outcome,
                               const ServerOptions& options, House& house,
                               std::shared_ptr<std::atomic<bool>> stop,
                               std::atomic<bool>& is_over) {
      while (!outcome) co_await sleep_for(std::chrono::milliseconds(10));
      while (options.stay && *outcome && !*stop) co_await sleep_for(std::chrono::milliseconds(100));
      const TimePoint until = Clock::now() + limits::close_max;
      while (house.sessions() > 0 && Clock::now() < until)
        co_await sleep_for(std::chrono::milliseconds(10));
      *stop = true;
      is_over = true;
    }
  };
  net::co_spawn(engine->executor(), Watch::run(outcome, options, house, stop, is_over),
                [&](const std::exception_ptr& failure) {
                  rethrow(failure);
                  listener.close();
                  admin.close();
                  signals.cancel();
                  io.stop();
                });
  crew.clear();  // Joins.
  if (!outcome || !*outcome)
    return outcome ? outcome->error() : Error(Errc::internal, "the server's loop ended early");
  if (**outcome == RoundEngine::Outcome::finished) {
    print_summary(*store, run.id, options);
  } else {
    spdlog::info("stopped; the next start with --state {} goes on with the run", options.state);
  }
  return 0;
}

}  // namespace fl
