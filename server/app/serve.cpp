// SPDX-License-Identifier: Apache-2.0
#include "server/app/serve.hpp"

#include "server/admin/admin_door.hpp"
#include "server/admin/admin_history.hpp"
#include "server/admin/http_server.hpp"
#include "server/admin/status_line.hpp"
#include "server/app/command_audit.hpp"
#include "server/app/control.hpp"
#include "server/app/invitations.hpp"
#include "server/app/last_seen.hpp"
#include "server/app/member_file.hpp"
#include "server/app/newer_files.hpp"
#include "server/app/run_loop.hpp"
#include "server/app/run_queue.hpp"
#include "server/app/service.hpp"
#include "server/app/setting_form.hpp"
#include "server/history/format.hpp"
#include "server/history/run_name.hpp"
#include "server/net/acceptor.hpp"
#include "server/net/admission.hpp"
#include "server/net/listener.hpp"
#include "server/net/places.hpp"
#include "server/round/engines.hpp"
#include "server/run/masked_settings.hpp"
#include "server/traces/trace_exporter.hpp"
#include "shared/base/async/parallel.hpp"
#include "shared/base/async/stop_signals.hpp"
#include "shared/base/io/files_max.hpp"
#include "shared/base/io/secret_file.hpp"
#include "shared/base/json.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/base/state_lock.hpp"
#include "shared/base/version.hpp"
#include "shared/params/model_spec.hpp"
#include "shared/params/model_table.hpp"

#include <fmt/format.h>

#include <ifaddrs.h>
#include <malloc.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <thread>

