// SPDX-License-Identifier: Apache-2.0
// A client against a server that lies: each time the agent says what is wrong, keeps its state and
// its memory, and goes on.
#include "client/agent/agent.hpp"
#include "shared/base/limits.hpp"
#include "tests/support/mem_files.hpp"
#include "tests/support/memory_link.hpp"
#include "tests/support/print_result.hpp"
#include "tests/wire/simulation.hpp"
#include "tests/world/toy_trainer.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::client;
namespace {

/// A step of the server after its Welcome: it awaits a message of one kind, if any, and sends one.
struct Step {
  wire::Header::KindCase awaited = wire::Header::KIND_NOT_SET;
  wire::Header header;
};

/// A client with the real agent. On the first connection the server lies; on later ones it ends the
/// run in good order.
struct World final : client::Connector, client::IdentityKeeper {
  World() { options.jitter_seed = 1; }

  Awaitable<Result<std::shared_ptr<Link>>> connect() override {
    ++connections;
    auto [mine, servers] = MemoryLink::make({io.get_executor(), "the server", {}},
                                            {io.get_executor(), "the client", {}}, {});
    simulation.spawn(serve(servers, connections == 1));
    co_return std::shared_ptr<Link>(mine);
  }

  Awaitable<void> serve(std::shared_ptr<MemoryLink> link, bool lies) {
    wire::Header first = welcome();
    if (lies && lie) lie(first);
    std::vector<Step> steps = lies ? script : std::vector<Step>();
    if (!lies || !script.empty()) {
      steps.emplace_back();
      steps.back().header.mutable_bye()->set_cause(wire::Bye::FINISHED);
    }
    co_await hear(link, wire::Header::kHello);
    co_await send(link, std::move(first));
    for (const Step& step : steps) {
      if (step.awaited != wire::Header::KIND_NOT_SET) co_await hear(link, step.awaited);
      co_await send(link, step.header);
    }
    co_await hear(link, wire::Header::KIND_NOT_SET);
    link->close();
  }

  /// Returns after a message of this kind, or at the end of the connection.
  Awaitable<void> hear(std::shared_ptr<MemoryLink> link, wire::Header::KindCase kind) {
    for (;;) {
      const auto heard = co_await link->receive();
      if (!heard) co_return;
      if (heard->header.has_bye()) reasons.push_back(heard->header.bye().reason());
      if (heard->header.kind_case() == kind) co_return;
    }
  }

  static Awaitable<void> send(std::shared_ptr<MemoryLink> link, wire::Header header) {
    Message message(std::move(header));
    [[maybe_unused]] const auto sent = co_await link->send(std::move(message));
  }

  Result<std::optional<std::string>> renewal_request(const std::string&) override {
    if (!is_renewal_due) return std::optional<std::string>();
    return std::optional<std::string>("a request");
  }
  Result<void> take_renewal(const wire::Renewed& renewed) override {
    is_renewal_due = false;
    taken.push_back(renewed.certificate_pem());
    return {};
  }

  /// Runs the agent until it ends, or for a minute of simulated time.
  Result<client::Agent::Outcome> run() {
    TrainerFactory factory = [this](const std::string& model) -> Result<std::unique_ptr<Trainer>> {
      models.push_back(model);
      const ToyTrainer::Part part{.examples = 10};
      return std::unique_ptr<Trainer>(std::make_unique<ToyTrainer>(
          problem, part, [](const TrainSettings&, std::span<float>) {}));
    };
    REQUIRE(files.make_folder("/client"));
    Offload worker;
    client::Agent agent(net::make_strand(io), *this, this, files, "/client", factory, worker,
                        options);
    std::optional<Result<client::Agent::Outcome>> outcome;
    simulation.spawn(live(agent, outcome));
    const TimePoint until = Clock::now() + std::chrono::minutes(1);
    while (!outcome && Clock::now() < until && simulation.time.step(io)) continue;
    agent.stop();
    simulation.run();
    REQUIRE(outcome);
    return *outcome;
  }

  static Awaitable<void> live(client::Agent& agent,
                              std::optional<Result<client::Agent::Outcome>>& outcome) {
    outcome = co_await agent.run();
  }

