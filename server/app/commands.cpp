// SPDX-License-Identifier: Apache-2.0
// The sub-commands: for each its flags, its function, and its row in the table at the end.
#include "server/app/commands.hpp"

#include "server/app/command_audit.hpp"
#include "server/app/control.hpp"
#include "server/app/doctor.hpp"
#include "server/app/newer_files.hpp"
#include "server/app/operator_commands.hpp"
#include "server/app/record_commands.hpp"
#include "server/app/replay_command.hpp"
#include "server/app/run_queue.hpp"
#include "server/history/format.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/flags.hpp"
#include "shared/base/io/secret_file.hpp"
#include "shared/base/json.hpp"
#include "shared/base/state_lock.hpp"
#include "shared/codec/encode/codec.hpp"
#include "shared/codec/spec/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>

namespace fl {

Result<std::unique_ptr<Store>> open_store(const ServerOptions& options, bool read_only) {
  Store::Options store;
  store.path = std::filesystem::path(options.state) / "history.sqlite";
  store.read_only = read_only;
  store.migrates = false;  // Only a server's start does.
  if (!read_only && posix_files().exists(options.state))
    FL_CHECK(check_state_folder(options.state));
  if (!posix_files().exists(store.path)) {
    // A folder that we may not read looks empty: opening the file tells the two apart.
    const auto opened = posix_files().open(store.path, OpenMode::read);
    if (!opened && opened.error().code() != Errc::not_found) return opened.error();
    return Error(
        Errc::not_found,
        fmt::format(
            "{} has no history: start fl-server there first, or name another folder with --state",
            options.state));
  }
  // Even to open it for writing would change it, so that its missing part fits no more.
  if (!read_only) FL_CHECK(check_nothing_newer(options.state));
  return Store::open(store);
}

namespace {

/// The address for clients that the running (or last) server has written.
Result<ServerAddress> advertised_address(const ServerOptions& options) {
  const auto path = std::filesystem::path(options.state) / "address.json";
  FL_TRY(const auto text, posix_files().read_all(path));
  const auto json = parse_json(text);
  if (!json.is_object() || !json.contains("advertise") || !json["advertise"].is_string()) {
    return Error(Errc::corrupt,
                 fmt::format("{} can't be read: start fl-server again", path.string()));
  }
  return parse_server_address(json["advertise"].get<std::string>());
}

std::filesystem::path identity_folder(const ServerOptions& options) {
  return std::filesystem::path(options.state) / "identity";
}

/// The passphrase of the authority's key; "": it is not encrypted.
Result<std::string> ca_passphrase(const ServerOptions& options) {
  if (options.ca_passphrase_file.empty()) return std::string();
  auto passphrase = read_secret_file(posix_files(), options.ca_passphrase_file);
  if (!passphrase) return passphrase.error().at("--ca-passphrase-file");
  return passphrase;
}

}  // namespace

Result<Authority> open_authority(Store& store, const ServerOptions& options) {
  const auto folder = identity_folder(options);
  if (!posix_files().exists(folder / "ca.crt")) {
    FL_TRY(const auto clients, store.members().all());
    const auto known = std::ranges::count_if(
        clients, [](const ClientRecord& client) { return !client.certificate_serial.empty(); });
    if (known > 0)
      return Error(Errc::corrupt,
                   fmt::format("{} is missing, and {} clients have certificates from it: restore "
                               "the folder from a copy, or begin in another --state, where all "
                               "clients join again",
                               (folder / "ca.crt").string(), known));
  }
  FL_TRY(const std::string passphrase, ca_passphrase(options));
  return Authority::open_or_create(posix_files(), folder, Clock::unix_seconds(), passphrase);
}

Result<std::string> make_join_token(Store& store, const Sha256& fingerprint,
                                    const ServerAddress& address, const Invitation& invitation) {
  const std::string& name = invitation.name;
  FL_CHECK(check_client_name(name));
  FL_TRY(const auto known, store.members().find(name));
  if (known && known->revoked_at != 0)
    return Error(Errc::conflict, fmt::format("'{}' was revoked: choose another name", name));
  FL_TRY(const auto token, make_token(address, fingerprint));
  TokenRecord record;
  record.id = token.id_hex();
  record.name = name;
  record.secret_hash = token.secret_hash();
  record.expires_at = Clock::unix_seconds() + invitation.expires_s;
  record.evaluator =
      invitation.role.empty() ? known && known->evaluator : invitation.role == "evaluator";
  record.examples_max = invitation.examples_max.value_or(known ? known->examples_max : 0);
  FL_CHECK(store.members().add_token(record));
  return to_string(token);
}

Result<Invited> invite(Store& store, const ServerOptions& options, const Invitation& invitation) {
  FL_TRY(const auto address, advertised_address(options));
  FL_TRY(const auto fingerprint, authority_fingerprint(posix_files(), identity_folder(options)));
  FL_TRY(const auto known, store.members().find(invitation.name));
  FL_TRY(std::string token, make_join_token(store, fingerprint, address, invitation));
  return Invited{std::move(token), known && !known->certificate_serial.empty()};
}

namespace {

void declare_queue(CLI::App& command, ServerOptions& options) {
  command
      .add_option("--drop", options.drop, "Remove this run from the queue instead of adding one")
      ->check(whole_number(1, std::numeric_limits<RunId>::max()));
}

Result<void> drop_queued_run(const ServerOptions& options) {
  FL_TRY(const auto store, open_store(options, false));
  if (auto dropped = drop_run(*store, options.drop); !dropped) return dropped.error().at("--drop");
  fmt::print("run {} is no longer queued\n", options.drop);
  return {};
}

Result<void> queue_another_run(const ServerOptions& options) {
  if (options.drop != 0) return drop_queued_run(options);
  if (options.given.empty())
    return Error(Errc::invalid_input,
                 "a queued run has settings of its own: give at least one, such as --rounds 20. "
                 "'fl-server history --runs' shows the runs that wait");
  FL_TRY(const auto store, open_store(options, false));
  FL_TRY(const auto before, store->runs().oldest_open());
  FL_TRY(const auto run, queue_run(*store, options));
  fmt::print("run {} ({}) of '{}' with {} rounds is queued{}\n", run.id, run.key, run.model,
             run.rounds_total,
             before ? fmt::format("; run {} is not finished. Clients without --stay exit when that "
                                  "run ends, and must be started again",
                                  before->id)
                    : "; a server that waits with --stay begins it now, otherwise the next start "
                      "does");
  return {};
}

void declare_formats(CLI::App& command, ServerOptions& options) {
  const auto choose = [&options](Format format) {
    return [&options, format] { options.format = format; };
  };
  auto* json = command.add_flag_callback("--json", choose(Format::json), "Print JSON");
  command.add_flag_callback("--csv", choose(Format::csv), "Print CSV")->excludes(json);
}

void declare_history(CLI::App& command, ServerOptions& options) {
  command.add_option("--run", options.run, "The rounds of the run with this number")
      ->check(whole_number(1, std::numeric_limits<RunId>::max()));
  command.add_flag("--all", options.all_runs, "The rounds of all runs");
  command.add_flag("--runs", options.runs, "The runs themselves, with those in the queue");
  command.add_flag("--codecs", options.codecs,
                   "For each codec: what it sent, cost and lost, and the bytes for one point of "
                   "accuracy");
  command
      .add_flag("--choices", options.choices,
                "Which codec --codec auto chose for each client in each round, and why")
      ->excludes("--codecs");
  command
      .add_flag("--events", options.events,
                "The newest 100,000 events: who came and went, what was refused and why")
      ->excludes("--codecs")
      ->excludes("--choices");
  command
      .add_flag("--metrics", options.metrics,
                "All metrics of each version, and who has measured them")
      ->excludes("--codecs")
      ->excludes("--choices")
      ->excludes("--events");
  command
      .add_option("--plot", options.file,
                  "Draw the run's main metric and losses over rounds, time and bytes into this SVG "
                  "file")
      ->check(not_empty())
      ->excludes("--all")
      ->excludes("--codecs")
      ->excludes("--choices")
      ->excludes("--events")
      ->excludes("--metrics");
  for (const char* other :
       {"--plot", "--run", "--all", "--codecs", "--choices", "--events", "--metrics"})
    command.get_option("--runs")->excludes(other);
  declare_formats(command, options);
  for (const char* other : {"--json", "--csv"}) command.get_option("--plot")->excludes(other);
}

template <class Record>
Result<void> print_rows(const Result<std::vector<Record>>& rows, Format format) {
  if (!rows) return rows.error();
  fmt::print("{}", format_rows(*rows, format));
  return {};
}

/// None: of all runs.
Result<std::optional<RunId>> run_to_show(Store& store, const ServerOptions& options) {
  if (options.run == 0) {
    FL_TRY(const auto shown, store.runs().shown());
    return shown && !options.all_runs ? std::optional(shown->id) : std::nullopt;
  }
  FL_TRY(const auto asked, store.runs().find(options.run));
  if (!asked)
    return Error(Errc::not_found, fmt::format("--run {}: there is no such run", options.run));
  return std::optional(options.run);
}

Result<void> print_history(const ServerOptions& options) {
  FL_TRY(const auto store, open_store(options, true));
  if (options.runs) return print_rows(store->runs().all(), options.format);
  if (!options.file.empty()) return plot_run(*store, options);
  FL_TRY(const auto run, run_to_show(*store, options));
  if (options.codecs) return print_rows(store->summaries().codecs(run), options.format);
  if (options.choices) return print_rows(store->summaries().codecs_asked(run), options.format);
  if (options.events) return print_rows(store->events().all(run), options.format);
  if (options.metrics) return print_rows(store->summaries().metrics(run), options.format);
  if (options.format == Format::table && run) {
    FL_TRY(const auto record, store->runs().find(*run));
    if (record) fmt::print("{}", format_run_header(*record));
    FL_TRY(const auto newest, store->runs().latest());
    if (options.run == 0 && newest && newest->id != *run)
      fmt::print("(run {} is newer: --run {} shows it, --runs lists all)\n", newest->id,
                 newest->id);
  }
  return print_rows(store->summaries().rounds(run), options.format);
}

Result<void> print_clients(const ServerOptions& options) {
  FL_TRY(const auto store, open_store(options, true));
  return print_rows(store->members().all(), options.format);
}

void declare_audit(CLI::App& command, ServerOptions& options) {
  command.add_option("--client", options.name, "Only the rows of this client");
  declare_formats(command, options);
}

Result<void> print_audit(const ServerOptions& options) {
  FL_TRY(const auto store, open_store(options, true));
  return print_rows(store->audit().all(options.name), options.format);
}

void declare_enroll(CLI::App& command, ServerOptions& options) {
  command.add_option("--name", options.name, "The client's name")->required();
  command
      .add_option(
          "--role", options.role,
          "trainer, or evaluator for a client that runs with --evaluate-only. By default the "
          "role that the name has already, or trainer")
      ->check(CLI::IsMember({"trainer", "evaluator"}));
  command
      .add_option("--max-examples", options.examples_max,
                  "The most examples that the client may say it has; 0: no limit")
      ->check(whole_number(0, std::numeric_limits<std::int64_t>::max()));
  command.add_option("--expires", options.expires_s, "Seconds until the token expires")
      ->check(real_number())
      ->capture_default_str();
}

Result<void> enroll_client(const ServerOptions& options) {
  if (!(options.expires_s > 0))
    return Error(Errc::invalid_input, "--expires: it must be above 0 seconds");
  FL_TRY(const auto store, open_store(options, false));
  const Invitation invitation{options.name, options.expires_s, options.role, options.examples_max};
  FL_TRY(const Invited invited, invite(*store, options, invitation));
  if (invited.replaces)
    fmt::print(stderr,
               "'{}' has joined already. Whoever joins with this token takes its place; the client "
               "that has the name now is then rejected\n",
               options.name);
  fmt::print("{}\n", invited.token);
  return {};
}

void declare_revoke(CLI::App& command, ServerOptions& options) {
  command.add_option("NAME", options.name, "The client's name")->required();
}

Result<void> revoke_client(const ServerOptions& options) {
  FL_TRY(const auto store, open_store(options, false));
  FL_TRY(const std::string done, revoke_member(*store, options.name));
  fmt::print("{}\n", done);
  return {};
}

void declare_rotate(CLI::App& command, ServerOptions& options) {
  command.add_flag("--finish", options.finish,
                   "Drop the old authority: members that have not been connected since the new one "
                   "was made must join again");
  command
      .add_flag("--intermediate", options.intermediate,
                "Make an intermediate authority, valid for a year, which certifies the server and "
                "the clients. Then ca.key is not needed any more and may be kept offline")
      ->excludes("--finish");
}

Result<void> make_intermediate(Store& store, Authority& authority, const ServerOptions& options) {
  const auto folder = identity_folder(options);
  FL_TRY(const std::string passphrase, ca_passphrase(options));
  FL_CHECK(authority.make_intermediate(posix_files(), folder, Clock::unix_seconds(), passphrase));
  store.events().note(0, EventLevel::notice, "a new intermediate authority was made");
  fmt::print(
      "there is a new intermediate authority. Now move {} to a safe place that is not on this\n"
      "machine: the server does not need it until you run this command again, within a year.\n"
      "Members renew their certificates when they connect\n",
      (folder / "ca.key").string());
  return {};
}

Result<void> rotate_authority(const ServerOptions& options) {
  // A running server would go on with the authority that it has.
  FL_TRY([[maybe_unused]] const auto lock, StateLock::take(options.state));
  FL_TRY(const auto store, open_store(options, false));
  FL_TRY(Authority authority, open_authority(*store, options));
  const auto folder = identity_folder(options);
  if (options.intermediate) return make_intermediate(*store, authority, options);
  if (options.finish) {
    FL_CHECK(authority.finish_rotation(posix_files(), folder));
    store->events().note(0, EventLevel::notice, "the old authority was dropped");
    fmt::print("the old authority is dropped; tokens that nobody has used are void\n");
    return {};
  }
  FL_TRY(const std::string passphrase, ca_passphrase(options));
  FL_CHECK(authority.begin_rotation(posix_files(), folder, Clock::unix_seconds(), passphrase));
  store->events().note(0, EventLevel::notice, "a new authority was made beside the old one");
  fmt::print(
      "there is a new authority beside the old one. Members renew their certificates when they\n"
      "connect; once all have ('fl-server clients' says when each was last seen), stop the server\n"
      "and run 'fl-server rotate-ca --finish'\n");
  return {};
}

void print_line(std::size_t width, std::string_view usage, std::string_view about) {
  fmt::print("{:<{}} {}\n", usage, width, about);
}

Result<void> print_codecs(const ServerOptions&) {
  constexpr std::size_t width = 54;
  for (const auto& row : codec_rows()) print_line(width, row.usage, row.about);
  print_line(width, "...+ef", "any codec with error feedback: what it loses is sent later");
  print_line(width, "SELECTOR+...+dgc:M",
             "error feedback with momentum M and factor masking (Lin 2018)");
  print_line(width, "delta+...",
             "for --codec: sends the difference to the client's last update (EF21); takes 4 bytes "
             "a parameter of disk for each client, at both ends");
  print_line(width, "PATTERN=CODEC;…;*=CODEC",
             "by tensor name, the first pattern that fits: '*.bias=none;*=topk:0.01+qsgd:8'");
  print_line(width, "…,dense_below=N",
             "sends tensors of fewer elements losslessly (1024 under selectors and patterns)");
  print_line(width, "…,from=X,over=R",
             "F, S, B, R or BITS goes from X to its value over R rounds: topk:0.001,from=0.25,"
             "over=4");
  print_line(width, "auto[:CODEC|CODEC|…]",
             "for --codec: each client uses the finest codec, finest first, that its connection "
             "sends in time");
  return {};
}

Result<void> print_strategies(const ServerOptions&) {
  constexpr std::size_t width = 50;
  for (const auto& row : strategy_rows()) print_line(width, row.usage, row.about);
  print_line(width, "…,weight=uniform",
             "any method, with clients that count the same instead of by their examples");
  print_line(width, "…,personal=PATTERN|PATTERN",
             "any method, with tensors that stay on each client (FedPer, FedBN): fc3.*");
  return {};
}

constexpr Command command_table[] = {
    {.name = "queue",
     .help = "Adds a run to the queue, with the run's flags that are given (see fl-server --help). "
             "The server begins it once all runs before it are finished; with --stay the server "
             "waits for it",
     .declare = declare_queue,
     .run = queue_another_run,
     .uses_settings = [](const ServerOptions& options) { return options.drop == 0; },
     .act = queue_act},
    {.name = "history",
     .help = "Prints the rounds of the run under way, or of the newest run that has any",
     .declare = declare_history,
     .run = print_history},
    {.name = "compare",
     .help = "Prints two runs side by side: the settings in which they differ, what they cost and "
             "reached",
     .declare = declare_compare,
     .run = print_comparison},
    {.name = "export",
     .help = "Writes a version of the model into a file for other programs",
     .declare = declare_export,
     .run = export_checkpoint,
     .act = export_act},
    {.name = "replay",
     .help = "Makes rounds whose updates were kept (--keep-updates) again, and compares the models "
             "with the recorded ones, bit for bit. The exit code is 4 if one differs",
     .declare = declare_replay,
     .judge = replay_rounds},
    {.name = "backup",
     .help = "Copies the state of the server, which may be running, into a folder from which a "
             "server can go on",
     .declare = declare_backup,
     .run = make_backup,
     .act = backup_act},
    {.name = "prune",
     .help = "Removes runs that are over, with their models. The audit stays",
     .declare = declare_prune,
     .run = prune_history,
     .act = prune_act},
    {.name = "clients",
     .help = "Prints the enrolled clients",
     .declare = declare_formats,
     .run = print_clients},
    {.name = "audit",
     .help = "Prints who came in, who was kept out, and who did what: enrolments, takeovers of a "
             "name, refusals, displaced sessions, renewals, revocations, logins, and all that was "
             "done at the command line and at the admin pages. Nothing is ever removed from it",
     .declare = declare_audit,
     .run = print_audit},
    {.name = "enroll",
     .help = "Makes a join token for a client and prints it to standard output, with nothing else",
     .declare = declare_enroll,
     .run = enroll_client,
     .act = enroll_act},
    {.name = "revoke",
     .help = "Ends a client's sessions and never admits it again",
     .declare = declare_revoke,
     .run = revoke_client,
     .act = revoke_act},
    {.name = "end-run",
     .help = "Ends a run after the round under way, beside the running server",
     .declare = declare_end_run,
     .run = end_run_now,
     .act = end_run_act},
    {.name = "operator",
     .help = "Adds, lists and revokes the people who may log in at the admin pages",
     .declare = declare_operator,
     .run = change_operators,
     .act = operator_act},
    {.name = "rotate-ca",
     .help = "Makes a new certificate authority beside the old one, while the server is stopped. "
             "Members renew by themselves; then --finish drops the old one. Or makes an "
             "intermediate, so that the authority's key may be kept offline",
     .declare = declare_rotate,
     .run = rotate_authority,
     .act = rotate_act},
    {.name = "doctor",
     .help = "Looks at port, address, authority, clock, disk, history, open files and memory, and "
             "says for each what to do; with the flags that the server gets. The exit code is 1 if "
             "something fails",
     .declare = declare_doctor,
     .run = run_doctor,
     .takes_all = true},
    {.name = "codecs", .help = "Lists the codecs", .run = print_codecs},
    {.name = "strategies", .help = "Lists the federated methods", .run = print_strategies},
};

}  // namespace

std::span<const Command> server_commands() { return command_table; }

}  // namespace fl
