// SPDX-License-Identifier: Apache-2.0
#include "client/site/hub.hpp"

#include "client/learn/process/json_line.hpp"
#include "client/site/site_messages.hpp"
#include "shared/base/async/stop_signals.hpp"
#include "shared/base/log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fl::site {

using nlohmann::json;

namespace {

/// For waits that may be long: `never` itself is too far for a condition variable.
TimePoint far_away() { return Clock::now() + std::chrono::hours(1); }

/// Stands for the answer of a rank that can't give one.
std::unique_ptr<Result<json>> no_answer(std::string why) {
  return std::make_unique<Result<json>>(Error(Errc::unavailable, std::move(why)));
}

}  // namespace

SiteHub::SiteHub(Options options)
    : options_(std::move(options)),
      store_(limits::rank_store_bytes_max * static_cast<std::size_t>(options_.size)) {}

Result<std::unique_ptr<SiteHub>> SiteHub::open(Options options) {
  std::unique_ptr<SiteHub> hub(new SiteHub(std::move(options)));
  const Options& given = hub->options_;
  RankPort::Events events;
  events.entered = [it = hub.get()](const Peer& peer) { return it->enter(peer); };
  events.said = [it = hub.get()](const Peer& peer, const json& message) {
    return it->hear(peer, message);
  };
  events.left = [it = hub.get()](const Peer& peer, const Error& reason) {
    it->note_loss(peer, reason);
  };
  // The port's first event may come before this function returns, so port_ is set under the lock.
  const MutexLock lock(hub->mutex_);
  FL_TRY(hub->port_, RankPort::open({.host = given.host,
                                     .port = given.port,
                                     .secret = given.secret,
                                     .size = given.size,
                                     .silence = given.silence,
                                     .greeting = given.greeting,
                                     .unsent_bytes_max = given.unsent_bytes_max},
                                    std::move(events)));
  const WithoutStopSignals guard;
  hub->thread_ =
      std::jthread([it = hub.get()](const std::stop_token& stop) { it->tell_losses(stop); });
  return hub;
}

SiteHub::~SiteHub() {
  const MutexLock lock(mutex_);
  is_ending_ = true;
}

Result<void> SiteHub::enter(const Peer& peer) {
  Peer before;
  {
    const MutexLock lock(mutex_);
    if (is_ending_) return Error(Errc::unavailable, "the client ends");
    before = std::exchange(peers_[peer.member.rank], peer);
    // Before the lock is free, so that it comes before every request.
    port_->send(peer.id, {{"type", "welcome"}});
  }
  if (before.id != 0) {
    log_warn("{} has come a second time; the one before is dropped", to_string(peer.member));
    port_->end(before.id, "it has come a second time");
  }
  changed_.notify_all();
  return {};
}

void SiteHub::note_loss(const Peer& peer, const Error& reason) {
  {
    const MutexLock lock(mutex_);
    losses_.push_back({peer, reason});
  }
  changed_.notify_all();
}

/// The thread that tells of losses.
void SiteHub::tell_losses(const std::stop_token& stop) {
  while (const auto loss = next_loss(stop)) leave(*loss);
}

/// Waits for a loss. None: the thread is to end.
std::optional<SiteHub::Loss> SiteHub::next_loss(const std::stop_token& stop) {
  const MutexLock lock(mutex_);
  while (losses_.empty()) {
    if (stop.stop_requested()) return std::nullopt;
    changed_.wait(mutex_, stop);
  }
  Loss loss = std::move(losses_.front());
  losses_.pop_front();
  return loss;
}

