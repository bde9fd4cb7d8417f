// SPDX-License-Identifier: Apache-2.0
#include "server/app/doctor.hpp"

#include "server/app/newer_files.hpp"
#include "server/history/integrity.hpp"
#include "server/history/store.hpp"
#include "server/net/acceptor.hpp"
#include "server/net/places.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/doctor.hpp"
#include "shared/base/io/file.hpp"
#include "shared/base/io/files_max.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/machine.hpp"
#include "shared/base/state_lock.hpp"
#include "shared/identity/x509.hpp"

#include <CLI/CLI.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>

namespace fl::server {

using Verdict = DoctorLine::Verdict;

namespace {

struct DoctorOptions : ServeOptions {
  bool as_json = false;
};

constexpr double disk_bytes_min = 2e9;
/// A server keeps a round's sums (8 bytes a parameter), the version before and the next one.
constexpr double memory_bytes_per_parameter = 16;

/// A run's settings: those of the run under way, or the flags'.
RunSettings settings_of(const ServeOptions& options, bool has_history) {
  if (!has_history) return options.settings;
  Store::Options store;
  store.path = std::filesystem::path(options.state) / "history.sqlite";
  store.read_only = true;
  const auto opened = Store::open(store);
  if (!opened) return options.settings;
  const auto run = (*opened)->runs().next_open();
  if (!run || !*run) return options.settings;
  auto settings = settings_from_json((*run)->config_json);
  return settings ? *settings : options.settings;
}

/// True if a server runs in the state folder.
bool is_running(const ServeOptions& options) {
  const auto lock = StateLock::take(options.state);
  return !lock && lock.error().message().find("another process") != std::string::npos;
}

void check_port(const ServeOptions& options, bool runs, DoctorLines& lines) {
  const auto address = parse_listen_address(options.listen);
  if (!address) {
    lines.push_back({Verdict::fail, "port", address.error().message(), "write --listen HOST:PORT"});
    return;
  }
  net::io_context io;
  net::ip::tcp::acceptor acceptor(io);
  const auto bound = bind_acceptor(acceptor, *address);
  if (bound) {
    lines.push_back(
        {Verdict::ok, "port",
         options.listen + (runs ? " is free; the server here listens elsewhere" : " is free")});
  } else if (runs) {
    lines.push_back({Verdict::ok, "port", options.listen + " is taken: a server runs here"});
  } else {
    lines.push_back({Verdict::fail, "port", bound.error().message(),
                     bound.error().code() == Errc::conflict
                         ? "end that program, or choose another --listen"
                         : "choose another --listen"});
  }
}

/// The address in join tokens: the flag's, or what the last server wrote.
std::string advertised_host(const ServeOptions& options) {
  if (!options.advertise.empty()) {
    const auto parsed = parse_server_address(options.advertise, 1);
    return parsed ? parsed->host : options.advertise;
  }
  const auto text = posix_files().read_all(std::filesystem::path(options.state) / "address.json");
  if (!text) return "";
  const auto address = parse_json(*text);
  if (!address.is_object() || !address.contains("advertise") || !address["advertise"].is_string())
    return "";
  const auto parsed = parse_server_address(address["advertise"].get<std::string>());
  return parsed ? parsed->host : "";
}

void check_address(const ServeOptions& options, DoctorLines& lines) {
  const std::string host = advertised_host(options);
  if (host.empty()) {
    lines.push_back(
        {Verdict::warn, "address", "clients get this machine's first address",
         "name the address by which clients reach the server: --advertise HOST[:PORT]"});
    return;
  }
  net::io_context io;
  boost::system::error_code ec;
  const auto found = net::ip::tcp::resolver(io).resolve(host, "1", ec);
  if (ec) {
    lines.push_back({Verdict::fail, "address", fmt::format("{}: {}", host, ec.message()),
                     "--advertise a name that clients can look up"});
    return;
  }
  std::set<std::string> addresses;
  bool is_local = true;
  for (const auto& entry : found) {
    addresses.insert(entry.endpoint().address().to_string());
    is_local = is_local && entry.endpoint().address().is_loopback();
  }
  lines.push_back(
      {is_local ? Verdict::warn : Verdict::ok, "address",
       fmt::format("join tokens name {}: {}", host, fmt::join(addresses, ", ")),
       is_local ? "only clients on this machine reach that: --advertise HOST[:PORT]" : ""});
}

void check_authority(const ServeOptions& options, DoctorLines& lines) {
  const auto folder = std::filesystem::path(options.state) / "identity";
  const auto look = [&](const char* file, const char* subject, const char* renewal,
                        bool is_needed) {
    const auto text = posix_files().read_all(folder / file);
    if (!text && text.error().code() == Errc::not_found && !is_needed) return;
    const auto certificate = text ? parse_certificate(*text) : Result<CertificatePtr>(text.error());
    const auto life = certificate ? validity(**certificate) : Result<Validity>(certificate.error());
    if (!life) {
      lines.push_back(
          {Verdict::fail, subject, life.error().message(), "restore STATE/identity from a copy"});
      return;
    }
    check_certificate_end(subject, life->not_after, renewal, lines);
  };
  look("ca.crt", "authority", "make a new one: fl-server rotate-ca", true);
}

void check_history(const ServeOptions& options, DoctorLines& lines) {
  const auto damage = find_damage(std::filesystem::path(options.state) / "history.sqlite");
  if (damage && damage->empty()) {
    lines.push_back({Verdict::ok, "history", "the database is whole"});
    return;
  }
  lines.push_back({Verdict::fail, "history", damage ? *damage : damage.error().message(),
                   "stop the server and restore history.sqlite from a copy"});
}

void check_files(const RunSettings& settings, DoctorLines& lines) {
  const auto files_max = raise_files_max();
  const Places places = places_for(files_max);
  const bool fits = places.sessions >= settings.min_clients;
  const bool is_full = places.sessions >= limits::sessions_max;
  lines.push_back(
      {!fits     ? Verdict::fail
       : is_full ? Verdict::ok
                 : Verdict::warn,
       "open files", fmt::format("{} are allowed: room for {} clients", files_max, places.sessions),
       fits && is_full ? "" : "raise the limit: ulimit -Hn, or LimitNOFILE of systemd"});
}

void check_memory(const RunSettings& settings, DoctorLines& lines) {
  const auto layout = model_layout(settings);
  if (!layout) {
    lines.push_back({Verdict::warn, "memory", layout.error().message(),
                     "give the run's flags, such as --model, to know how much is needed"});
    return;
  }
  const double needed = static_cast<double>(layout->elements()) * memory_bytes_per_parameter +
                        static_cast<double>(limits::bulk_bytes_max);
  const Machine& machine = this_machine();
  const auto there = static_cast<double>(machine.free_memory_bytes.value_or(machine.memory_bytes));
  const std::string text =
      fmt::format("{:.3g} GB are available; '{}' with {} parameters needs about {:.3g} GB",
                  there / 1e9, settings.model, layout->elements(), needed / 1e9);
  const Verdict verdict = there < needed       ? Verdict::fail
                          : there < 2 * needed ? Verdict::warn
                                               : Verdict::ok;
  lines.push_back({verdict, "memory", text,
                   verdict == Verdict::ok
                       ? ""
                       : "give it more memory: raise the limit, or take a larger machine"});
}

void check_limits(const ServeOptions& options, DoctorLines& lines) {
  const std::string text = traffic_text(options.traffic, Clock::unix_seconds());
  if (!text.empty()) lines.push_back({Verdict::ok, "limits", text});
}

void declare_doctor(CLI::App& command, DoctorOptions& options) {
  command.add_flag("--json", options.as_json, "Print JSON");
}

Result<void> run_doctor(const DoctorOptions& options) {
  DoctorLines lines;
  std::error_code ec;
  const std::filesystem::path state(options.state);
  const bool has_state = std::filesystem::is_directory(state, ec);
  const bool has_history = has_state && std::filesystem::exists(state / "history.sqlite", ec);
  const bool runs = has_state && is_running(options);
  if (has_state) check_owner(state, lines);
  if (const auto whole = check_nothing_newer(state);
      !whole && whole.error().code() == Errc::conflict)
    lines.push_back({Verdict::fail, "state files", whole.error().message(),
                     "bring what is missing before a server starts here"});
  check_port(options, runs, lines);
  check_address(options, lines);
  if (has_history) {
    check_authority(options, lines);
    check_history(options, lines);
  } else {
    lines.push_back({Verdict::warn, "state", options.state + " has no history yet",
                     "the first start makes it; or name another folder with --state"});
  }
  check_clock(0, lines);
  check_limits(options, lines);
  check_disk(nearest_folder(state), disk_bytes_min, lines);
  const RunSettings settings = settings_of(options, has_history);
  check_files(settings, lines);
  check_machine(lines);
  check_memory(settings, lines);
  if (print_doctor(lines, options.as_json) == 0) return {};
  const auto failures = std::ranges::count(lines, Verdict::fail, &DoctorLine::verdict);
  return Error(Errc::conflict,
               fmt::format("doctor: {} of {} checks failed", failures, lines.size()));
}

}  // namespace

Command doctor_command() {
  return make_command<DoctorOptions>(
      "doctor",
      "Looks at port, address, authority, clock, disk, history, open files and memory, and "
      "says for each what to do; with the flags that the server gets. The exit code is 1 if "
      "something fails",
      {.declare = declare_doctor, .run = run_doctor});
}

}  // namespace fl::server
