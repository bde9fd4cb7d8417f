// SPDX-License-Identifier: Apache-2.0
// The troubles of a world, and the random worlds that a seed draws.
#include "tests/world/world.hpp"

#include "server/run/target.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

namespace fl::test {

using namespace fl::server;

namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t changes_max =
    60;  // A process is killed at most this many changes of its disk later.

constexpr std::array<Trouble, 15> all_troubles{
    Trouble::cut,          Trouble::silence,        Trouble::slow,
    Trouble::lie,          Trouble::server_restart, Trouble::server_kill,
    Trouble::server_power, Trouble::server_disk,    Trouble::server_sync,
    Trouble::server_full,  Trouble::client_kill,    Trouble::client_power,
    Trouble::client_disk,  Trouble::client_sync,    Trouble::client_full};

std::string_view name_of(Trouble trouble) {
  constexpr std::array<std::string_view, 15> names{
      "cut",         "silence",      "slow",        "lie",         "server_restart",
      "server_kill", "server_power", "server_disk", "server_sync", "server_full",
      "client_kill", "client_power", "client_disk", "client_sync", "client_full"};
  return names[static_cast<std::size_t>(trouble)];
}

}  // namespace

Awaitable<void> World::make_trouble() {
  for (const Trouble trouble : options_.troubles) {
    co_await sleep_for(draw_duration(1500ms));
    if (server_is_over_) break;
    note(fmt::format("trouble: {}", name_of(trouble)));
    strike(trouble);
  }
}

MemoryLink* World::some_link() {
  const auto client =
      std::next(clients_.begin(), static_cast<std::ptrdiff_t>(below(clients_.size())));
  return link_of(client->first);
}

World::Client& World::some_client() {
  return std::next(clients_.begin(), static_cast<std::ptrdiff_t>(below(clients_.size())))->second;
}

void World::strike(Trouble trouble) {
  const bool at_once = below(3) == 0;
  const std::uint64_t n = 1 + below(changes_max);
  switch (trouble) {
    case Trouble::cut:
      if (auto* const link = some_link()) link->cut();
      return;
    case Trouble::silence:
      if (auto* const link = some_link()) link->fall_silent();
      return;
    case Trouble::slow:
      if (auto* const link = some_link()) link->slow_down(20e3);
      return;
    case Trouble::lie: {
      constexpr std::array lies{Lie::duplicate, Lie::drop, Lie::swap, Lie::flip, Lie::lengthen};
      MemoryLink* const link = some_link();
      if (link == nullptr) return;
      link->lie_next(lies[below(lies.size())], below(2) == 0);
      return spawn(end_later(link->weak_from_this()));
    }
    case Trouble::server_restart: return stop_server();
    case Trouble::server_kill:
    case Trouble::server_power:
      if (at_once) return kill_server(trouble == Trouble::server_power);
      return kill_server_at(n, trouble == Trouble::server_power);
    case Trouble::server_disk:
    case Trouble::server_sync:
      is_server_excused_ = true;
      return server_disk_.fail_at(1 + n / 4,
                                  trouble == Trouble::server_sync ? Fault::sync_lost : Fault::io);
    case Trouble::server_full: return spawn(fill_disk(server_disk_));
    case Trouble::client_kill:
    case Trouble::client_power: {
      Client& client = some_client();
      if (at_once) return kill_client(client.member.name, trouble == Trouble::client_power);
      return kill_client_at(client, 1 + n / 4, trouble == Trouble::client_power);
    }
    case Trouble::client_disk:
    case Trouble::client_sync: {
      Client& client = some_client();
      client.is_excused = true;
      return client.disk.fail_at(1 + n / 8,
                                 trouble == Trouble::client_sync ? Fault::sync_lost : Fault::io);
    }
    case Trouble::client_full: return spawn(fill_disk(some_client().disk));
  }
}

/// Cuts a lying line after 20 s: the other end would wait for dropped data as long as the line
/// lives.
Awaitable<void> World::end_later(std::weak_ptr<MemoryLink> liar) {
  co_await sleep_for(20s);
  if (const auto link = liar.lock()) link->cut();
}

