// SPDX-License-Identifier: Apache-2.0
// Joins a server if asked to, then runs an Agent until the run ends or a signal stops it.
#include "client/client_main.hpp"

#include "client/agent/agent.hpp"
#include "client/agent/connection.hpp"
#include "client/agent/enroll_client.hpp"
#include "client/client_doctor.hpp"
#include "client/command_line.hpp"
#include "client/learn/data/data.hpp"
#include "client/learn/initial_file.hpp"
#include "client/service.hpp"
#include "client/site/local_ranks.hpp"
#include "client/trainer_kinds.hpp"
#include "shared/base/async/stop_signals.hpp"
#include "shared/base/environment.hpp"
#include "shared/base/io/secret_file.hpp"
#include "shared/base/log.hpp"
#include "shared/base/state_lock.hpp"
#include "shared/base/write_signals.hpp"
#include "shared/params/model_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>

namespace fl {

namespace {

constexpr int exit_gave_up = 3;

ProxyRules proxy_rules(const client::ClientOptions& options) {
  return {options.proxy, system_environment()};
}

Awaitable<void> join_server(JoinToken token, const client::ClientOptions& options,
                            std::optional<Result<ClientIdentity>>& out) {
  out = co_await client::enroll_over_https(std::move(token), options.name,
                                           client::identity_folder(options.state), posix_files(),
                                           proxy_rules(options));
}

Result<ClientIdentity> try_to_join(const JoinToken& token, const client::ClientOptions& options) {
  net::io_context io;
  std::optional<Result<ClientIdentity>> joined;
  net::co_spawn(io, join_server(token, options, joined), rethrow);
  io.run();
  return std::move(*joined);
}

/// Joins the server. `fl-client join` reports an unreachable server immediately. A client that is
/// to train keeps trying, as it does later when the connection breaks. `deadline`: it gave up.
Result<void> join(const JoinToken& token, const client::ClientOptions& options,
                  const ServiceManager& manager) {
  std::minstd_rand jitter(std::random_device{}());
  client::Attempts attempts(options.patience);
  for (int attempt = 0;; ++attempt) {
    const auto joined = try_to_join(token, options);
    if (joined) {
      log_info("joined {} as '{}'", to_string(joined->server()), joined->name());
      return {};
    }
    const Errc code = joined.error().code();
    const bool may_pass = code == Errc::unavailable || code == Errc::deadline;
    if (options.only_join || !may_pass) {
      // `deadline` is for those who wait.
      return Error(may_pass ? Errc::unavailable : code, joined.error().message());
    }
    attempts.failed();
    if (attempts.is_over()) return Error(Errc::deadline, attempts.text(joined.error()));
    if (attempt % 10 == 0) log_warn("{}; trying again", joined.error().message());
    manager.status("waiting for the server: " + joined.error().message());
    const Duration pause = backoff_pause(attempt, std::generate_canonical<double, 32>(jitter));
    std::this_thread::sleep_for(std::min(pause, attempts.latest() - Clock::now()));
  }
}

/// Whether the token has not been used for the identity in the state folder, or there is none.
/// `conflict`: the identity belongs to another federation than the token.
Result<bool> is_new(const JoinToken& token, const client::ClientOptions& options) {
  const auto folder = client::identity_folder(options.state);
  if (!ClientIdentity::is_present(posix_files(), folder)) return true;
  FL_TRY(const ClientIdentity identity, ClientIdentity::load(posix_files(), folder));
  FL_TRY(const auto authorities, parse_certificates(identity.ca_pem()));
  const bool is_known = std::ranges::any_of(authorities, [&token](const CertificatePtr& authority) {
    const auto fingerprint = spki_fingerprint(*authority);
    return fingerprint && *fingerprint == token.ca_fingerprint;
  });
  if (!is_known)
    return Error(
        Errc::conflict,
        fmt::format("{} holds the identity of client '{}' of another federation than the join "
                    "token's: remove that folder, or choose another --state",
                    folder.string(), identity.name()));
  return identity.token_id() != token.id_hex();
}

/// The token's text: from the command line, from --join-file, or from standard input.
Result<std::string> read_token(const client::ClientOptions& options) {
  std::string text = options.join;
  if (text == "-") {
    std::getline(std::cin, text);
  } else if (!options.join_file.empty()) {
    FL_TRY(text, read_secret_file(posix_files(), options.join_file));
  }
  const auto is_space = [](unsigned char c) { return std::isspace(c) != 0; };
  std::erase_if(text, is_space);
  if (text.empty()) return Error(Errc::not_found, "there is no join token in it");
  return text;
}

/// Joins, unless this token was used before: a command line with --join may be run again, even
/// after the token has expired, or was removed from where it is read.
Result<void> join_once(const client::ClientOptions& options, const ServiceManager& manager) {
  const auto text = read_token(options);
  if (!text) {
    const Error error = text.error().at(
        options.join_file.empty() ? "--join -" : "--join-file " + options.join_file);
    const bool is_joined =
        ClientIdentity::is_present(posix_files(), client::identity_folder(options.state));
    if (!is_joined || options.only_join || error.code() != Errc::not_found) return error;
    log_info("there is no join token any more, and none is needed: this client has joined before");
    return {};
  }
  FL_TRY(const JoinToken token, parse_token(*text));
  FL_TRY(const bool is_needed, is_new(token, options));
  if (!is_needed) {
    if (options.only_join) log_info("this client has already joined with this token");
    return {};
  }
  const bool had_identity =
      ClientIdentity::is_present(posix_files(), client::identity_folder(options.state));
  // Check that the data can be read before the token is used up.
  if (!had_identity && !options.learn.data.empty()) FL_CHECK(load_local_data(options.learn));
  auto joined = join(token, options, manager);
  if (joined || options.only_join || !had_identity) return joined;
  log_warn("can't join with this token: {}; continuing with the existing identity",
           joined.error().message());
  return {};
}

/// Makes the file of --trace, if it is wanted.
Result<std::shared_ptr<TraceFile>> start_trace(const client::ClientOptions& options,
                                               const std::string& client,
                                               const client::StartedTrainer& trainer) {
  if (options.trace.empty()) return std::shared_ptr<TraceFile>();
  FL_TRY(auto trace, TraceFile::make(posix_files(), options.trace));
  trace->name_process(0, client);
  if (trainer.trace_into) trainer.trace_into(trace);
  return trace;
}

Result<void> make_initial_weights(const client::ClientOptions& options, const TrainerFactory& own) {
  const client::TrainerKind& kind = chosen_trainer_kind(options, own);
  FL_TRY(const client::StartedTrainer started,
         kind.start({options, options.learn, own, std::nullopt}));
  const std::string model(kind.weights_model.empty() ? options.learn.model : kind.weights_model);
  FL_TRY(const auto trainer, started.make(model));
  FL_CHECK(write_initial_weights(*trainer, options.initial_seed, options.initial_weights));
  log_info("wrote {}: start the server with --model custom:NAME --initial-weights {}",
           options.initial_weights, options.initial_weights);
  return {};
}

/// Returns the exit code.
Result<int> train(const client::ClientOptions& options, const std::optional<site::SitePlace>& place,
                  const TrainerFactory& own, const ServiceManager& manager) {
  Files& files = posix_files();
  const auto folder = client::identity_folder(options.state);
  if (!ClientIdentity::is_present(files, folder)) {
    return Error(Errc::not_found,
                 fmt::format("{} holds no identity: join first, with '{} --join-file FILE ...'; "
                             "'fl-server enroll --name NAME' prints a token",
                             options.state, options.program));
  }
  FL_TRY(ClientIdentity identity, ClientIdentity::load(files, folder));
  client::Agent::Options agent_options;
  // Report a wrong flag or bad data before connecting to the server.
  FL_TRY(agent_options.secure, client::read_secure_options(files, options.secure));
  const client::TrainerKind& kind = chosen_trainer_kind(options, own);
  if (!options.learn.model.empty() && kind.is_for_builtin_models)
    FL_CHECK(builtin_layout(options.learn.model));
  LearnOptions learn = options.learn;
  learn.client_seed = Digest::of(bytes_of(std::string_view(identity.name()))).short_id();
  learn.state = options.state;
  FL_TRY(const client::StartedTrainer trainer, kind.start({options, learn, own, place}));
  FL_TRY(const auto trace, start_trace(options, identity.name(), trainer));

  net::io_context io(1);
  auto strand = net::make_strand(io);
  Offload worker(1);
  const Governors traffic = make_governors(options.traffic);
  client::WsConnector connector(strand, files, std::move(identity), proxy_rules(options), traffic);
  agent_options.evaluator = learn.evaluate_only;
  agent_options.stay = options.stay;
  agent_options.parameters_max = options.parameters_max;
  agent_options.model = learn.model;
  agent_options.data = trainer.data;
  agent_options.tensors = trainer.tensors ? trainer.tensors->raw() : "";
  agent_options.threads = learn.threads;
  agent_options.trace = trace.get();
  agent_options.jitter_seed = std::random_device{}();
  agent_options.patience = options.patience;
  client::Agent agent(strand, connector, &connector, files, std::filesystem::path(options.state),
                      trainer.make, worker, agent_options);

  client::ClientService service(strand, manager, options, traffic,
                                fmt::format("client '{}' of {}", connector.identity().name(),
                                            to_string(connector.identity().server())));
  StopSignals signals(io);
  signals.on_stop([&] {
    service.stopping();
    net::post(strand, [&agent] { agent.stop(); });
  });
  Result<client::Agent::Outcome> outcome = client::Agent::Outcome::stopped;
  log_info("client '{}' of {}", connector.identity().name(),
           to_string(connector.identity().server()));
  net::co_spawn(strand, agent.run(),
                [&](const std::exception_ptr& failure, Result<client::Agent::Outcome> result) {
                  if (failure) std::rethrow_exception(failure);
                  outcome = std::move(result);
                  signals.cancel();
                  service.end();
                });
  io.run();
  if (trainer.end) trainer.end();
  if (!outcome) return outcome.error();
  if (*outcome == client::Agent::Outcome::stopped)
    log_info("stopped; an update that is not delivered is kept for the next start");
  return *outcome == client::Agent::Outcome::gave_up ? exit_gave_up : 0;
}

/// Prints what is right and wrong with this machine. Returns the exit code.
int run_doctor(const client::ClientOptions& options, const TrainerFactory& own) {
  std::string token;
  if (!options.join.empty() || !options.join_file.empty()) {
    if (const auto text = read_token(options)) token = *text;
  }
  return print_doctor(diagnose_client(options, token, chosen_trainer_kind(options, own)),
                      options.as_json);
}

/// Returns the exit code.
Result<int> run(const client::ClientOptions& options, const TrainerFactory& own) {
  if (options.doctor) return run_doctor(options, own);
  const ServiceManager manager = ServiceManager::take_from_environment();
  FL_TRY(const auto place, take_place(options.site));
  FL_CHECK(make_state_folder(posix_files(), options.state));
  FL_TRY([[maybe_unused]] const auto lock, StateLock::take(options.state));
  TensorFolder::remove_left();
  if (!options.initial_weights.empty()) {
    FL_CHECK(make_initial_weights(options, own));
    return 0;
  }
  if (!options.join.empty() || !options.join_file.empty()) {
    const auto joined = join_once(options, manager);
    const bool gave_up = !joined && joined.error().code() == Errc::deadline;
    if (gave_up) log_error("{}", joined.error().message());
    if (gave_up) return exit_gave_up;
    FL_CHECK(joined);
  }
  if (options.only_join) return 0;
  auto trained = train(options, place, own, manager);
  if (trained || trained.error().code() != Errc::cancelled) return trained;
  log_info("stopped");
  return 0;
}

}  // namespace

int client_main(int argc, char** argv, ClientProgram program) {
  keep_files_private();
  ignore_write_signals();
  try {
    client::ClientOptions options;
    if (const int code = parse_options(argc, argv, program, options); code >= 0) return code;
    start_log(options.log_json, options.verbose);
    const auto result = run(options, program.make_trainer);
    if (result) return *result;
    log_fatal(program.name, result.error().message());
  } catch (const std::exception& error) {
    log_fatal(program.name, error.what());
  }
  return 1;
}

}  // namespace fl
