// SPDX-License-Identifier: Apache-2.0
#include "tests/world/check_replays.hpp"

#include "server/round/kept_round.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace fl::test {

using namespace fl::server;

Result<ReplayedRound> replay_of(World& world, History& history, Round round) {
  MemFiles& disk = world.server_disk();
  const std::filesystem::path scratch = fmt::format("/scratch-{}", round);
  FL_CHECK(disk.make_folder(scratch));
  const Layout& layout = world.options().problem.layout;
  const ReplaySource from{disk,
                          *history.store,
                          history.run,
                          "/state/checkpoints",
                          kept_folder,
                          scratch,
                          [&layout](const RunSettings&) { return Result<Layout>(layout); }};
  return replay_round(from, round);
}

Result<void> check_replays(World& world, History& history) {
  FL_TRY(const Round kept, parse_kept_rounds(world.options().settings.keep_updates));
  FL_TRY(const auto summary, history.store->summaries().rounds(history.run.id));
  const auto last = static_cast<Round>(summary.size());
  const Round first = last > kept ? last - kept + 1 : 1;
  FL_TRY(auto there, described_rounds(world.server_disk(), kept_folder));
  if (world.has_lost_power()) std::erase_if(there, [&](Round round) { return round < first; });
  std::vector<Round> wanted;
  for (Round round = first; round <= last; ++round) wanted.push_back(round);
  if (there != wanted) {
    return Error(Errc::internal, fmt::format("the updates of rounds {} are kept, and not of {}",
                                             fmt::join(there, ","), fmt::join(wanted, ",")));
  }
  for (const Round round : wanted) {
    const std::string what = fmt::format("replay of round {}", round);
    const auto replayed = replay_of(world, history, round);
    if (!replayed) return replayed.error().at(what);
    if (!replayed->is_same()) return Error(Errc::internal, replayed->difference).at(what);
  }
  return {};
}

}  // namespace fl::test
