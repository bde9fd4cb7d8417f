// SPDX-License-Identifier: Apache-2.0
#include "client/site/hub.hpp"

#include "client/learn/process/json_line.hpp"
#include "client/site/site_handshake.hpp"
#include "client/site/site_messages.hpp"
#include "shared/base/async/stop_signals.hpp"
#include "shared/base/log.hpp"
#include "shared/net/accept_pace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>
#include <utility>

namespace fl {

using nlohmann::json;

namespace {

/// All ranks may come at the same moment. The port has no TLS handshakes: a new connection begins
/// at once, and the oldest one ends; if its address has too many, the oldest one of that address.
Strangers::Limits places_of(int size) {
  const auto ranks = static_cast<std::size_t>(size);
  return {.all = ranks + limits::rank_strangers_max,
          .of_address = ranks + limits::rank_strangers_max / 2,
          .handshakes_reserved = 0,
          .time = limits::rank_greeting,
          .addresses = {.of_address = no_fruitless_limit, .of_unknown = no_fruitless_limit}};
}

/// For waits that may be long: `never` itself is too far for a condition variable.
TimePoint far_away() { return Clock::now() + std::chrono::hours(1); }

/// Stands for the answer of a rank that can't give one.
std::unique_ptr<Result<json>> no_answer(std::string why) {
  return std::make_unique<Result<json>>(Error(Errc::unavailable, std::move(why)));
}

}  // namespace

/// One connection.
struct SiteHub::Peer {
  Peer(Descriptor socket, Strangers::Id stranger)
      : line(std::move(socket), "the rank"), id(stranger) {}

  /// Any thread. A peer that does not read is lost.
  void send(const json& message) {
    const std::lock_guard lock(send_mutex);
    if (!send_json(line, message, Clock::now() + limits::rank_send_wait)) line.shut();
  }

  SocketLine line;
  const Strangers::Id id;  // The number that it had among the strangers.
  std::mutex send_mutex;
  SiteMember member;  // Set before it is in peers_; constant then.
  std::jthread thread;
  std::atomic<bool> is_over = false;
};

SiteHub::SiteHub(Options options, TcpListener listener)
    : options_(std::move(options)),
      listener_(std::move(listener)),
      strangers_(places_of(options_.size)) {
  const WithoutStopSignals guard;
  thread_ = std::jthread([this](const std::stop_token& stop) { accept_all(stop); });
}

Result<std::unique_ptr<SiteHub>> SiteHub::open(Options options) {
  FL_TRY(TcpListener listener, TcpListener::make(options.host, options.port));
  return std::unique_ptr<SiteHub>(new SiteHub(std::move(options), std::move(listener)));
}

SiteHub::~SiteHub() {
  thread_.request_stop();
  thread_.join();
  std::set<PeerPtr> left;
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    left = std::move(connections_);
    connections_.clear();
  }
  for (const PeerPtr& peer : left) {
    peer->thread.request_stop();
    peer->line.shut();
    peer->thread.join();
  }
}

void SiteHub::accept_all(const std::stop_token& stop) {
  AcceptPace pace(1 + static_cast<std::size_t>(options_.size) / limits::ranks_of_accept_turn);
  while (!stop.stop_requested()) {
    Descriptor socket = listener_.accept(limits::trainer_look);
    const bool is_there = socket.number() >= 0;
    std::vector<PeerPtr> over;
    {
      const std::lock_guard lock(mutex_);
      std::erase_if(connections_, [&over](const PeerPtr& peer) {
        if (peer->is_over) over.push_back(peer);
        return peer->is_over.load();
      });
      if (is_there) take(std::move(socket));
      end_strangers();
    }
    for (const PeerPtr& peer : over) peer->thread.join();
    const TimePoint now = Clock::now();
    if (is_there) std::this_thread::sleep_for(pace.next(now) - now);
  }
}

/// Each connection has a thread. Strangers that are ended leave theirs at once, and ranks have
/// proven that they know the secret. The mutex is locked.
void SiteHub::take(Descriptor socket) {
  if (connections_.size() >= 2 * places_of(options_.size).all) return;
  const sockaddr_storage from = peer_address(socket);
  const auto id =
      strangers_.enter(stranger_address(reinterpret_cast<const sockaddr&>(from)), Clock::now());
  auto peer = std::make_shared<Peer>(std::move(socket), id);
  connections_.insert(peer);
  unproven_.emplace(id, peer);
  const WithoutStopSignals guard;
  peer->thread = std::jthread([this, peer](const std::stop_token& end) { serve(peer, end); });
}

