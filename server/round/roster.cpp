// SPDX-License-Identifier: Apache-2.0
#include "server/round/roster.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/spec/spec_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace fl::server {

namespace {

/// A word of a text as a number, without the marks around it. "nan" and "inf" are numbers.
std::optional<double> number_of_word(std::string_view word) {
  constexpr std::string_view marks = "()[],.;:";
  while (!word.empty() && marks.find(word.front()) != marks.npos) word.remove_prefix(1);
  while (!word.empty() && marks.find(word.back()) != marks.npos) word.remove_suffix(1);
  return number_in<double>(word);
}

/// The text with '#' in place of each number: what two failures for one reason have in common.
std::string without_numbers(std::string_view text) {
  std::string out;
  for (const std::string_view word : parts_of(text, ' '))
    out += number_of_word(word) ? "# " : fmt::format("{} ", word);
  return out;
}

/// Whether the text is about a number that is not finite.
bool is_divergence(std::string_view text) {
  const auto is_not_finite = [](std::string_view word) {
    const auto number = number_of_word(word);
    return number && !std::isfinite(*number);
  };
  return text.find("not finite") != text.npos ||
         std::ranges::any_of(parts_of(text, ' '), is_not_finite);
}

}  // namespace

void Roster::enter(PeerPointer peer) {
  const auto& facts = peer->facts();
  if (!facts.evaluator) join_pace(facts.name);
  Client& client = clients_[facts.name];
  client.absent_until.reset();
  client.expelled.reset();
  client.turned_away.clear();
  client.peer = std::move(peer);
  ++sessions_;
  if (is_trainer(client)) ++trainers_;
}

bool Roster::leave(const PeerPointer& peer, bool for_good) {
  Client& client = clients_[peer->facts().name];
  if (client.peer != peer) return false;
  client.departed.up += peer->bytes_up();
  client.departed.down += peer->bytes_down();
  --sessions_;
  if (is_trainer(client)) --trainers_;
  client.peer.reset();
  client.knows_initial = false;
  if (!for_good) client.absent_until = Clock::now() + limits::farewell_max;
  return true;
}

Roster::PeerPointer Roster::find(const std::string& client) const {
  const auto found = clients_.find(client);
  return found != clients_.end() ? found->second.peer : nullptr;
}

std::vector<Roster::PeerPointer> Roster::here() const {
  std::vector<PeerPointer> found;
  found.reserve(sessions_);
  for (const auto& [name, client] : clients_) {
    if (client.peer) found.push_back(client.peer);
  }
  return found;
}

std::vector<Roster::PeerPointer> Roster::trainers() const {
  std::vector<PeerPointer> found;
  found.reserve(trainers_);
  for (const auto& [name, client] : clients_) {
    if (is_trainer(client)) found.push_back(client.peer);
  }
  return found;
}

bool Roster::count_displacement(const std::string& name) {
  Client& client = clients_[name];
  if (Clock::now() - client.displaced_since > limits::displaced_window) {
    client.displaced_since = Clock::now();
    client.displaced = 0;
  }
  return ++client.displaced == limits::displaced_max;
}

bool Roster::take_initial_notice(const std::string& client) {
  return !std::exchange(clients_[client].knows_initial, true);
}

void Roster::expect_back(const std::string& client) {
  clients_[client].absent_until = Clock::now() + limits::farewell_max;
}

bool Roster::is_awaited(const std::string& name) const {
  const auto found = clients_.find(name);
  if (found == clients_.end()) return false;
  const Client& client = found->second;
  return client.peer || (client.absent_until && *client.absent_until > Clock::now());
}

TimePoint Roster::expire_absences() {
  TimePoint next = never;
  for (auto& [name, client] : clients_) {
    if (client.absent_until && *client.absent_until <= Clock::now()) client.absent_until.reset();
    if (client.absent_until) next = std::min(next, *client.absent_until);
  }
  return next;
}

std::size_t Roster::absent_count() const {
  return static_cast<std::size_t>(std::ranges::count_if(
      clients_, [](const auto& entry) { return entry.second.absent_until.has_value(); }));
}

void Roster::expel(const std::string& client, const std::string& reason) {
  clients_[client].expelled = reason;
}

std::vector<std::pair<std::string, std::string>> Roster::expelled() const {
  std::vector<std::pair<std::string, std::string>> found;
  for (const auto& [name, client] : clients_) {
    if (client.expelled) found.emplace_back(name, *client.expelled);
  }
  return found;
}

