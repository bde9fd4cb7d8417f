// SPDX-License-Identifier: Apache-2.0
// What those who watch see of the engine, in whole federations.
#include "tests/world/scenario.hpp"

#include <map>
#include <string>
#include <vector>

namespace fl::test {

TEST_CASE("those who watch see what each client is doing, step by step") {
  WorldOptions options = calm(2);
  options.settings.rounds = 3;
  World world(options);
  std::map<Activity, int> seen;
  std::size_t transfers = 0;
  const auto look = [&] {
    const RoundEngine* const engine = world.engine();
    if (engine == nullptr) return;
    const LiveStatus live = engine->view().live_status();
    std::uint32_t here = 0;
    for (const std::uint32_t count : live.activities) here += count;
    CHECK(here == live.status.clients + live.status.evaluators + live.status.present);
    CHECK(live.activities[static_cast<std::size_t>(Activity::away)] == 0);
    CHECK(engine->view().present().size() == here);
    CHECK(live.transfers.size() == live.transfers_total);
    for (const TransferStatus& transfer : live.transfers) {
      ++transfers;
      CHECK(transfer.done <= transfer.bytes);
      CHECK(transfer.offset <= transfer.done);
    }
    const auto members = engine->view().members({"client-1", "client-2", "nobody"});
    REQUIRE(members.size() == 3);
    ++seen[members[0].activity];
    CHECK(members[0].trouble.empty());
    CHECK(members[2].activity == Activity::away);
    CHECK(members[2].name == "nobody");
  };
  // On the engine's strand, as the admin pages do.
  world.on_frame = [&](const std::string&, bool, const wire::Header&) {
    if (world.engine() != nullptr) net::post(world.engine()->executor(), look);
  };
  REQUIRE(world.run());
  CHECK(check(world));
  CHECK(transfers > 0);
  for (const Activity activity :
       {Activity::present, Activity::training, Activity::uploading, Activity::accepted}) {
    CAPTURE(static_cast<int>(activity));
    CHECK(seen[activity] > 0);
  }
}

}  // namespace fl::test