/// Ends strangers that are too many, the oldest first, or too slow. The mutex is locked.
void SiteHub::end_strangers() {
  for (const auto id : strangers_.next(Clock::now()).close) {
    const auto found = unproven_.find(id);
    found->second->line.shut();
    unproven_.erase(found);
  }
}

/// A connection's thread.
void SiteHub::serve(const PeerPtr& peer, const std::stop_token& stop) {
  const auto greeted = greet(*peer);
  {
    const std::lock_guard lock(mutex_);
    strangers_.leave(peer->id);
    unproven_.erase(peer->id);
  }
  if (!greeted) {
    warn_of_stranger(greeted.error());
  } else if (auto entered = enter(peer); !entered) {
    log_warn("{}", entered.error().message());
    peer->send({{"type", "refused"}, {"reason", entered.error().message()}});
  } else {
    TimePoint heard = Clock::now();
    TimePoint told = heard;
    Error reason(Errc::unavailable, "the client ends");
    while (!stop.stop_requested()) {
      const auto message = receive_json(peer->line, limits::rank_beat);
      if (!message) {
        reason = message.error();
        break;
      }
      const TimePoint now = Clock::now();
      if (now - told >= limits::rank_beat) {
        peer->send({{"type", "alive"}});
        told = now;
      }
      if (*message) {
        heard = now;
        hear(peer, **message);
      } else if (now - heard > options_.silence) {
        reason = Error(Errc::unavailable,
                       fmt::format("it was silent for {:.0f} s", seconds(options_.silence)));
        break;
      }
    }
    leave(peer, reason);
  }
  peer->line.shut();
  peer->is_over = true;
}

/// Logs few of these lines, because anybody in the site's network can cause them.
void SiteHub::warn_of_stranger(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (stranger_lines_.passes("stranger"))
    log_warn("a connection to the site's port was closed: {}", error.message());
}

/// Checks who has connected and reads its hello into peer.member.
Result<void> SiteHub::greet(Peer& peer) {
  const TimePoint until = Clock::now() + limits::rank_greeting;
  FL_CHECK(greet_rank(peer.line, options_.secret, until));
  FL_TRY(const auto hello,
         receive_json(peer.line, until - Clock::now(), limits::rank_greeting_bytes_max));
  if (!hello) return Error(Errc::deadline, "no hello in time");
  auto member = parse_rank_hello(*hello, options_.size);
  if (!member) {
    peer.send({{"type", "refused"}, {"reason", member.error().message()}});
    return member.error();
  }
  peer.member = std::move(*member);
  return {};
}

Result<void> SiteHub::enter(const PeerPtr& peer) {
  PeerPtr before;
  {
    const std::lock_guard lock(mutex_);
    if (is_ending_) return Error(Errc::unavailable, "the client ends");
    PeerPtr& place = peers_[peer->member.rank];
    before = std::exchange(place, peer);
  }
  if (before) {
    log_warn("{} has come a second time; the one before is dropped", to_string(peer->member));
    before->line.shut();
  }
  peer->send({{"type", "welcome"}});
  changed_.notify_all();
  return {};
}

void SiteHub::leave(const PeerPtr& peer, const Error& reason) {
  bool is_lost = false;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = peers_.find(peer->member.rank);
        found != peers_.end() && found->second == peer) {
      peers_.erase(found);
      is_lost = !is_ending_;
    }
    for (Asked& asked : asked_) {
      if (asked.peer != peer || asked.answer) continue;
      asked.answer = no_answer(fmt::format("{}: {}", to_string(peer->member), reason.message()));
    }
    std::erase_if(waiters_, [&](const Waiter& waiter) { return waiter.peer == peer; });
  }
  if (is_lost) {
    log_warn("{} is lost: {}", to_string(peer->member), reason.message());
    if (options_.on_lost) options_.on_lost(peer->member.rank);
  }
  changed_.notify_all();
}

