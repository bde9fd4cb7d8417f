// SPDX-License-Identifier: Apache-2.0
// The engines of a server's runs: which one new sessions join, and that no two runs that go on have
// one folder.
#include "server/round/engines.hpp"
#include "tests/server/history/store_world.hpp"

#include <filesystem>

namespace fl::test {

using namespace fl::server;
namespace {

struct EnginesWorld {
  net::io_context io{1};
  StoreWorld store;
  Offload workers;

  std::shared_ptr<RoundEngine> engine(RunId run, const std::filesystem::path& spool,
                                      const std::filesystem::path& references = "/references") {
    RunRecord record = some_run();
    record.id = run;
    RunSettings settings;
    settings.codec = "none";
    const std::filesystem::path own = "/run-" + std::to_string(run);
    return std::make_shared<RoundEngine>(
        io.get_executor(), settings, record, Layout::make({{"w", {4}}}).value(), store.files,
        *store.store, RoundEngine::Shared{&workers, &workers},
        RunFiles::Paths{own / "checkpoints", spool, references, own / "kept"});
  }
};

std::vector<RunId> ids_of(const Engines& engines) {
  std::vector<RunId> ids;
  for (const auto& host : engines.all()) ids.push_back(host->run_id());
  return ids;
}

TEST_CASE("one run after the other may have the same folders, and new sessions join the newest") {
  EnginesWorld world;
  const auto first = world.engine(1, "/spool");
  Engines engines(first);
  CHECK(engines.find(1) == first);
  CHECK(engines.find(2) == nullptr);
  CHECK(engines.joined()->run_id() == 1);
  engines.remove(1);
  CHECK(engines.find(1) == nullptr);
  // Nothing else is there: clients still ask it, and are told that its run is over.
  CHECK(engines.newest() == first);
  CHECK(ids_of(engines) == std::vector<RunId>{1});
  const auto second = world.engine(2, "/spool");
  REQUIRE(engines.add(second));
  CHECK(engines.newest() == second);
  CHECK(engines.joined()->run_id() == 2);
  CHECK(ids_of(engines) == std::vector<RunId>{2});
}

TEST_CASE("a run beside another one needs an id and folders of its own") {
  EnginesWorld world;
  Engines engines(world.engine(1, "/spool"));
  for (const auto& refused : {world.engine(1, "/other", "/other"), world.engine(2, "/spool", "/b"),
                              world.engine(2, "/a/../spool", "/b"), world.engine(2, "/a")}) {
    const auto added = engines.add(refused);
    REQUIRE(!added);
    CHECK(added.error().code() == Errc::conflict);
  }
  CHECK(ids_of(engines) == std::vector<RunId>{1});
  REQUIRE(engines.add(world.engine(2, "/a", "/b")));
  CHECK(engines.joined()->run_id() == 2);
  CHECK(ids_of(engines) == std::vector<RunId>{1, 2});
}

TEST_CASE("a session's host keeps its engine when the run is over") {
  EnginesWorld world;
  Engines engines(world.engine(1, "/spool"));
  const std::weak_ptr<RoundEngine> first = engines.newest();
  auto host = engines.joined();
  engines.remove(1);
  REQUIRE(engines.add(world.engine(2, "/spool")));
  CHECK(!first.expired());
  CHECK(host->run_id() == 1);
  host.reset();
  CHECK(first.expired());
}

}  // namespace
}  // namespace fl::test
