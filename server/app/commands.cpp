#include "server/app/commands.hpp"

#include "server/app/run_queue.hpp"
#include "server/history/format.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/json.hpp"
#include "shared/codec/encode/codec.hpp"
#include "shared/codec/spec/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

namespace fl {

namespace {

Result<std::unique_ptr<Store>> open_store(const ServerOptions& options, bool read_only) {
  Store::Options store;
  store.path = std::filesystem::path(options.state) / "history.sqlite";
  store.read_only = read_only;
  if (!posix_files().exists(store.path)) {
    // A folder that we may not look into seems to be empty.
    const auto opened = posix_files().open(store.path, OpenMode::read);
    if (!opened && opened.error().code() != Errc::not_found) return opened.error();
    return Error(
        Errc::not_found,
        fmt::format(
            "{} holds no history: start fl-server there first, or name another folder with --state",
            options.state));
  }
  return Store::open(store);
}

/// Where the running (or last) server said that clients reach it.
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

}  // namespace

Result<Authority> open_authority(Store& store, const std::string& state) {
  const auto folder = std::filesystem::path(state) / "identity";
  if (!posix_files().exists(folder / "ca.crt")) {
    FL_TRY(const auto clients, store.clients());
    const auto known = std::ranges::count_if(
        clients, [](const ClientRecord& client) { return !client.certificate_serial.empty(); });
    if (known > 0)
      return Error(Errc::corrupt,
                   fmt::format("{} is gone, and {} clients have certificates of it: restore the "
                               "folder from a copy, or begin in another --state, where they join "
                               "anew",
                               (folder / "ca.crt").string(), known));
  }
  return Authority::open_or_create(posix_files(), folder, Clock::unix_seconds());
}

Result<void> queue_another_run(const ServerOptions& options) {
  if (options.drop != 0) {
    FL_TRY(const auto store, open_store(options, false));
    FL_TRY(const bool dropped, store->drop_queued_run(options.drop));
    if (!dropped) {
      FL_TRY(const auto asked, store->find_run(options.drop));
      if (!asked)
        return Error(Errc::not_found, fmt::format("--drop {}: there is no such run", options.drop));
      return Error(Errc::not_found,
                   fmt::format("run {} is not queued behind another: one that is next or under way "
                               "ends when fl-server begins with --new-run",
                               options.drop));
    }
    fmt::print("run {} is no longer queued\n", options.drop);
    return {};
  }
  if (options.given.empty())
    return Error(
        Errc::invalid_input,
        "a run is queued with settings of its own: give one at least, such as --rounds 20; "
        "'fl-server history --runs' shows those that wait");
  FL_TRY(const auto store, open_store(options, false));
  FL_TRY(const auto before, store->open_run());
  FL_TRY(const auto run, queue_run(*store, options));
  fmt::print("run {} ({}) of '{}', {} rounds, is queued{}\n", run.id, run.key, run.model,
             run.rounds_total,
             before ? fmt::format(": run {} is not over. Clients without --stay end with that one, "
                                  "and must be started again",
                                  before->id)
                    : ": a server that waits with --stay begins it now, another when it starts");
  return {};
}

Result<void> print_history(const ServerOptions& options) {
  FL_TRY(const auto store, open_store(options, true));
  if (options.runs) {
    FL_TRY(const auto runs, store->runs());
    fmt::print("{}", format_rows(runs, options.format));
    return {};
  }
  std::optional<RunId> run;
  FL_TRY(const auto shown, store->shown_run());
  if (options.run != 0) {
    FL_TRY(const auto asked, store->find_run(options.run));
    if (!asked)
      return Error(Errc::not_found, fmt::format("--run {}: there is no such run", options.run));
    run = options.run;
  }
  if (options.run == 0 && !options.all_runs && shown) run = shown->id;
  if (options.codecs) {
    FL_TRY(const auto codecs, store->codecs(run));
    fmt::print("{}", format_rows(codecs, options.format));
    return {};
  }
  if (options.choices) {
    FL_TRY(const auto asked, store->codecs_asked(run));
    fmt::print("{}", format_rows(asked, options.format));
    return {};
  }
  if (options.events) {
    FL_TRY(const auto events, store->events(run));
    fmt::print("{}", format_rows(events, options.format));
    return {};
  }
  FL_TRY(const auto rounds, store->summary(run));
  if (options.format == Format::table && run) {
    FL_TRY(const auto record, store->find_run(*run));
    if (record) fmt::print("{}", format_run_header(*record));
    FL_TRY(const auto newest, store->latest_run());
    if (options.run == 0 && newest && newest->id != *run)
      fmt::print("(run {} is newer: --run {} shows it, --runs all of them)\n", newest->id,
                 newest->id);
  }
  fmt::print("{}", format_rows(rounds, options.format));
  return {};
}

Result<void> print_clients(const ServerOptions& options) {
  FL_TRY(const auto store, open_store(options, true));
  FL_TRY(const auto clients, store->clients());
  fmt::print("{}", format_rows(clients, options.format));
  return {};
}

Result<void> print_codecs() {
  for (const auto& row : codec_rows()) fmt::print("{:<54} {}\n", row.usage, row.about);
  fmt::print("{:<54} {}\n", "...+ef",
             "any of them with error feedback: what a code loses is sent later");
  fmt::print("{:<54} {}\n", "SELECTOR+...+dgc:M",
             "error feedback with momentum M and factor masking (Lin 2018)");
  fmt::print("{:<54} {}\n", "delta+...",
             "of --codec: what an update differs by from the client's last (EF21); 4 bytes a "
             "parameter of disk for each client, at both ends");
  fmt::print("{:<54} {}\n", "PATTERN=CODEC;…;*=CODEC",
             "by tensor name, the first that fits: '*.bias=none;*=topk:0.01+qsgd:8'");
  fmt::print("{:<54} {}\n", "…,dense_below=N",
             "tensors of fewer elements losslessly (1024 under selectors and patterns)");
  fmt::print(
      "{:<54} {}\n", "…,from=X,over=R",
      "F, S, B, R or BITS goes from X to what it is over R rounds: topk:0.001,from=0.25,over=4");
  fmt::print("{:<54} {}\n", "auto[:CODEC|CODEC|…]",
             "of --codec: for each client the finest, which come first, that its line brings in "
             "time");
  return {};
}

Result<void> print_strategies() {
  for (const auto& row : strategy_rows()) fmt::print("{:<50} {}\n", row.usage, row.about);
  fmt::print("{:<50} {}\n", "…,weight=uniform",
             "any of them with clients that count the same, instead of by their examples");
  fmt::print("{:<50} {}\n", "…,personal=PATTERN|PATTERN",
             "any of them with tensors that stay on each client (FedPer, FedBN): fc3.*");
  return {};
}

Result<std::string> make_join_token(Store& store, const Sha256& fingerprint,
                                    const ServerAddress& address, const std::string& name,
                                    double expires_s) {
  FL_CHECK(check_client_name(name));
  FL_TRY(const auto known, store.find_client(name));
  if (known && known->revoked_at != 0)
    return Error(Errc::conflict, fmt::format("'{}' was revoked; choose another name", name));
  FL_TRY(const auto token, make_token(address, fingerprint));
  TokenRecord record;
  record.id = token.id_hex();
  record.name = name;
  record.secret_hash = token.secret_hash();
  record.expires_at = Clock::unix_seconds() + expires_s;
  FL_CHECK(store.add_token(record));
  return to_string(token);
}

Result<void> enroll_client(const ServerOptions& options) {
  if (!(options.expires_s > 0))
    return Error(Errc::invalid_input, "--expires must be above 0 seconds");
  FL_TRY(const auto store, open_store(options, false));
  // First: a server that has an address has made its authority, and another is not made beside it.
  FL_TRY(const auto address, advertised_address(options));
  FL_TRY(const auto authority, open_authority(*store, options.state));
  FL_TRY(const auto known, store->find_client(options.name));
  FL_TRY(const auto token, make_join_token(*store, authority.fingerprint(), address, options.name,
                                           options.expires_s));
  if (known && !known->certificate_serial.empty())
    fmt::print(stderr,
               "'{}' has joined already: who joins with this token takes its place, and it is not "
               "let in any more\n",
               options.name);
  fmt::print("{}\n", token);
  return {};
}

Result<void> revoke_client(const ServerOptions& options) {
  FL_TRY(const auto store, open_store(options, false));
  FL_CHECK(store->revoke(options.name));
  FL_TRY(const auto member, store->find_client(options.name));
  if (!member) {
    note_event(*store, 0, "info", fmt::format("the tokens of '{}' are void", options.name));
    fmt::print("the tokens of '{}' are void; nobody has joined by that name\n", options.name);
    return {};
  }
  note_event(*store, 0, "info", fmt::format("'{}' was revoked", options.name));
  fmt::print("'{}' is revoked: its sessions end within a second, and it is not admitted again\n",
             options.name);
  return {};
}

}  // namespace fl
