// SPDX-License-Identifier: Apache-2.0
// The conversation about an update, with a kind of updates that the server can't read: it only adds
// their words. What it can decode is tested by whole federations (tests/world/).
#include "server/round/uploads.hpp"
#include "tests/server/history/store_world.hpp"
#include "tests/server/round/fake_peer.hpp"
#include "tests/wire/simulation.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::server;
namespace {

using Words = std::vector<std::uint64_t>;

/// Adds the words of updates modulo 2^64. It decodes nothing, knows no codec and no norm.
class OpaqueIntake final : public UpdateIntake {
 public:
  OpaqueIntake(Tasks& tasks, Spool& spool, std::size_t words)
      : tasks_(tasks), spool_(spool), words_(words) {}

  Awaitable<Result<void>> open_round() override {
    sums_.assign(words_, 0);
    co_return success();
  }
  Awaitable<Result<void>> rebuild() override {
    sums_.assign(words_, 0);
    for (const auto& [client, task] : tasks_.round().tasks) {
      if (task.record.state != TaskState::accepted) continue;
      FL_CO_TRY(const auto file, spool_.open_accepted(task.record.spool_file));
      FL_CO_CHECK(add(*file));
    }
    co_return success();
  }
  Result<void> check(const wire::UploadBegin& begin, const Task&) const override {
    if (begin.bytes() == bytes()) return {};
    return Error(Errc::invalid_input, "it is not as long as all are");
  }
  Awaitable<Result<Taken>> take(Task& task, TaskRecord& record, const UploadGrant& grant) override {
    FL_ASSERT(task.is_deciding && record.norm == 0);
    FL_CO_CHECK(spool_.finish(*grant.upload));
    FL_CO_CHECK(add(*grant.upload->file()));
    co_return Taken::counts;
  }
  Result<void> forget(const TaskRecord& refused, const Error&) override {
    forgotten.push_back(refused.client);
    return {};
  }
  Awaitable<Result<void>> settle() override {
    is_settled_ = true;
    co_return success();
  }
  Result<ReadValues> mean() const override {
    FL_ASSERT(is_settled_);
    return ReadValues([this](std::uint64_t first, std::span<float> out) {
      const auto count = tasks_.round().count(TaskState::accepted);
      for (std::size_t i = 0; i < out.size(); ++i)
        out[i] = static_cast<float>(static_cast<double>(sums_.at(first + i)) / count);
      return success();
    });
  }
  Awaitable<Result<std::vector<codec::LaneTally>>> lane_tallies(codec::LaneSteps steps) override {
    co_return std::vector<codec::LaneTally>(steps.size());
  }
  void release() override { sums_.clear(); }

  [[nodiscard]] std::uint64_t bytes() const { return words_ * sizeof(std::uint64_t); }
  [[nodiscard]] const Words& sums() const { return sums_; }
  std::vector<std::string> forgotten;

 private:
  Result<void> add(File& file) {
    Words words(words_);
    FL_CHECK(file.read_exactly(0, std::as_writable_bytes(std::span(words))));
    for (std::size_t i = 0; i < words_; ++i) sums_[i] += words[i];
    return {};
  }

  const Tasks& tasks_;
  Spool& spool_;
  std::size_t words_;
  Words sums_;
  bool is_settled_ = false;
};

/// The parts of an engine that take updates in, with round 1 open for some clients.
struct UploadsWorld {
  UploadsWorld() {
    REQUIRE(spool.prepare());
    const auto asked = history.start_round({"a", "b", "c"});
    OpenRound round;
    round.record = some_round(1);
    round.opened_at = Clock::now();
    round.is_durable = true;
    tasks.open(std::move(round));
    for (const TaskRecord& record : asked) {
      roster.enter(trainer(record.client));
      Task task;
      task.record = record;
      task.offered_at = Clock::now();
      tasks.round().put(std::move(task));
    }
    REQUIRE(simulation.result_of(intake.open_round()));
    control.set_restored();
  }

  static RunRecord the_run() {
    RunRecord run;
    run.id = 1;
    run.model = "toy";
    return run;
  }

  struct Sent {
    std::string client;
    Words words;
    bool is_announced = true;  // False: the digest of other bytes is announced.
    double loss = 0;
    std::string setup = "cpu, fp32";
  };
  /// Announces each update, writes it into the granted file and finishes the upload, as sessions
  /// do, one after the other. Returns the verdicts.
  std::vector<wire::Verdict> send(const std::vector<Sent>& all) {
    std::vector<wire::Verdict> told;
    simulation.spawn(verdicts.commit_all());
    simulation.spawn(talk(all, told));
    simulation.run();
    return told;
  }
  Awaitable<void> talk(const std::vector<Sent>& all, std::vector<wire::Verdict>& told) {
    for (const Sent& sent : all) {
      const auto bytes = std::as_bytes(std::span(sent.words));
      wire::UploadBegin begin;
      begin.set_task(number_of(tasks.task_of(sent.client)->record.id));
      begin.set_round(1);
      begin.set_examples(1);
      begin.set_steps(1);
      begin.set_loss(sent.loss);
      begin.set_setup(sent.setup);
      begin.set_bytes(bytes.size());
      begin.set_digest(Digest::of(sent.is_announced ? bytes : bytes.first(8)).raw());
      const auto peer = roster.find(sent.client);
      UploadGrant grant = co_await uploads.begin(peer, std::move(begin));
      told.push_back(grant.verdict);
      if (!grant.upload) continue;
      REQUIRE(grant.upload->append(bytes));
      told.back() = co_await uploads.finish(peer, std::move(grant));
    }
    verdicts.close();
  }
  TaskState recorded(const std::string& client) {
    const TaskId id = tasks.task_of(client)->record.id;
    return history.store->rounds().find_task(1, id).value()->state;
  }
  std::vector<float> mean() {
    std::vector<float> values(2);
    REQUIRE(simulation.result_of(intake.settle()));
    REQUIRE(intake.mean().value()(0, values));
    return values;
  }