void SiteHub::hear(const PeerPtr& peer, const json& message) {
  const std::string type = member_text(message, "type");
  if (type == "done" || type == "error") {
    take_answer(peer, message);
  } else if (type == "alive") {
    take_progress(peer, member_number(message, "progress"));
  } else {
    use_store(peer, type, message);
  }
}

void SiteHub::take_progress(const PeerPtr& peer, std::uint64_t progress) {
  const std::lock_guard lock(mutex_);
  for (Asked& asked : asked_) {
    if (asked.peer == peer && std::exchange(asked.progress, progress) != progress)
      asked.moved = Clock::now();
  }
}

void SiteHub::take_answer(const PeerPtr& peer, const json& message) {
  {
    const std::lock_guard lock(mutex_);
    const auto id = member_number(message, "id");
    for (Asked& asked : asked_) {
      if (asked.id != id || asked.peer != peer || asked.answer) continue;
      asked.answer = std::make_unique<Result<json>>(
          member_text(message, "type") == "done"
              ? Result<json>(message)
              : Result<json>(parse_rank_error(message).at(to_string(peer->member))));
    }
  }
  changed_.notify_all();
}

/// Does what a rank's c10d store asks for.
void SiteHub::use_store(const PeerPtr& peer, const std::string& type, const json& message) {
  const std::string key = member_text(message, "key");
  const std::uint64_t id = member_number(message, "id");
  std::optional<json> answer = json{{"type", "value"}, {"id", id}};
  std::vector<Waiter> told;  // The ranks that waited for this value.
  std::string value;
  {
    const std::lock_guard lock(mutex_);
    const auto found = store_.find(key);
    const bool is_there = found != store_.end();
    if (type == "set") {
      value = member_text(message, "value");
      told = set_key(key, value);
      answer.reset();
    } else if (type == "add") {
      // An answer without a sum says that there is none.
      const auto before = is_there ? counter_of(found->second) : std::optional<std::int64_t>(0);
      const auto amount = member_integer(message, "amount");
      std::int64_t sum = 0;
      if (before && amount && !__builtin_add_overflow(*before, *amount, &sum)) {
        value = counter_text(sum);
        told = set_key(key, value);
        (*answer)["sum"] = sum;
      }
    } else if (type == "get" && is_there) {
      (*answer)["value"] = found->second;
    } else if (type == "get" && member_number(message, "wait") != 0) {
      waiters_.push_back({peer, id, key});
      answer.reset();
    } else if (type == "delete") {
      (*answer)["is_there"] = store_.erase(key) > 0;
    }
  }
  for (const Waiter& waiter : told)
    waiter.peer->send({{"type", "value"}, {"id", waiter.id}, {"value", value}});
  if (answer) peer->send(*answer);
}

/// Returns the ranks that waited for the key. The mutex is locked.
std::vector<SiteHub::Waiter> SiteHub::set_key(const std::string& key, const std::string& value) {
  std::vector<Waiter> found;
  if (store_.size() >= limits::rank_keys_max) return found;
  store_[key] = value;
  std::erase_if(waiters_, [&](const Waiter& waiter) {
    if (waiter.key == key) found.push_back(waiter);
    return waiter.key == key;
  });
  return found;
}

std::vector<SiteMember> SiteHub::members() const {
  const std::lock_guard lock(mutex_);
  std::vector<SiteMember> all;
  for (const auto& [rank, peer] : peers_) all.push_back(peer->member);
  return all;
}

std::vector<SiteMember> SiteHub::wait_for(std::size_t count, TimePoint until,
                                          const std::stop_token& stop) const {
  {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, stop, until, [&] { return peers_.size() >= count; });
  }
  return members();
}

void SiteHub::send_asked(const std::vector<Request>& requests) {
  std::vector<std::pair<PeerPtr, json>> to_send;
  {
    const std::lock_guard lock(mutex_);
    asked_.clear();
    for (const Request& request : requests) {
      Asked& asked = asked_.emplace_back();
      asked.id = next_id_++;
      if (const auto found = peers_.find(request.rank); found != peers_.end()) {
        asked.peer = found->second;
        asked.moved = Clock::now();
        json message = request.message;
        message["id"] = asked.id;
        to_send.emplace_back(asked.peer, std::move(message));
      } else {
        asked.answer = no_answer(fmt::format("rank {} is not there", request.rank));
      }
    }
  }
  for (const auto& [peer, message] : to_send) peer->send(message);
}

