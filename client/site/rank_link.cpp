// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank_link.hpp"

#include "client/learn/process/tcp.hpp"
#include "client/site/site_handshake.hpp"
#include "client/site/site_messages.hpp"
#include "shared/base/async/stop_signals.hpp"
#include "shared/base/io/text_of_bytes.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"

#include <fmt/format.h>

#include <unistd.h>
#include <algorithm>
#include <ctime>
#include <utility>

namespace fl::site {

using nlohmann::json;

namespace {

std::string key_text(const std::string& key) {
  return to_base64url(bytes_of(std::string_view(key)));
}

/// One attempt. Errors that may pass are unavailable.
Result<std::unique_ptr<SocketLine>> try_to_connect(const RankLink::Options& options) {
  const TimePoint until = Clock::now() + limits::rank_greeting;
  FL_TRY(Descriptor socket, connect_tcp(options.host, options.port, until));
  auto line = std::make_unique<SocketLine>(std::move(socket), "the agent");
  FL_CHECK(greet_agent(*line, options.secret, until));
  SiteMember self;
  self.rank = options.rank;
  self.host = host_name();
  self.process = getpid();
  if (!send_json(*line, rank_hello(self, options.size), until))
    return Error(Errc::unavailable, "the agent has closed its socket");
  FL_TRY(const auto told,
         receive_json(*line, until - Clock::now(), limits::rank_greeting_bytes_max));
  if (!told) return Error(Errc::unavailable, "the agent did not answer");
  if (member_text(*told, "type") == "refused")
    return Error(Errc::conflict, "the agent refuses this rank: " + member_text(*told, "reason"));
  return line;
}

}  // namespace

Result<std::unique_ptr<RankLink>> RankLink::connect(const Options& options) {
  for (;;) {
    auto line = try_to_connect(options);
    if (line) return std::unique_ptr<RankLink>(new RankLink(std::move(*line), options));
    const Errc code = line.error().code();
    const bool may_pass = code == Errc::unavailable || code == Errc::not_found;
    if (!may_pass || Clock::now() >= options.until) return line.error();
    std::this_thread::sleep_for(limits::rank_restart_pause / 2);
  }
}

RankLink::RankLink(std::unique_ptr<SocketLine> line, const Options& options)
    : line_(std::move(line)), silence_(options.silence), on_lost_(options.on_lost) {
  const WithoutStopSignals guard;
  thread_ = std::jthread([this](const std::stop_token& stop) { receive_all(stop); });
}

RankLink::~RankLink() {
  thread_.request_stop();
  line_->shut();
  thread_.join();
}

std::string RankLink::own_address() const { return fl::own_address(line_->number()); }

void RankLink::receive_all(const std::stop_token& stop) {
  TimePoint heard = Clock::now();
  TimePoint told{};
  while (!stop.stop_requested()) {
    // Waits no longer than to the next beat, however many messages come before it.
    const Duration wait = std::clamp<Duration>(told + limits::rank_beat - Clock::now(),
                                               std::chrono::milliseconds(1), limits::rank_beat);
    auto message = receive_json(*line_, wait, limits::rank_line_bytes_max);
    if (!message && stop.stop_requested()) return;
    if (!message) return lose(message.error());
    const TimePoint now = Clock::now();
    if (now - told >= limits::rank_beat) {
      send(beat());
      told = now;
    }
    if (*message) {
      heard = now;
      hear(std::move(**message));
    } else if (now - heard > silence_) {
      return lose(Error(Errc::unavailable,
                        fmt::format("the agent was silent for {:.0f} s", seconds(silence_))));
    }
  }
}

json RankLink::beat() {
  if (counts_waiting_) ++progress_;
  std::uint64_t progress = progress_;
  // Counts tenths of a second, so that the beats' own cost is no progress.
  if (counts_computing_) progress += static_cast<std::uint64_t>(std::clock() * 10 / CLOCKS_PER_SEC);
  return {{"type", "alive"}, {"progress", progress}};
}

void RankLink::hear(json message) {
  const std::string type = member_text(message, "type");
  if (type == "abort") abort_->abort(member_number(message, "id"), member_text(message, "reason"));
  {
    const MutexLock lock(mutex_);
    if (type == "value") {
      const auto found = asked_.find(member_number(message, "id"));
      if (found != asked_.end()) found->second = std::move(message);
    } else if (type == "stop") {
      stopped_id_ = member_number(message, "id");
      if (stopped_id_ == request_id_) stop_.request_stop();
    } else if (type == "note") {
      log_warn("{}", member_text(message, "text"));
    } else if (type != "alive" && type != "welcome" && type != "abort") {
      requests_.push_back(std::move(message));
    }
  }
  changed_.notify_all();
}

void RankLink::lose(const Error& reason) {
  {
    const MutexLock lock(mutex_);
    lost_ = reason;
    stop_.request_stop();
  }
  changed_.notify_all();
  if (on_lost_) on_lost_();
}

void RankLink::send(const json& message) {
  const MutexLock lock(send_mutex_);
  if (!send_json(*line_, message, Clock::now() + limits::rank_send_wait)) line_->shut();
}

Result<json> RankLink::next() {
  const MutexLock lock(mutex_);
  while (requests_.empty() && !lost_) changed_.wait(mutex_);
  if (requests_.empty()) return *lost_;
  json message = std::move(requests_.front());
  requests_.pop_front();
  if (member_text(message, "type") == "end")
    return Error(Errc::cancelled, "the agent has asked this rank to end");
  request_id_ = member_number(message, "id");
  if (lost_) return *lost_;
  stop_ = std::stop_source();
  abort_->begin(request_id_);
  if (request_id_ == stopped_id_) stop_.request_stop();
  return message;
}

std::stop_token RankLink::stop_token() {
  const MutexLock lock(mutex_);
  return stop_.get_token();
}

void RankLink::answer(Result<json> message) {
  json sent = message ? std::move(*message) : rank_error(message.error());
  if (message) sent["type"] = "done";
  {
    const MutexLock lock(mutex_);
    sent["id"] = request_id_;
  }
  send(sent);
}

void RankLink::set(const std::string& key, std::string_view value) {
  send({{"type", "set"}, {"key", key_text(key)}, {"value", to_base64url(bytes_of(value))}});
}

Result<json> RankLink::ask_store(json request, TimePoint until) {
  std::uint64_t id = 0;
  {
    const MutexLock lock(mutex_);
    id = next_id_++;
    asked_[id] = std::nullopt;
  }
  request["id"] = id;
  send(request);
  const TimePoint end = std::min<TimePoint>(until, Clock::now() + std::chrono::hours(24));
  const MutexLock lock(mutex_);
  while (!asked_[id] && !lost_ && !abort_->is_on() && Clock::now() < end)
    changed_.wait_until(mutex_, end);
  const auto answer = std::exchange(asked_[id], std::nullopt);
  asked_.erase(id);
  if (answer) return *answer;
  if (lost_) return *lost_;
  if (const auto reason = abort_->reason()) return Error(Errc::unavailable, *reason);
  return Error(Errc::deadline, "no answer of the site's store in time");
}

Result<std::string> RankLink::get(const std::string& key, TimePoint until) {
  FL_TRY(const json answer,
         ask_store({{"type", "get"}, {"key", key_text(key)}, {"wait", 1U}}, until));
  return from_base64url(member_text(answer, "value"));
}

Result<bool> RankLink::has(const std::string& key, TimePoint until) {
  FL_TRY(const json answer,
         ask_store({{"type", "get"}, {"key", key_text(key)}, {"wait", 0U}}, until));
  return answer.contains("value");
}

Result<std::int64_t> RankLink::add(const std::string& key, std::int64_t amount, TimePoint until) {
  FL_TRY(const json answer,
         ask_store({{"type", "add"}, {"key", key_text(key)}, {"amount", amount}}, until));
  if (const auto sum = member_integer(answer, "sum")) return *sum;
  return Error(
      Errc::protocol,
      fmt::format("the site's store can't add {} to '{}': it holds no counter, or one that "
                  "would leave 64 bits",
                  amount, key));
}

Result<bool> RankLink::remove(const std::string& key, TimePoint until) {
  FL_TRY(const json answer, ask_store({{"type", "delete"}, {"key", key_text(key)}}, until));
  return answer.value("is_there", false);
}

}  // namespace fl::site