  Simulation simulation;
  StoreWorld history;
  Offload caller;
  net::any_io_executor strand = simulation.io.get_executor();
  RunPlan plan{{}, the_run(), Layout::make({{"w", {2}}}).value()};
  StoreThread store{strand, *history.store, caller, 1, {[](const Error&) {}}};
  RunControl control{strand, plan, store};
  MemFiles files;
  Spool spool{files, "/spool"};
  Versions versions{files, "/checkpoints", plan.layout};
  Roster roster{plan.mode.ahead};
  Tasks tasks{plan, roster};
  Evaluations evaluations{{control, roster, versions}};
  RunEnd end{plan, tasks, versions, evaluations};
  VerdictLog verdicts{control, spool};
  TaskDecisions decisions{{control, roster, tasks, verdicts, evaluations, end}};
  UploadFiles upload_files{control, caller, spool};
  OpaqueIntake intake{tasks, spool, 2};
  PastRounds past;
  BulkBudget bulk;
  Uploads uploads{{control, tasks, decisions, upload_files, intake, evaluations, past, bulk}};
};

TEST_CASE("what clients say of updates that can't be read is checked as for all others") {
  UploadsWorld world;
  const auto told = world.send({{"a", {1, 2}, true, std::nan("")}});
  REQUIRE(told.size() == 1);
  CHECK(told[0].outcome() == wire::Verdict::REFUSED);
  CHECK(told[0].reason() == "its training loss is not finite");
  CHECK(world.intake.sums() == Words{0, 0});
}

TEST_CASE("an upload whose text on how it trained is too long is refused, another one is kept") {
  UploadsWorld world;
  const std::string longest(limits::setup_bytes_max, 'x');
  const auto told =
      world.send({{"a", {1, 2}, true, 0, longest + "x"}, {"b", {1, 2}, true, 0, longest}});
  REQUIRE(told.size() == 2);
  CHECK(told[0].outcome() == wire::Verdict::REFUSED);
  CHECK(told[0].reason() == "its text on how it trained has 129 bytes; the limit is 128");
  CHECK(told[1].outcome() == wire::Verdict::ACCEPTED);
  const TaskId id = world.tasks.task_of("b")->record.id;
  CHECK(world.history.store->rounds().find_task(1, id).value()->setup == longest);
}

TEST_CASE("updates that can't be read are added up, and their verdicts are durable") {
  UploadsWorld world;
  const auto told = world.send({{"a", {1, ~0ull}}, {"b", {4, 3}}});
  REQUIRE(told.size() == 2);
  for (const auto& verdict : told) CHECK(verdict.outcome() == wire::Verdict::ACCEPTED);
  CHECK(world.intake.sums() == Words{5, 2});  // Modulo 2^64.
  for (const char* const client : {"a", "b"}) CHECK(world.recorded(client) == TaskState::accepted);
  CHECK(world.recorded("c") == TaskState::offered);
  CHECK(world.mean() == std::vector<float>{2.5F, 1});
}

TEST_CASE("after a restart updates that can't be read are added up again from the spool") {
  UploadsWorld world;
  world.send({{"a", {1, 2}}, {"c", {4, 3}}});
  world.intake.release();
  REQUIRE(world.simulation.result_of(world.intake.rebuild()));
  CHECK(world.intake.sums() == Words{5, 5});
}

TEST_CASE("what an announcement must fit depends on the kind of updates") {
  UploadsWorld world;
  const auto told = world.send({{"a", {1, 2, 3}}, {"b", {4, 3}}});
  REQUIRE(told.size() == 2);
  CHECK(told[0].outcome() == wire::Verdict::REFUSED);
  CHECK(told[0].reason() == "it is not as long as all are");
  CHECK(told[1].outcome() == wire::Verdict::ACCEPTED);
  CHECK(world.recorded("a") == TaskState::refused);
  CHECK(world.intake.sums() == Words{4, 3});
}

TEST_CASE("an update whose bytes differ from its digest is asked for again, and then refused") {
  UploadsWorld world;
  const std::vector<UploadsWorld::Sent> sent(limits::wrong_digests_max, {"a", {1, 2}, false});
  const auto told = world.send(sent);
  REQUIRE(told.size() == sent.size());
  for (std::size_t i = 0; i + 1 < told.size(); ++i)
    CHECK(told[i].outcome() == wire::Verdict::LATER);
  CHECK(told.back().outcome() == wire::Verdict::REFUSED);
  CHECK(world.intake.forgotten == std::vector<std::string>{"a"});
  CHECK(world.intake.sums() == Words{0, 0});
  CHECK(world.files.list("/spool").value().empty());
}

}  // namespace
}  // namespace fl::test
