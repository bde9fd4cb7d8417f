// SPDX-License-Identifier: Apache-2.0
#include "client/client_doctor.hpp"

#include "client/agent/connection.hpp"
#include "client/gpu_doctor.hpp"
#include "client/learn/data/data.hpp"
#include "client/learn/process/process_trainer.hpp"
#include "client/learn/torch_devices.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/async/stop_signals.hpp"
#include "shared/base/documents.hpp"
#include "shared/base/environment.hpp"
#include "shared/base/io/scratch_folder.hpp"
#include "shared/identity/token.hpp"
#include "shared/wire/server_clock.hpp"
#include "shared/wire/tls_context.hpp"

#include <boost/asio/ip/tcp.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>
#include <variant>

namespace fl::client {

using Verdict = DoctorLine::Verdict;

namespace {

constexpr double disk_bytes_min = 1e9;  // A model of 250 million parameters.

/// Where the server is and how to trust it: by the identity, or else by a join token.
struct Target {
  ServerAddress server;
  net::ssl::context context;
};

Result<Target> target_of_identity(const ClientIdentity& identity) {
  FL_TRY(net::ssl::context context, client_context(identity));
  return Target{identity.server(), std::move(context)};
}

std::optional<Target> check_identity(const ClientOptions& options, const std::string& token,
                                     DoctorLines& lines) {
  Files& files = posix_files();
  const auto folder = client::identity_folder(options.state);
  const auto failed = [&lines](const Error& error, const char* advice) -> std::optional<Target> {
    lines.push_back({Verdict::fail, "identity", error.message(), advice});
    return std::nullopt;
  };
  if (ClientIdentity::is_present(files, folder)) {
    const auto identity = ClientIdentity::load(files, folder);
    if (!identity) return failed(identity.error(), "join again with a new token");
    lines.push_back({Verdict::ok, "identity",
                     fmt::format("'{}' of {}", identity->name(), to_string(identity->server()))});
    check_certificate_end("certificate", identity->life().not_after,
                          "start the client, which renews it; once it has ended, join again with a "
                          "new token",
                          lines);
    auto target = target_of_identity(*identity);
    if (!target) return failed(target.error(), "join again with a new token");
    return std::move(*target);
  }
  if (token.empty())
    return failed(Error(Errc::not_found, folder.string() + " has none"),
                  "join first, or name the state folder with --state, or give --join-file to look "
                  "at the way to that server");
  const auto parsed = parse_token(token);
  if (!parsed) return failed(parsed.error(), "ask for a new token");
  auto context = pinning_client_context(parsed->ca_fingerprint);
  if (!context) return failed(context.error(), "");
  lines.push_back({Verdict::ok, "identity",
                   fmt::format("none yet; the token is for {}", to_string(parsed->server))});
  return Target{parsed->server, std::move(*context)};
}

void check_name(const ServerAddress& server, const std::string& what, DoctorLines& lines) {
  net::io_context io;
  net::ip::tcp::resolver resolver(io);
  boost::system::error_code ec;
  const auto found = resolver.resolve(server.host, std::to_string(server.port), ec);
  if (ec) {
    lines.push_back({Verdict::fail, "name",
                     fmt::format("{} {}: {}", what, server.host, ec.message()),
                     "look at /etc/resolv.conf and the VPN, or ask for the right name"});
    return;
  }
  std::set<std::string> addresses;
  for (const auto& entry : found) addresses.insert(entry.endpoint().address().to_string());
  lines.push_back({Verdict::ok, "name",
                   fmt::format("{} {} is {}", what, server.host, fmt::join(addresses, ", "))});
}

Awaitable<void> probe(Target& target, ProxyRules rules, ServerProbe& out) {
  const auto executor = co_await net::this_coro::executor;
  out = co_await probe_server(executor, target.server, std::move(rules), target.context);
}

/// A line for each stage that the look at the server came to.
void tell_probe(const ServerProbe& probe, const std::string& place, DoctorLines& lines) {
  using Stage = ServerProbe::Stage;
  struct Step {
    Stage stage;
    const char* subject;
    const char* text;
  };
  const Step steps[] = {
      {Stage::port, "port", "takes connections"},
      {Stage::tls, "TLS", "speaks TLS 1.3"},
      {Stage::certificate, "server certificate", "shows a certificate of the federation"},
      {Stage::server, "server", "answers"}};
  for (const Step& step : steps) {
    if (probe.error && step.stage == probe.stage) {
      lines.push_back({Verdict::fail, step.subject, probe.error->message(),
                       fmt::format("see {}: what stands between, and whom to ask for what",
                                   document_path("docs/guide/networks.md"))});
      return;
    }
    lines.push_back({Verdict::ok, step.subject, fmt::format("{} {}", place, step.text)});
  }
}

/// DNS, proxy, port, TLS and both certificates. Returns the server's clock, or 0.
double check_server(Target& target, const ClientOptions& options, DoctorLines& lines) {
  const ProxyRules rules(options.proxy, system_environment());
  const auto proxy = rules.proxy_for(target.server);
  if (!proxy) {
    lines.push_back({Verdict::fail, "proxy", proxy.error().message(),
                     "or reach the server without one: --proxy none"});
    return 0;
  }
  if (*proxy) {
    check_name((*proxy)->address, "the proxy", lines);
    lines.push_back({Verdict::ok, "proxy", (*proxy)->shown()});
  } else {
    check_name(target.server, "the server", lines);
    lines.push_back({Verdict::ok, "proxy", "none"});
  }
  net::io_context io;
  ServerProbe found;
  net::co_spawn(io, probe(target, rules, found), rethrow);
  io.run();
  tell_probe(found, to_string(target.server), lines);
  return found.clock_s;
}

/// Whether the site has its key, and the member list has it, if it trusts a list that is here.
void check_site_key(const ClientOptions& options, DoctorLines& lines) {
  Files& files = posix_files();
  const auto site = read_secure_options(files, options.secure);
  const auto failed = [&lines](std::string text, const char* advice) {
    lines.push_back({Verdict::fail, "site key", std::move(text), advice});
  };
  if (!site) return failed(site.error().message(), "");
  if (!*site) return;
  const secure::Public key = secure::signing_key((*site)->site_key);
  const std::string shown = secure::fingerprint_of(key);
  const auto* const list = std::get_if<secure::MemberList>(&(*site)->trusted);
  if (list == nullptr) {
    lines.push_back({Verdict::ok, "site key", shown});
    return;
  }
  const auto member = std::ranges::find(list->members, key, &secure::MemberList::Named::key);
  if (member == list->members.end()) {
    return failed(fmt::format("no member of {} has it: {}", options.secure.members, shown),
                  "ask the list's signers for one with this site, or name the right key with "
                  "--site-key");
  }
  const auto identity = ClientIdentity::load(files, identity_folder(options.state));
  if (identity && identity->name() != member->name) {
    return failed(fmt::format("{} knows it as '{}', and this client has joined as '{}'",
                              options.secure.members, member->name, identity->name()),
                  "join by the name that the list has, or ask its signers for another list");
  }
  lines.push_back({Verdict::ok, "site key",
                   fmt::format("'{}' of {}: {}", member->name, options.secure.members, shown)});
}

void check_limits(const ClientOptions& options, DoctorLines& lines) {
  const std::string text = traffic_text(options.traffic, Clock::unix_seconds());
  if (!text.empty()) lines.push_back({Verdict::ok, "limits", text});
}

void check_data(const ClientOptions& options, DoctorLines& lines) {
  if (options.learn.data.empty()) return;
  const auto data = load_local_data(options.learn);
  if (!data) {
    lines.push_back({Verdict::fail, "data", data.error().message(),
                     "see " + document_path("docs/guide/data.md")});
    return;
  }
  const bool has_some = !data->train.empty() || !data->holdout.empty();
  lines.push_back({has_some ? Verdict::ok : Verdict::fail, "data",
                   fmt::format("{}: {} examples to train, {} held out", options.learn.data,
                               data->train.size(), data->holdout.size()),
                   has_some ? "" : "look at --data and --shard: there are no examples"});
}

}  // namespace

void check_trainer_program(const ClientOptions& options, DoctorLines& lines) {
  const StopWhileStarting stop;
  TrainerCommand command = options.trainer;
  command.retries = 1;
  const auto folder = ScratchFolder::make("tributary-doctor");
  if (!folder) {
    lines.push_back({Verdict::fail, "trainer", folder.error().message(), "look at TMPDIR"});
    return;
  }
  const auto program = TrainerProgram::start(command, folder->path(), stop.token());
  if (program) {
    const TrainerHello& hello = (*program)->hello();
    lines.push_back(
        {Verdict::ok, "trainer",
         fmt::format("says hello: {} parameters, {} examples to train, {} held out",
                     hello.layout.elements(), hello.examples.train, hello.examples.holdout)});
    (*program)->end();
  } else {
    lines.push_back(
        {Verdict::fail, "trainer", program.error().message(),
         "run the command by hand; see " + document_path("docs/design/trainer-protocol.md")});
  }
}

void check_builtin_trainer(const ClientOptions& options, DoctorLines& lines) {
  if (options.learn.data.empty())
    lines.push_back({Verdict::warn, "data", "not looked at",
                     "give --data or --trainer as the client gets them"});
  lines.push_back(gpu_line(options.learn.device, ask_gpu_driver(), find_torch_devices()));
}

DoctorLines diagnose_client(const ClientOptions& options, const std::string& token,
                            const TrainerKind& kind) {
  DoctorLines lines;
  std::error_code ec;
  if (std::filesystem::is_directory(options.state, ec)) check_owner(options.state, lines);
  auto target = check_identity(options, token, lines);
  const double server_s = target ? check_server(*target, options, lines) : 0;
  check_site_key(options, lines);
  check_clock(server_s, lines);
  check_limits(options, lines);
  check_disk(nearest_folder(options.state), disk_bytes_min, lines);
  check_machine(lines);
  check_data(options, lines);
  if (kind.check != nullptr) kind.check(options, lines);
  return lines;
}

}  // namespace fl::client
