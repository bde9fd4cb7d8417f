// SPDX-License-Identifier: Apache-2.0
// sessions_bench: what an idle authenticated session costs the server. It makes a federation of
// many members, starts the real fl-server, opens a session for each, and reads the server's memory
// before and after. Nobody is asked anything, as more clients are waited for than come.
//
//   sessions_bench [--sessions N] [--state DIR]
#include "server/history/store.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/io/file.hpp"
#include "shared/identity/authority.hpp"
#include "shared/identity/x509.hpp"
#include "shared/wire/message.hpp"
#include "shared/wire/ws_link.hpp"

#include <CLI/CLI.hpp>

#include <boost/asio/io_context.hpp>
#include <boost/asio/strand.hpp>

#include <fmt/format.h>

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

extern char** environ;

namespace {

using namespace fl;
using namespace fl::server;
namespace fs = std::filesystem;

constexpr int connecting_max = 32;  // At the same time.

std::string name_of(int member) { return fmt::format("member-{:05}", member); }

struct Identities {
  std::string key_pem;  // One key for all: making keys is not what is measured.
  std::vector<std::string> certificates;
};

/// Enrols everybody, without a server.
Identities make_members(const fs::path& state, int count) {
  const double now = Clock::unix_seconds();
  const Authority authority =
      Authority::open_or_create(posix_files(), state / "identity", now).value();
  Store::Options options;
  options.path = state / "history.sqlite";
  options.durable = false;
  const auto store = Store::open(options).value();
  const KeyPtr key = make_key().value();
  const std::string request = to_pem(*make_request(*key).value()).value();
  Identities members{to_pem(*key).value(), {}};
  for (int member = 0; member < count; ++member) {
    const auto issued = authority.issue_client(name_of(member), request, now).value();
    TokenRecord token{fmt::format("{:016x}", member), name_of(member), std::string(64, '0'),
                      now + 3600};
    store->members().add_token(token).value();
    ClientRecord client;
    client.name = name_of(member);
    client.certificate_serial = issued.serial;
    client.enrolled_at = now;
    store->members().use_token(token.id, client, "").value();
    members.certificates.push_back(issued.pem);
  }
  return members;
}

std::size_t resident_kib(pid_t pid) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stoul(line.substr(6));
  }
  return 0;
}

net::ssl::context context_of(const Identities& members, int member) {
  net::ssl::context context(net::ssl::context::tlsv13_client);
  const std::string& certificate = members.certificates.at(static_cast<std::size_t>(member));
  context.use_certificate_chain(net::buffer(certificate));
  context.use_private_key(net::buffer(members.key_pem), net::ssl::context::pem);
  return context;
}

struct Crowd {
  net::io_context io;
  int connecting = 0;
  std::vector<std::shared_ptr<Link>> links;
  int failed = 0;
};

/// One member's session: it shakes hands, and answers the server's pings from then on.
Awaitable<void> live(Crowd& crowd, net::any_io_executor strand, const Identities& members,
                     int member, ServerAddress server) {
  auto context = context_of(members, member);
  const Governors nothing;
  auto link = co_await connect_ws(strand, server, ProxyRules(), nothing, context);
  if (!link) {
    if (crowd.failed++ == 0) fmt::print("{}\n", link.error().message());
    --crowd.connecting;
    co_return;
  }
  wire::Header hello;
  hello.mutable_hello()->set_protocol(protocol_version);
  hello.mutable_hello()->add_codecs("none");
  Message first(std::move(hello));
  [[maybe_unused]] auto sent = co_await (*link)->send(std::move(first));
  auto welcome = co_await (*link)->receive();
  wire::Header ready;
  ready.mutable_ready()->set_train_examples(1);
  Message second(std::move(ready));
  sent = co_await (*link)->send(std::move(second));
  --crowd.connecting;
  crowd.links.push_back(*link);
  for (;;) {
    auto message = co_await (*link)->receive();
    if (!message) break;
  }
}

/// Opens the sessions, a few at a time.
void open_all(Crowd& crowd, const Identities& members, int count, const ServerAddress& server) {
  int begun = 0;
  while (begun < count || crowd.connecting > 0) {
    while (begun < count && crowd.connecting < connecting_max) {
      ++crowd.connecting;
      const auto strand = net::make_strand(crowd.io);
      net::co_spawn(strand, live(crowd, strand, members, begun++, server), rethrow);
    }
    crowd.io.run_one();
  }
}

/// Reads the port in the file that fl-server writes once it listens: "listen": "127.0.0.1:PORT".
std::string await_port(const fs::path& ready, pid_t server) {
  while (!fs::exists(ready)) {
    if (::waitpid(server, nullptr, WNOHANG) == server) {
      fmt::print(stderr, "fl-server ended; {} says why\n", (ready.parent_path() / "log").string());
      std::exit(1);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::ifstream file(ready);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const auto begin = text.find(':', text.find("\"listen\"") + 10) + 1;
  return text.substr(begin, text.find('"', begin) - begin);
}

pid_t start_server(const fs::path& state, int waits_for) {
  const fs::path here = fs::canonical("/proc/self/exe").parent_path();
  std::vector<std::string> arguments{(here / "fl-server").string(),
                                     "--state",
                                     state.string(),
                                     "--listen",
                                     "127.0.0.1:0",
                                     "--admin",
                                     "off",
                                     "--ready-file",
                                     (state / "ready").string(),
                                     "--model",
                                     "synthetic:1000",
                                     "--codec",
                                     "none",
                                     "--min-clients",
                                     std::to_string(waits_for)};
  std::vector<char*> argv;
  for (auto& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const std::string log = (state / "log").string();
  posix_spawn_file_actions_addopen(&actions, 2, log.c_str(), O_CREAT | O_WRONLY, 0600);
  pid_t pid = 0;
  if (::posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ) != 0) std::abort();
  posix_spawn_file_actions_destroy(&actions);
  return pid;
}

}  // namespace

int main(int argc, char** argv) {
  int count = 5000;
  std::string state =
      (fs::temp_directory_path() / fmt::format("sessions-bench-{}", ::getpid())).string();
  CLI::App app{"Measures the memory of an idle session"};
  app.add_option("--sessions", count, "How many members connect")->capture_default_str();
  app.add_option("--state", state, "Folder for the server's state");
  CLI11_PARSE(app, argc, argv);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  posix_files().make_folder(state).value();
  const Identities members = make_members(state, count);
  const pid_t server = start_server(state, count + 1);
  const std::string port = await_port(fs::path(state) / "ready", server);
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const std::size_t before = resident_kib(server);
  Crowd crowd;
  const auto began = Clock::now();
  open_all(crowd, members, count, {"127.0.0.1", static_cast<std::uint16_t>(std::stoi(port))});
  const double took = seconds(Clock::now() - began);
  crowd.io.run_for(std::chrono::seconds(3));
  const std::size_t after = resident_kib(server);
  fmt::print("{} sessions in {:.1f} s, {} failed; server {} -> {} MiB: {:.1f} KiB a session\n",
             crowd.links.size(), took, crowd.failed, before >> 10, after >> 10,
             static_cast<double>(after - before) / static_cast<double>(crowd.links.size()));
  ::kill(server, SIGKILL);
  ::waitpid(server, nullptr, 0);
  fs::remove_all(state);
  std::fflush(stdout);
  std::_Exit(0);  // Ends all at once.
}