void SiteHub::leave(const Loss& loss) {
  const auto& [peer, reason] = loss;
  bool is_lost = false;
  {
    const MutexLock lock(mutex_);
    store_.forget(peer.id);
    if (const auto found = peers_.find(peer.member.rank);
        found != peers_.end() && found->second.id == peer.id) {
      peers_.erase(found);
      is_lost = !is_ending_;
    }
    // Under the lock that drops the rank: a later group does without it, and must not be ended.
    for (const Asked& asked : asked_) {
      if (asked.peer.id == peer.id && !asked.answer)
        abort_others(asked,
                     fmt::format("{} is lost: {}", to_string(peer.member), reason.message()));
    }
  }
  if (is_lost) {
    log_warn("{} is lost: {}", to_string(peer.member), reason.message());
    if (options_.on_lost) options_.on_lost(peer.member.rank);
  }
  {
    const MutexLock lock(mutex_);
    for (Asked& asked : asked_) {
      if (asked.peer.id != peer.id || asked.answer) continue;
      asked.answer = no_answer(fmt::format("{}: {}", to_string(peer.member), reason.message()));
    }
  }
  changed_.notify_all();
}

Result<void> SiteHub::hear(const Peer& peer, const json& message) {
  const std::string type = member_text(message, "type");
  if (type == "done" || type == "error") {
    take_answer(peer, message);
  } else if (type == "alive") {
    take_progress(peer, member_number(message, "progress"));
  } else {
    return use_store(peer, type, message);
  }
  return {};
}

/// Tells ranks that may wait for one that has failed, which otherwise may do so until their time
/// limit.
void SiteHub::abort_others(const Asked& failed, const std::string& reason) {
  for (Asked& asked : asked_) {
    const bool may_wait = failed.is_common && asked.is_common && asked.peer.id != failed.peer.id;
    if (may_wait && !asked.answer && !std::exchange(asked.is_told, true))
      port_->send(asked.peer.id, {{"type", "abort"}, {"id", asked.id}, {"reason", reason}});
  }
}

void SiteHub::take_progress(const Peer& peer, std::uint64_t progress) {
  const MutexLock lock(mutex_);
  for (Asked& asked : asked_) {
    if (asked.peer.id == peer.id && std::exchange(asked.progress, progress) != progress)
      asked.moved = Clock::now();
  }
}

void SiteHub::take_answer(const Peer& peer, const json& message) {
  {
    const MutexLock lock(mutex_);
    const auto id = member_number(message, "id");
    for (Asked& asked : asked_) {
      if (asked.id != id || asked.peer.id != peer.id || asked.answer) continue;
      asked.answer = std::make_unique<Result<json>>(
          member_text(message, "type") == "done"
              ? Result<json>(message)
              : Result<json>(parse_rank_error(message).at(to_string(peer.member))));
      if (!asked.answer->has_value()) abort_others(asked, asked.answer->error().message());
    }
  }
  changed_.notify_all();
}

/// Does what a rank's c10d store asks for.
Result<void> SiteHub::use_store(const Peer& peer, const std::string& type, const json& message) {
  const MutexLock lock(mutex_);
  return store_.use(peer.id, type, message,
                    [this](RankPort::Id to, const json& told) { port_->send(to, told); });
}

std::vector<SiteMember> SiteHub::members() const {
  const MutexLock lock(mutex_);
  std::vector<SiteMember> all;
  for (const auto& [rank, peer] : peers_) all.push_back(peer.member);
  return all;
}

std::vector<SiteMember> SiteHub::wait_for(std::size_t count, TimePoint until,
                                          const std::stop_token& stop) const {
  {
    const MutexLock lock(mutex_);
    while (peers_.size() < count && Clock::now() < until && !stop.stop_requested())
      changed_.wait_until(mutex_, stop, until);
  }
  return members();
}

void SiteHub::send_asked(const std::vector<Request>& requests) {
  std::vector<std::pair<RankPort::Id, json>> to_send;
  {
    const MutexLock lock(mutex_);
    asked_.clear();
    for (const Request& request : requests) {
      Asked& asked = asked_.emplace_back();
      asked.id = next_id_++;
      if (const auto found = peers_.find(request.rank); found != peers_.end()) {
        asked.peer = found->second;
        asked.moved = Clock::now();
        asked.is_common = request.is_common;
        json message = request.message;
        message["id"] = asked.id;
        to_send.emplace_back(asked.peer.id, std::move(message));
      } else {
        asked.answer = no_answer(fmt::format("rank {} is not there", request.rank));
        asked.is_common = request.is_common;
      }
    }
    // It was lost before this work began, and nobody else would tell those that wait for it.
    for (const Asked& asked : asked_)
      if (asked.answer) abort_others(asked, asked.answer->error().message());
  }
  for (const auto& [peer, message] : to_send) port_->send(peer, message);
}

