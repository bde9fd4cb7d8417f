// SPDX-License-Identifier: Apache-2.0
#include "server/round/bench.hpp"

#include "server/history/cells.hpp"
#include "shared/base/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fl::server {

namespace {

/// For how long a client is not asked that has missed `misses` times in a row and took `lost` each
/// time.
Duration bench_time(int misses, Duration lost) {
  if (misses < limits::misses_max) return Duration::zero();
  constexpr int doublings_max = 10;
  const Duration pause = std::min<Duration>(lost, limits::bench_max) *
                         (2 << std::min(misses - limits::misses_max, doublings_max));
  return std::clamp<Duration>(pause, limits::bench_min, limits::bench_max);
}

}  // namespace

void Bench::restore(const std::map<std::string, Misses>& all) {
  for (const auto& [name, misses] : all) {
    Client& client = clients_[name];
    client.misses = misses.in_a_row;
    // A clock that was set back makes the time since then negative: then it counts as zero.
    client.missed_at = Clock::now() - duration_of(misses.seconds_since);
    client.until = client.missed_at + bench_time(misses.in_a_row, duration_of(misses.lost_seconds));
  }
}

Duration Bench::note_miss(const std::string& name, Duration lost) {
  Client& client = clients_[name];
  const Duration pause = bench_time(++client.misses, lost);
  client.missed_at = Clock::now();
  if (pause > Duration::zero()) client.until = Clock::now() + pause;
  return pause;
}

bool Bench::forget_misses(Client& client, TimePoint before) {
  if (client.misses == 0 || client.missed_at >= before) return false;
  client.misses = 0;
  client.until = {};
  return true;
}

bool Bench::pardon(const std::string& name, TimePoint at) {
  const auto found = clients_.find(name);
  if (found == clients_.end() || !forget_misses(found->second, at)) return false;
  found->second.fresh_starts = 0;
  return true;
}

bool Bench::forgive_fresh_start(const std::string& name, Duration uptime) {
  const auto found = clients_.find(name);
  if (found == clients_.end() || uptime <= Duration::zero()) return false;
  Client& client = found->second;
  if (client.fresh_starts == limits::fresh_starts_max) return false;
  if (!forget_misses(client, Clock::now() - uptime)) return false;
  ++client.fresh_starts;
  return true;
}

std::string Bench::why(const std::string& name) const {
  const auto found = clients_.find(name);
  if (found == clients_.end() || found->second.until <= Clock::now()) return "";
  const Client& client = found->second;
  const double until = Clock::unix_seconds() + seconds(client.until - Clock::now());
  return fmt::format(
      "{0} was asked {1} times in a row without an update that counts: it is not asked before {2} "
      "UTC, unless the others are too few. To end that, {3}call 'fl-server pardon {0}'",
      name, client.misses, utc_time(until),
      client.fresh_starts < limits::fresh_starts_max ? "start its program anew, or " : "");
}

int Bench::misses_of(const std::string& client) const {
  const auto found = clients_.find(client);
  return found != clients_.end() ? found->second.misses : 0;
}

TimePoint Bench::until(const std::string& client) const {
  const auto found = clients_.find(client);
  return found != clients_.end() ? found->second.until : TimePoint{};
}

void Bench::tell(Peer& peer) const {
  std::string text = why(peer.facts().name);
  if (text.empty() || !peer.facts().features.has(Feature::notices)) return;
  wire::Header header;
  header.mutable_notice()->set_text(std::move(text));
  peer.post(std::move(header));
}

}  // namespace fl::server