void SiteHub::request_stop() {
  std::vector<std::pair<PeerPtr, std::uint64_t>> working;
  {
    const std::lock_guard lock(mutex_);
    for (const Asked& asked : asked_) {
      if (asked.peer && !asked.answer) working.emplace_back(asked.peer, asked.id);
    }
  }
  for (const auto& [peer, id] : working) peer->send({{"type", "stop"}, {"id", id}});
}

bool SiteHub::all_answered() const {
  return std::ranges::all_of(asked_, [](const Asked& asked) { return asked.answer != nullptr; });
}

bool SiteHub::has_failure() const {
  return std::ranges::any_of(
      asked_, [](const Asked& asked) { return asked.answer && !asked.answer->has_value(); });
}

std::vector<Result<json>> SiteHub::ask(const std::vector<Request>& requests,
                                       const std::stop_token& stop) {
  send_asked(requests);
  std::unique_lock lock(mutex_);
  TimePoint until = never;
  bool has_stopped = false;
  bool has_failed = false;
  while (!all_answered()) {
    if (stop.stop_requested() && !std::exchange(has_stopped, true)) {
      until = std::min<TimePoint>(until, Clock::now() + options_.grace);
      lock.unlock();
      request_stop();
      lock.lock();
    }
    if (has_failure() && !std::exchange(has_failed, true)) {
      until = std::min<TimePoint>(until, Clock::now() + options_.collective + options_.grace);
    }
    if (Clock::now() >= until) {
      lock.unlock();
      drop_silent();
      lock.lock();
      until = never;
    }
    const TimePoint hanging = hangs_at();
    if (Clock::now() >= hanging) {
      lock.unlock();
      drop_hanging();
      lock.lock();
      continue;
    }
    const auto is_news = [&] { return all_answered() || (has_failure() && !has_failed); };
    changed_.wait_until(lock, has_stopped ? std::stop_token() : stop,
                        std::min({until, hanging, far_away()}), is_news);
  }
  std::vector<Result<json>> answers;
  for (Asked& asked : asked_) answers.push_back(std::move(*asked.answer));
  asked_.clear();
  return answers;
}

/// When the first rank without an answer hangs, if it gets no further. The mutex is locked.
TimePoint SiteHub::hangs_at() const {
  TimePoint first = never;
  for (const Asked& asked : asked_) {
    if (!asked.answer) first = std::min<TimePoint>(first, asked.moved + options_.progress);
  }
  return first;
}

void SiteHub::drop_hanging() {
  const std::string reason = fmt::format(
      "it shows life, but its work has got no further for {:g} s", seconds(options_.progress));
  std::vector<int> hanging;
  {
    const std::lock_guard lock(mutex_);
    for (Asked& asked : asked_) {
      if (asked.answer || Clock::now() < asked.moved + options_.progress) continue;
      hanging.push_back(asked.peer->member.rank);
      asked.answer = no_answer(fmt::format("{}: {}", to_string(asked.peer->member), reason));
    }
  }
  for (const int rank : hanging) drop(rank, reason);
}

/// Drops the ranks that have not answered; leave() answers for them.
void SiteHub::drop_silent() {
  std::vector<int> silent;
  {
    const std::lock_guard lock(mutex_);
    for (const Asked& asked : asked_) {
      if (!asked.answer) silent.push_back(asked.peer->member.rank);
    }
  }
  for (const int rank : silent) drop(rank, "it did not answer in time");
}

void SiteHub::drop(int rank, const std::string& reason) {
  PeerPtr peer;
  {
    const std::lock_guard lock(mutex_);
    const auto found = peers_.find(rank);
    if (found == peers_.end()) return;
    peer = found->second;
  }
  log_warn("{} is dropped: {}", to_string(peer->member), reason);
  peer->line.shut();
}

void SiteHub::send_all(const json& message) {
  std::vector<PeerPtr> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [rank, peer] : peers_) all.push_back(peer);
  }
  for (const PeerPtr& peer : all) peer->send(message);
}

void SiteHub::end_ranks() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  send_all({{"type", "end"}});
}

void SiteHub::tell(const std::string& text) { send_all({{"type", "note"}, {"text", text}}); }

void SiteHub::clear_store() {
  const std::lock_guard lock(mutex_);
  store_.clear();
  waiters_.clear();
}

}  // namespace fl