void SiteHub::request_stop() {
  std::vector<std::pair<RankPort::Id, std::uint64_t>> working;
  {
    const MutexLock lock(mutex_);
    for (const Asked& asked : asked_) {
      if (!asked.answer) working.emplace_back(asked.peer.id, asked.id);
    }
  }
  for (const auto& [peer, id] : working) port_->send(peer, {{"type", "stop"}, {"id", id}});
}

bool SiteHub::all_answered() const {
  return std::ranges::all_of(asked_, [](const Asked& asked) { return asked.answer != nullptr; });
}

std::vector<Result<json>> SiteHub::ask(const std::vector<Request>& requests,
                                       const std::stop_token& stop) {
  send_asked(requests);
  TimePoint until = never;
  bool has_stopped = false;
  bool has_failed = false;
  for (;;) {
    if (stop.stop_requested() && !std::exchange(has_stopped, true)) {
      until = std::min<TimePoint>(until, Clock::now() + options_.grace);
      request_stop();
    }
    if (Clock::now() >= until) {
      drop_silent();
      until = never;
    }
    drop_hanging();
    const MutexLock lock(mutex_);
    if (all_answered()) return take_answers();
    const bool fails = std::ranges::any_of(
        asked_, [](const Asked& asked) { return asked.answer && !asked.answer->has_value(); });
    if (fails && !std::exchange(has_failed, true))
      until = std::min<TimePoint>(until, Clock::now() + options_.collective + options_.grace);
    changed_.wait_until(mutex_, has_stopped ? std::stop_token() : stop,
                        std::min({until, hangs_at(), far_away()}));
  }
}

std::vector<Result<json>> SiteHub::take_answers() {
  std::vector<Result<json>> answers;
  for (Asked& asked : asked_) answers.push_back(std::move(*asked.answer));
  asked_.clear();
  return answers;
}

/// When the first rank without an answer hangs, if it gets no further.
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
  std::vector<Peer> hanging;
  {
    const MutexLock lock(mutex_);
    for (Asked& asked : asked_) {
      if (asked.answer || Clock::now() < asked.moved + options_.progress) continue;
      hanging.push_back(asked.peer);
      asked.answer = no_answer(fmt::format("{}: {}", to_string(asked.peer.member), reason));
      abort_others(asked, asked.answer->error().message());
    }
  }
  for (const Peer& peer : hanging) drop(peer, reason);
}

/// Drops the ranks that have not answered; leave() answers for them.
void SiteHub::drop_silent() {
  std::vector<Peer> silent;
  {
    const MutexLock lock(mutex_);
    for (const Asked& asked : asked_) {
      if (!asked.answer) silent.push_back(asked.peer);
    }
  }
  for (const Peer& peer : silent) drop(peer, "it did not answer in time");
}

void SiteHub::drop(const Peer& peer, const std::string& reason) {
  log_warn("{} is dropped: {}", to_string(peer.member), reason);
  port_->end(peer.id, reason);
}

void SiteHub::send_all(const json& message) {
  const MutexLock lock(mutex_);
  for (const auto& [rank, peer] : peers_) port_->send(peer.id, message);
}

void SiteHub::end_ranks() {
  {
    const MutexLock lock(mutex_);
    is_ending_ = true;
  }
  send_all({{"type", "end"}});
}

void SiteHub::tell(const std::string& text) { send_all({{"type", "note"}, {"text", text}}); }

void SiteHub::clear_store() {
  const MutexLock lock(mutex_);
  store_.clear();
}

}  // namespace fl::site