std::string Roster::why_expelled(const std::string& name) const {
  const auto found = clients_.find(name);
  return found != clients_.end() ? found->second.expelled.value_or("") : "";
}

bool Roster::turn_away(const std::string& name, const std::string& why) {
  return std::exchange(clients_[name].turned_away, why) != why;
}

std::vector<std::pair<std::string, std::string>> Roster::turned_away() const {
  std::vector<std::pair<std::string, std::string>> found;
  for (const auto& [name, client] : clients_) {
    if (!client.turned_away.empty()) found.emplace_back(name, client.turned_away);
  }
  return found;
}

Traffic Roster::traffic_of(const std::string& name) const {
  const auto found = clients_.find(name);
  if (found == clients_.end()) return {};
  const Client& client = found->second;
  Traffic total = client.departed;
  if (client.peer) {
    total.up += client.peer->bytes_up();
    total.down += client.peer->bytes_down();
  }
  return total;
}

Traffic Roster::traffic() const {
  Traffic total;
  for (const auto& [name, client] : clients_) {
    total.up += client.departed.up + (client.peer ? client.peer->bytes_up() : 0);
    total.down += client.departed.down + (client.peer ? client.peer->bytes_down() : 0);
  }
  return total;
}

void Roster::set_update_counts(const std::map<std::string, std::uint64_t>& counts) {
  for (const auto& [name, count] : counts) clients_[name].updates = count;
}

/// Where a client that comes begins to count. Nobody waits for what it missed while it was away, so
/// it begins where the slowest of the others is. But after a restart those others are the first to
/// come back, and may be far ahead: so it begins no higher than where the fastest may go on. And
/// when no other trainer is here to compare with, it begins no lower than a client that was never
/// away can be: else it would have to make up for all that it missed before anyone else is asked.
void Roster::join_pace(const std::string& name) {
  if (ahead_ == 0) return;
  std::vector<std::uint64_t> others;
  std::uint64_t highest = 0;
  for (const auto& [other, client] : clients_) {
    highest = std::max(highest, client.updates);
    if (is_trainer(client) && other != name) others.push_back(client.updates);
  }
  std::uint64_t& updates = clients_[name].updates;
  updates = std::max(updates, highest - std::min<std::uint64_t>(highest, ahead_ + 1));
  if (others.empty()) return;
  const auto [slowest, fastest] = std::ranges::minmax(others);
  updates =
      std::max(updates, std::min(slowest, fastest - std::min<std::uint64_t>(fastest, ahead_)));
}

void Roster::count_update(const std::string& name) {
  Client& client = clients_[name];
  ++client.updates;
  client.failures = 0;
  bench_.clear(name);
}

void Roster::note_failure(const std::string& name, const std::string& reason) {
  Client& client = clients_[name];
  std::string kind = without_numbers(reason);
  client.failures = client.failure_kind == kind ? client.failures + 1 : 1;
  client.failure_kind = std::move(kind);
  client.failure = reason;
}

std::string Roster::common_failure(std::size_t least) const {
  if (trainers_ == 0 || trainers_ < least) return "";
  const Client* first = nullptr;
  for (const auto& [name, client] : clients_) {
    if (!is_trainer(client)) continue;
    if (client.failures < limits::failures_alike_max) return "";
    if (first == nullptr) first = &client;
    if (client.failure_kind != first->failure_kind) return "";
  }
  FL_ASSERT(first != nullptr);
  return fmt::format(
      "each client that is here has failed {} times in a row: {}{}", limits::failures_alike_max,
      first->failure,
      is_divergence(first->failure) ? ". The training diverges: try a lower --lr" : "");
}

std::vector<Roster::PeerPointer> Roster::trainers_to_ask(std::size_t least) const {
  std::vector<PeerPointer> found;
  for (const auto& [name, client] : clients_) {
    if (is_trainer(client) && Clock::now() >= bench_.until(name)) found.push_back(client.peer);
  }
  return found.size() >= least ? found : trainers();
}

std::vector<Roster::PeerPointer> Roster::trainers_in_pace(std::size_t least) const {
  auto found = trainers_to_ask(least);
  if (ahead_ == 0) return found;
  std::uint64_t slowest = std::numeric_limits<std::uint64_t>::max() - ahead_;
  for (const auto& peer : found) {
    const std::string& name = peer->facts().name;
    if (bench_.misses_of(name) < limits::misses_max)
      slowest = std::min(slowest, clients_.at(name).updates);
  }
  std::erase_if(found, [&](const auto& peer) {
    return clients_.at(peer->facts().name).updates > slowest + ahead_;
  });
  return found;
}

}  // namespace fl::server