/// Leaves little or no space on the disk for up to half a minute.
Awaitable<void> World::fill_disk(MemFiles& disk) {
  disk.space_limit(disk.bytes_used() + below(20'000));
  co_await sleep_for(draw_duration(30s));
  disk.space_limit(MemFiles::no_limit);
  note("the disk has room again");
}

bool WorldOptions::is_steady() const {
  const auto trainers =
      std::count_if(members.begin(), members.end(), [](const Member& m) { return !m.evaluator; });
  return settings.mode == "sync" && settings.deadline_s == 0 && settings.clients_per_round == 0 &&
         settings.fraction == 1 && settings.over_select == 1 && settings.min_clients == trainers &&
         !target_of(settings) && settings.patience == 0 && !settings.codec.starts_with("auto") &&
         malicious.empty();
}

WorldOptions draw_options(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&random](std::uint64_t bound) { return random() % bound; };
  WorldOptions options;
  options.seed = random();

  RunSettings& settings = options.settings;
  constexpr std::array codecs{"none", "fp16", "qsgd:8", "qsgd:8+ef", "ecuq:8"};
  constexpr std::array downlinks{"none", "fp16", "qsgd:64"};
  constexpr std::array strategies{"fedavg",
                                  "fedavg:lr=0.5,weight=uniform",
                                  "fedavgm:lr=0.5,nesterov=yes",
                                  "fedyogi:lr=0.02",
                                  "scaffold",
                                  "scaffold:option=1,weight=uniform",
                                  "feddyn:alpha=0.5",
                                  "ditto:lambda=0.5",
                                  "fedavg:personal=*.bias|norm.*",
                                  "scaffold:personal=*.bias"};
  settings.model = options.problem.model;
  settings.seed = random();
  settings.rounds = static_cast<Round>(2 + below(4));
  settings.codec = codecs[below(codecs.size())];
  settings.downlink_codec = downlinks[below(downlinks.size())];
  settings.strategy = strategies[below(strategies.size())];
  settings.momentum = 0;
  settings.local_steps = static_cast<std::uint32_t>(1 + below(4));
  settings.lr = 0.2;
  settings.keep_checkpoints = std::array{1u, 2u, 10u}[below(3)];

  // One seed in 25 has a model large enough for several chunks.
  const bool is_large = below(25) == 0;
  options.problem =
      ToyProblem::make(is_large ? 80'000 + below(60'000) : 200 + below(1800), random());
  options.problem.noise = 0.05;
  if (is_large) options.bytes_per_s_min = 1e6;

  const auto trainers = static_cast<std::uint32_t>(2 + below(5));
  const bool has_holdout = below(3) == 0;
  for (std::uint32_t i = 0; i < trainers; ++i) {
    WorldOptions::Member member{
        fmt::format("client-{}", i + 1), {i, 1 + below(500), has_holdout ? 10 : 0u}, false};
    options.members.push_back(std::move(member));
  }
  const bool has_personal = settings.strategy.find("personal") != std::string::npos;
  if (below(3) == 0 && !has_personal) options.members.push_back({"judge", {1000, 0, 100}, true});

  settings.deadline_s = 0;
  settings.min_clients = trainers;
  if (below(2) == 0) {
    settings.min_clients = static_cast<std::uint32_t>(1 + below(trainers));
    settings.clients_per_round =
        below(2) == 0 ? 0 : static_cast<std::uint32_t>(settings.min_clients + below(3));
    settings.fraction = below(2) == 0 ? 1.0 : 0.5;
    settings.sampling =
        std::array{"uniform", "examples", "round-robin", "power-of-choice", "oort"}[below(5)];
    settings.over_select = std::array{1.0, 1.5, 0.0}[below(3)];
    settings.deadline_s = below(2) == 0 ? 0 : static_cast<double>(2 + below(20));
  }
  const bool remembers = settings.strategy.starts_with("scaffold") ||
                         settings.strategy.starts_with("feddyn") ||
                         settings.strategy.starts_with("ditto");
  if (below(3) == 0 && !remembers) {
    settings.mode = std::array{"sync:late=1",
                               "sync:late=3,weight=exponential",
                               "async:buffer=1,weight=constant",
                               "async:buffer=2",
                               "async:buffer=3,weight=inverse,late=2",
                               "async:buffer=2,ahead=2,sync=3",
                               "async:buffer=2,compensate=0.04"}[below(7)];
    if (settings.mode.starts_with("async")) {
      settings.over_select = 1;
      settings.rounds = static_cast<Round>(3 + below(8));
    }
  }
  settings.local_steps_schedule = std::array{"constant", "constant", "warmup:rounds=3",
                                             "post-local:from=3", "adaptive"}[below(5)];
  if (below(4) == 0) {
    settings.local_seconds = 0.3;
    for (auto& member : options.members)
      member.part.step_seconds = std::array{0.1, 0.15, 1.0}[below(3)];
  }
  const std::uint64_t troubles = below(8);
  for (std::uint64_t i = 0; i < troubles; ++i)
    options.troubles.push_back(all_troubles[below(all_troubles.size())]);
  // Newer choices are drawn last, so that older seeds keep everything else that they draw.
  if (below(5) == 0) settings.codec = "auto:none+ef|fp16+ef|qsgd:8+ef|terngrad+ef";
  if (below(5) == 0 && settings.mode == "sync")
    settings.codec = std::array{"delta+qsgd:8", "delta+ecuq:8", "delta+topk:0.3"}[below(3)];
  if (below(6) == 0) settings.codec = "gradzip:1+ef";
  if (below(8) == 0)
    settings.codec = std::array{"countsketch:3x2000", "countsketch:5x400,k=20"}[below(2)];
  if (below(4) == 0) {
    const std::uint64_t kinds = settings.deadline_s > 0 ? 5 : 3;
    const std::uint64_t members_of_them = 1 + below(2);
    for (std::uint64_t i = 0; i < members_of_them; ++i)
      options.malicious.push_back(static_cast<Malice>(below(kinds)));
  }
  const bool sums_more =
      settings.strategy.starts_with("scaffold") || settings.strategy.starts_with("feddyn") ||
      settings.codec.starts_with("countsketch") || settings.codec.find("topk") != std::string::npos;
  const char* const rule = std::array{"median",    "trimmed:0.2",       "krum:0",
                                      "geomedian", "centered-clip:0.5", "nnm+trimmed:1"}[below(6)];
  const bool is_honest = options.malicious.empty();
  const bool fits = settings.mode == "sync" && settings.min_clients >= 3 && !sums_more;
  if (below(3) == 0 && fits && is_honest) settings.aggregate = rule;
  settings.keep_updates = std::array{"none", "1", "3", "all"}[options.seed % 4];
  settings.keep_best = options.seed % 5 != 0;
  if (options.seed % 7 == 0)
    settings.codec = std::array{"lanes:8+ef", "lanes:5+ef",
                                "randk:0.3,dense_below=0+lanes:8+ef"}[options.seed / 7 % 3];
  if (!options.members.back().evaluator) return options;
  options.members.back().part.metrics = {"perplexity", "accuracy", "distance", "auroc"};
  if (below(2) == 0) {
    options.members.push_back({"judge-2", {1001, 0, 20 + below(400)}, true});
    options.members.back().part.metrics = options.members.rbegin()[1].part.metrics;
  }
  // The loss falls to about 0.16.
  settings.target = std::array{
      "", "", "perplexity<=1.25", "distance<=0.45", "accuracy>=0.83", "loss<=0.2"}[below(6)];
  settings.metric = std::array{"", "", "loss", "auroc"}[below(4)];
  if (below(3) == 0) settings.patience = static_cast<std::uint32_t>(1 + below(2));
  return options;
}

}  // namespace fl::test