namespace fl::server {

namespace {

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

/// The address in join tokens: --advertise, with the port that is really bound.
Result<ServerAddress> advertised(const ServeOptions& options, const ServerAddress& bound) {
  if (!options.advertise.empty()) {
    auto address = parse_server_address(options.advertise, bound.port);
    if (!address) return address.error().at("--advertise");
    return address;
  }
  const bool is_any = bound.host == "0.0.0.0" || bound.host == "::";
  return ServerAddress{is_any ? own_address() : bound.host, bound.port};
}

void print_invitation(Store& store, const Authority& authority, const ServerAddress& address,
                      const RunRecord& run) {
  const auto clients = store.members().all();
  if (!clients || !clients->empty()) return;
  const Invitation invitation{.name = "client-1"};
  const auto noted = store.audit().add_control(
      command_line_user(), invitation.name, text_of_invitation("trainer", invitation.examples_max));
  if (!noted) return;
  const auto token = make_join_token(store.members(), authority.fingerprint(), address, invitation);
  if (!token) return;
  if (run.model.starts_with(custom_prefix)) {
    fmt::print(
        "\nTo join with a client of yours that trains {} (once, within the hour):\n\n  {}\n\n",
        run.model, *token);
    return;
  }
  const auto spec = parse_model(run.model);
  const std::string_view data = spec ? example_data(*spec) : "";
  fmt::print(
      "\nTo join from a machine that reaches this one at {} (once, within the hour; --advertise\n"
      "HOST[:PORT] puts another address into tokens):\n\n  fl-client --join {}{}\n\n"
      "More clients: fl-server enroll --name NAME prints a token for each.\n\n",
      to_string(address), *token, data.empty() ? "" : fmt::format(" --data {}", data));
  std::fflush(stdout);
}

/// Makes glibc keep some freed memory. Every chunk of an upload is received into memory of its own;
/// giving that back to the kernel and asking for it again would take a seventh of a round's time.
void keep_freed_memory() {
#ifdef __GLIBC__
  ::mallopt(M_MMAP_THRESHOLD, 4 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 16 << 20);  // Free bytes to keep in each thread's heap.
#endif
}

/// Opens the authority. Warns if its intermediate expires soon: the operator must bring its key.
Result<Authority> prepare_authority(Members& members, const ServeOptions& options) {
  FL_TRY(Authority authority, open_authority(members, options));
  const auto life = authority.intermediate_life();
  const double now = Clock::unix_seconds();
  if (!life || now < life->renew_at()) return authority;
  log_warn(
      "the intermediate authority expires in {:.0f} days, and then nobody gets in: stop the "
      "server, put ca.key back into the identity folder, and run "
      "'fl-server rotate-ca --intermediate'",
      std::max(0.0, (life->not_after - now) / day_s));
  return authority;
}

/// The addresses at which clients and operators reach this server.
struct Doors {
  net::ip::tcp::acceptor clients;
  ServerAddress address;           // The address for clients.
  ServerAddress advertised;        // The address in join tokens.
  std::optional<AdminDoor> admin;  // None with --admin off.
  std::string admin_place;         // The real place of the admin pages, or "".
};

Result<Doors> open_doors(net::io_context& io, const ServeOptions& options) {
  Doors doors{net::ip::tcp::acceptor(net::make_strand(io)), {}, {}, std::nullopt, ""};
  const auto listen = parse_listen_address(options.listen);
  if (!listen) return listen.error().at("--listen");
  FL_TRY(doors.address, bind_acceptor(doors.clients, *listen));
  if (options.admin != "off") {
    auto opened = AdminDoor::open(io, options.admin);
    if (!opened) return opened.error().at("--admin (another HOST:PORT, unix:PATH, or 'off')");
    doors.admin_place = opened->place();
    doors.admin.emplace(std::move(*opened));
  }
  FL_TRY(doors.advertised, advertised(options, doors.address));
  return doors;
}

/// Reads the flags that say who may see the admin pages.
Result<Admin::Options> admin_options(const ServeOptions& options) {
  Admin::Options admin;
  admin.state = options.state;
  admin.show_clients = options.admin_show_clients;
  for (std::string_view rest = options.admin_hosts; !rest.empty();) {
    const std::string_view name = rest.substr(0, rest.find(','));
    if (const auto valid = check_host(name); !valid) return valid.error().at("--admin-host");
    admin.access.hosts.emplace_back(name);
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
  }
  if (options.admin_token_file.empty()) return admin;
  auto token = read_secret_file(posix_files(), options.admin_token_file);
  if (!token) return token.error().at("--admin-token-file");
  if (token->size() < limits::secret_bytes_min) {
    return Error(Errc::invalid_input,
                 fmt::format("--admin-token-file: the token must have at least {} characters",
                             limits::secret_bytes_min));
  }
  admin.access.token = std::move(*token);
  return admin;
}

std::filesystem::path history_file(const ServeOptions& options) {
  return std::filesystem::path(options.state) / "history.sqlite";
}

Result<std::unique_ptr<Store>> open_history(const ServeOptions& options) {
  Store::Options store;
  store.path = history_file(options);
  return Store::open(store);
}

/// Null with --admin off.
Result<std::unique_ptr<Admin>> start_admin(net::io_context& io, const Engines& engines,
                                           Doors& doors, const ServeOptions& options,
                                           const Probes& probes, StoreThread& store,
                                           const std::shared_ptr<std::atomic<bool>>& stop,
                                           const TraceExporter* traces) {
  if (!doors.admin) return nullptr;
  FL_TRY(Admin::Options access, admin_options(options));
  const auto history = history_file(options);
  Metrics::Traces counts;
  if (traces != nullptr) counts = [traces] { return traces->counts(); };
  FL_TRY(access.metrics,
         Metrics::open(history, store, options.metrics_by_client, std::move(counts)));
  access.setting_form = setting_form;
  net::co_spawn(store.executor(), access.metrics->watch(stop), rethrow);
  FL_TRY(auto reader, AdminHistory::open(history));
  FL_TRY(auto control, ControlStore::open(history));
  auto admin = std::make_unique<Admin>(io, engines, std::move(reader), std::move(*doors.admin),
                                       std::move(control), control_actions(options),
                                       std::move(access), probes);
  admin->start();
  return admin;
}

/// Null without `otlp`.
Result<std::unique_ptr<TraceExporter>> start_traces(net::io_context& io,
                                                    const std::optional<OtlpSettings>& otlp,
                                                    const ServeOptions& options) {
  if (!otlp) return nullptr;
  FL_TRY(auto traces, TraceExporter::open(net::make_strand(io), *otlp, history_file(options),
                                          options.metrics_by_client));
  traces->start();
  return traces;
}

/// For the log: an address that a terminal makes a link of.
std::string admin_pages_of(const Doors& doors) {
  if (doors.admin_place.empty()) return "";
  const bool is_port = !doors.admin_place.starts_with("unix:");
  return fmt::format(", admin pages at {}{}{}", is_port ? "http://" : "", doors.admin_place,
                     is_port ? "/" : "");
}

Result<void> write_addresses(const ServeOptions& options, const Doors& doors,
                             const RunRecord& run) {
  nlohmann::json addresses{{"listen", to_string(doors.address)},
                           {"advertise", to_string(doors.advertised)},
                           {"pid", ::getpid()},
                           {"run", run.key}};
  if (!doors.admin_place.empty()) addresses["admin"] = doors.admin_place;
  const std::string text = json_text(addresses) + "\n";
  FL_CHECK(posix_files().write_atomically(std::filesystem::path(options.state) / "address.json",
                                          bytes_of(text)));
  if (!options.ready_file.empty())
    FL_CHECK(posix_files().write_atomically(options.ready_file, bytes_of(text)));
  return {};
}

/// The shell's usual limit of 1024 files is for programs that call select(2).
Places find_places() {
  const auto files_max = raise_files_max();
  const Places places = places_for(files_max);
  if (places.sessions < limits::sessions_max)
    log_info(
        "this process may open {} files: there is room for {} clients; a higher hard "
        "limit ('ulimit -Hn') gives more",
        files_max, places.sessions);
  return places;
}

/// A run that waits for more clients than this process has places for would wait for ever.
Result<void> check_run(const RunSettings& settings, const Places& places,
                       const std::optional<MemberFile>& members) {
  FL_CHECK(check_settings(settings));
  FL_CHECK(check_members(settings, members));
  if (settings.min_clients > places.sessions) {
    log_warn(
        "the run needs {} clients at a time, and the files that this process may open are enough "
        "for {}: start the server with 'ulimit -n {}' or more, or with fewer --min-clients",
        settings.min_clients, places.sessions,
        limits::files_reserved + 2 * std::uint64_t{settings.min_clients});
  }
  return {};
}

/// Checks the flags before the state folder is made: bad ones leave none behind. Returns the
/// settings of a first run; none where there is a history.
Result<std::optional<RunSettings>> check_flags(Files& files, const ServeOptions& options,
                                               const std::optional<MemberFile>& members) {
  if (const auto listen = parse_listen_address(options.listen); !listen)
    return listen.error().at("--listen");
  const std::filesystem::path state(options.state);
  std::error_code missing;
  const auto history_bytes = std::filesystem::file_size(state / "history.sqlite", missing);
  const bool is_first = missing || history_bytes == 0;
  RunSettings settings = options.settings;
  const std::string masked = set_masked_defaults(settings, options.given);
  // No run may be given up for a new one that can't begin. A run that goes on has other settings.
  FL_CHECK(is_first || options.new_run ? check_members(settings, members)
                                       : check_members_given(settings, members));
  if (!is_first) return std::optional<RunSettings>();
  if (!masked.empty()) log_info("{}", masked);
  FL_CHECK(take_tensors(files, settings));
  FL_CHECK(check_settings(settings));
  return std::optional(std::move(settings));
}

/// Makes the state folder, locks it for this process, and holds its files against its history.
Result<StateLock> lock_state(Files& files, const ServeOptions& options) {
  FL_CHECK(make_state_folder(files, options.state));
  FL_TRY(auto lock, StateLock::take(options.state));
  if (options.older_history) FL_CHECK(set_newer_aside(options.state));
  FL_CHECK(check_nothing_newer(options.state));
  // Remove a stale ready file, so that scripts see this server's addresses.
  if (!options.ready_file.empty() && files.exists(options.ready_file))
    FL_CHECK(files.remove(options.ready_file));
  return lock;
}

/// Runs all runs. Returns when the last is over, the sessions have ended, for which they have
/// limits::close_max, and the traces are sent, if there are any (limits::otlp_flush_max).
Awaitable<void> run_until_end(RunLoop& loop, std::optional<Result<RoundEngine::Outcome>>& outcome,
                              const Admission& admission, StoreThread& store,
                              std::shared_ptr<std::atomic<bool>> stop, TraceExporter* traces) {
  outcome = co_await loop.run();
  store.stop();  // No session waits for room on a full disk any more.
  const TimePoint until = Clock::now() + limits::close_max;
  constexpr auto look_every = std::chrono::milliseconds(10);
  while (admission.sessions() > 0 && Clock::now() < until) co_await sleep_for(look_every);
  *stop = true;
  store.close();
  co_await store.join();
  if (traces != nullptr) co_await traces->finish();
}

/// Returns when io.stop() was called.
void run_threads(net::io_context& io) {
  const int threads = std::max(4, threads_for(0));
  std::vector<std::jthread> crew;  // Joins at the end.
  const WithoutStopSignals guard_while_starting;
  for (int i = 0; i < threads; ++i) crew.emplace_back([&io] { io.run(); });
}

/// The last event and the last lines of the log.
Result<int> note_end(Store& store, const ServeOptions& options,
                     const Result<RoundEngine::Outcome>& outcome) {
  if (!outcome) {
    store.events().note(0, EventLevel::error, "fl-server ends: " + outcome.error().message());
    return outcome.error();
  }
  if (*outcome == RoundEngine::Outcome::finished) {
    store.events().note(0, EventLevel::info, "the run is over; fl-server ends");
    log_info("the run is over");
    return 0;
  }
  store.events().note(0, EventLevel::info, "fl-server is stopped");
  const auto open = store.runs().next_open();
  log_info("stopped{}",
           open && *open
               ? fmt::format("; the next start with --state {} goes on with the run", options.state)
               : "");
  return 0;
}

/// What the engines of all runs share. `traces` may be null.
RoundEngine::Shared shared_of(Offload& store_thread, Offload& compute,
                              std::shared_ptr<StoreThread::Pause> pause, TraceExporter* traces,
                              const std::optional<MemberFile>& members) {
  return {.store = &store_thread,
          .compute = &compute,
          .pause = std::move(pause),
          .recorded = traces != nullptr ? traces->rounds() : nullptr,
          .members = members ? members->text : ""};
}

/// The store failed in work that belongs to no run: every run ends, and so does every wait for the
/// next one.
StoreThread::Hooks end_all(Engines& engines, HistoryChanges& changes) {
  return {[&engines, &changes](const Error& error) {
    engines.fail(error);
    changes.wake();
  }};
}

}  // namespace

Result<int> serve(const ServeOptions& options) {
  // The variables below are destroyed in reverse order: each may use those above it.
  const ServiceManager manager = ServiceManager::take_from_environment();
  keep_freed_memory();
  const Places places = find_places();
  Files& files = posix_files();
  const std::filesystem::path state(options.state);
  FL_TRY(const auto members, read_served_members(files, options.members));
  FL_TRY(const auto first_settings, check_flags(files, options, members));
  FL_TRY(const auto otlp, read_otlp_settings(options.otlp_endpoint, system_environment()));
  FL_TRY([[maybe_unused]] const auto lock, lock_state(files, options));
  FL_TRY(const auto store, open_history(options));
  FL_TRY(const Authority authority, prepare_authority(store->members(), options));

  Offload store_thread(1);
  Offload compute(static_cast<unsigned>(std::max(2, threads_for(0))));
  net::io_context io;
  // Opens the doors first: a port that is taken must not cost a run.
  FL_TRY(Doors doors, open_doors(io, options));
  FL_CHECK(note_start(store->audit(), options));
  FL_TRY(const ChosenRun first, choose_run(*store, options, first_settings));
  FL_TRY(const auto traces, start_traces(io, otlp, options));

  const net::any_io_executor strand = net::make_strand(io);
  const auto pause = std::make_shared<StoreThread::Pause>();
  const auto shared = shared_of(store_thread, compute, pause, traces.get(), members);
  const auto make_engine = [&](const ChosenRun& run) -> Result<std::shared_ptr<RoundEngine>> {
    FL_CHECK(check_run(run.settings, places, members));
    FL_TRY(const Layout layout, model_layout(run.settings));
    return std::make_shared<RoundEngine>(strand, run.settings, run.record, layout, files, *store,
                                         shared, paths_of(state, run.record));
  };
  FL_TRY(auto first_engine, make_engine(first));
  Engines engines(std::move(first_engine));
  HistoryChanges changes(strand, history_file(options));
  // The store's thread for work that belongs to no run.
  StoreThread server_store(strand, *store, store_thread, 0, end_all(engines, changes), pause);
  Admission admission(engines, server_store, authority, {"localhost", "127.0.0.1", own_address()},
                      places.sessions);
  FL_CHECK(admission.renew_certificate());
  Service service(io, strand, manager, options);
  Listener listener(io, admission, std::move(doors.clients), {.all = places.strangers},
                    service.traffic());
  auto stop = std::make_shared<std::atomic<bool>>(false);
  FL_TRY(const auto admin, start_admin(io, engines, doors, options, service.probes(), server_store,
                                       stop, traces.get()));
  listener.start();
  StopSignals signals(io);
  signals.on_stop([&] {
    *stop = true;
    service.stopping();
    net::post(strand, [&engines, &server_store, &changes] {
      server_store.stop();
      engines.stop();
      changes.wake();
    });
  });

  const auto announce = [&](const RunRecord& run) -> Result<void> {
    FL_CHECK(write_addresses(options, doors, run));
    log_info("{}: {} rounds, seed {}, key {}", to_text(name_of(run)), run.rounds_total, run.seed,
             run.key);
    return {};
  };
  log_info("listening on {}{}", to_string(doors.address), admin_pages_of(doors));
  FL_CHECK(announce(first.record));
  store->events().note(0, EventLevel::info,
                       fmt::format("fl-server {} starts", software_version_and_commit));
  print_invitation(*store, authority, doors.advertised, first.record);
  service.start({engines, pause, store_thread, admin.get(), admin_options});

  changes.start();
  net::co_spawn(strand, admission.watch(changes, stop), rethrow);
  net::co_spawn(strand, keep_audit_note(server_store, changes, state, stop), rethrow);
  net::co_spawn(strand, keep_last_seen(engines, server_store, changes, stop), rethrow);
  const bool is_live = ::isatty(STDERR_FILENO) == 1 && !options.log_json;
  if (is_live) net::co_spawn(strand, show_status(engines, stop), rethrow);

  RunLoop loop(engines, server_store, changes, first.record, options, {make_engine, announce},
               *stop);
  std::optional<Result<RoundEngine::Outcome>> outcome;
  net::co_spawn(strand, run_until_end(loop, outcome, admission, server_store, stop, traces.get()),
                [&](const std::exception_ptr& failure) {
                  rethrow(failure);
                  listener.close();
                  if (admin) admin->close();
                  signals.cancel();
                  io.stop();
                });
  run_threads(io);
  // Finish work that is under way now: its results go to `io`, which is destroyed first.
  compute.finish();
  store_thread.finish();
  note_last_audit(store->audit(), state);
  if (!outcome) outcome = Error(Errc::internal, "the server's loop ended early");
  return note_end(*store, options, *outcome);
}

}  // namespace fl::server