  /// A Welcome that an honest server could send.
  [[nodiscard]] wire::Header welcome() const {
    wire::Header header;
    auto& welcome = *header.mutable_welcome();
    welcome.set_protocol(protocol_version);
    welcome.set_run_key("0123456789abcdef");
    welcome.set_model("toy");
    welcome.set_strategy("fedavg");
    welcome.set_layout_digest(problem.layout.digest().raw());
    return header;
  }

  Simulation simulation;
  net::io_context& io = simulation.io;
  ToyProblem problem = ToyProblem::make(100, 1);
  MemFiles files;
  client::Agent::Options options;
  std::function<void(wire::Header&)> lie;  // Changes the first Welcome.
  std::vector<Step> script;                // The steps that follow it.
  bool is_renewal_due = false;
  // Events that were counted.
  int connections = 0;
  std::vector<std::string> models;   // Models that the agent has made trainers for.
  std::vector<std::string> taken;    // Certificates.
  std::vector<std::string> reasons;  // Reasons of the client's Byes.
};

bool is_finished(const Result<client::Agent::Outcome>& outcome) {
  return outcome && *outcome == client::Agent::Outcome::finished;
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

wire::Header renewed(const std::string& certificate) {
  wire::Header header;
  header.mutable_renewed()->set_certificate_pem(certificate);
  return header;
}

}  // namespace

TEST_CASE("a run key that is no key is refused before it becomes part of a file name") {
  for (const std::string& key :
       {std::string("/../../../PWNED"), std::string(300, 'k'), std::string("0123456789abcde"),
        std::string("0123456789abcdef0"), std::string("0123456789ABCDEF"), std::string("..."),
        std::string()}) {
    CAPTURE(key);
    World world;
    world.lie = [&key](wire::Header& header) {
      header.mutable_welcome()->set_run_key(key);
      header.mutable_welcome()->set_strategy("ditto:lambda=0.1,epochs=1");
    };
    CHECK(is_finished(world.run()));
    REQUIRE(!world.reasons.empty());
    CHECK(has(world.reasons.front(), "is not 16 hexadecimal digits"));
    CHECK(world.models.size() == 1);  // On the honest connection only.
  }
}

TEST_CASE("names that are too long are refused and not repeated") {
  const std::string name(limits::header_bytes_max - 1000, 'x');
  World world;
  SUBCASE("of a model") {
    world.lie = [&name](wire::Header& header) { header.mutable_welcome()->set_model(name); };
  }
  SUBCASE("of a strategy") {
    world.lie = [&name](wire::Header& header) { header.mutable_welcome()->set_strategy(name); };
  }
  CHECK(is_finished(world.run()));
  CHECK(world.connections == 2);
  REQUIRE(!world.reasons.empty());
  CHECK(has(world.reasons.front(), "the limit is"));
  CHECK(world.reasons.front().size() <= limits::reason_bytes_max);
}

TEST_CASE("an offer whose names are too long ends the connection, not the client") {
  const std::string name(limits::header_bytes_max - 1000, 'x');
  World world;
  wire::Header offer;
  offer.mutable_offer()->set_task(1);
  SUBCASE("optimizer") { offer.mutable_offer()->set_optimizer(name); }
  SUBCASE("codec") { offer.mutable_offer()->set_codec(name); }
  world.script = {{wire::Header::kReady, offer}};
  CHECK(is_finished(world.run()));
  CHECK(world.connections == 2);
}

TEST_CASE("the reason that repeats a server's text is short and safe to show") {
  World world;
  world.lie = [](wire::Header& header) {
    header.mutable_welcome()->set_strategy(std::string(60000, '\x1b'));
  };
  CHECK(!world.run());
  REQUIRE(!world.reasons.empty());
  CHECK(world.reasons.front().size() <= limits::reason_bytes_max + 3);
  CHECK(!has(world.reasons.front(), "\x1b"));
}

TEST_CASE("an evaluator leaves a server that asks for no evaluations, and names the feature") {
  World world;
  world.options.evaluator = true;
  world.lie = [](wire::Header& header) {
    header.mutable_welcome()->mutable_features()->add_names("renewal");
  };
  const auto outcome = world.run();
  REQUIRE(!outcome);
  CHECK(outcome.error().code() == Errc::invalid_input);
  CHECK(has(outcome.error().message(), "an evaluator needs the feature 'evaluation'"));
  REQUIRE(!world.reasons.empty());
  CHECK(has(world.reasons.front(), "'evaluation', which this server lacks"));
  CHECK(world.models.empty());  // Nothing was loaded for it.
}

TEST_CASE("a model of more parameters than the client takes is refused with the flag to use") {
  World world;
  const auto parameters = world.problem.layout.elements();
  const std::string flag = "--max-parameters " + std::to_string(parameters);
  world.options.parameters_max = parameters - 1;
  const auto outcome = world.run();
  REQUIRE(!outcome);
  CHECK(outcome.error().code() == Errc::invalid_input);
  CHECK(has(outcome.error().message(), flag));
  REQUIRE(!world.reasons.empty());
  CHECK(has(world.reasons.front(), flag));
}

TEST_CASE("a built-in model that is too large is refused before its trainer is made") {
  World world;
  world.lie = [](wire::Header& header) {
    header.mutable_welcome()->set_model("synthetic:2000000000");
  };
  const auto outcome = world.run();
  REQUIRE(!outcome);
  CHECK(outcome.error().code() == Errc::invalid_input);
  CHECK(has(outcome.error().message(), "--max-parameters 2000000000"));
  CHECK(world.models.empty());  // The factory was not called.
}

TEST_CASE("a model of as many parameters as the client takes is taken") {
  World world;
  world.options.parameters_max = world.problem.layout.elements();
  world.script = {{wire::Header::kReady, {}}};
  world.script.front().header.mutable_failed();
  CHECK(is_finished(world.run()));
  CHECK(world.connections == 1);
}

TEST_CASE("a download must have the size of the model") {
  World world;
  wire::Header offer;
  offer.mutable_offer()->set_task(1);
  offer.mutable_offer()->set_version(7);
  wire::Header model;
  model.mutable_model()->set_transfer(1);
  model.mutable_model()->set_version(7);
  model.mutable_model()->set_full(true);
  model.mutable_model()->set_bytes(std::numeric_limits<std::uint64_t>::max() / 2);
  model.mutable_model()->set_digest(std::string(16, 'x'));
  world.script = {{wire::Header::kReady, offer}, {wire::Header::kFetch, model}};
  CHECK(is_finished(world.run()));
  CHECK(world.connections == 2);
}

TEST_CASE("a certificate that the client did not ask for is ignored") {
  World world;
  world.script = {{wire::Header::kReady, renewed("another's")}};
  CHECK(is_finished(world.run()));
  CHECK(world.taken.empty());
}

TEST_CASE("a certificate that the client has asked for is taken once") {
  World world;
  world.is_renewal_due = true;
  world.script = {{wire::Header::kRenew, renewed("mine")},
                  {wire::Header::KIND_NOT_SET, renewed("another's")}};
  CHECK(is_finished(world.run()));
  CHECK(world.taken == std::vector<std::string>{"mine"});
}

TEST_CASE("a verdict about another task does not settle the update") {
  World world;
  const auto initial = world.problem.initial_weights(world.welcome().welcome().seed());
  wire::Header offer;
  offer.mutable_offer()->set_task(7);
  offer.mutable_offer()->set_round(1);
  offer.mutable_offer()->set_version_digest(
      std::string(Digest::of(std::as_bytes(std::span(initial))).raw()));
  offer.mutable_offer()->set_local_epochs(1);
  offer.mutable_offer()->set_batch_size(10);
  offer.mutable_offer()->set_lr(0.1);
  offer.mutable_offer()->set_codec("none");
  const auto accepted = [](std::int64_t task) {
    wire::Header header;
    header.mutable_verdict()->set_task(task);
    return header;
  };
  wire::Header resume;
  resume.mutable_resume()->set_task(7);
  resume.mutable_resume()->set_chunk_bytes(limits::chunk_bytes_min);
  // A client that took the first verdict for its own would have nothing to resume.
  world.script = {{wire::Header::kReady, offer},
                  {wire::Header::kBegin, accepted(8)},
                  {wire::Header::KIND_NOT_SET, resume},
                  {wire::Header::kChunk, accepted(7)}};
  CHECK(is_finished(world.run()));
  CHECK(world.connections == 1);
}

}  // namespace fl::test
