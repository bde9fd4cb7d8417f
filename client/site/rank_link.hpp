// SPDX-License-Identifier: Apache-2.0
// RankLink: a rank's connection to the agent of its site. The agent asks for work through it, and
// the ranks find each other through the store at its other end.
#pragma once

#include "client/learn/process/json_line.hpp"
#include "client/site/abort_switch.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/async/mutex.hpp"
#include "shared/base/error.hpp"
#include "shared/base/json.hpp"

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

namespace fl::site {

/// Any thread.
class RankLink {
 public:
  struct Options {
    std::string host;
    std::uint16_t port = 0;
    std::string secret;
    int rank = 0;
    int size = 1;
    Duration silence{};                  // An agent that is silent for so long is lost.
    TimePoint until = never;             // Until then connecting is tried again.
    std::function<void()> on_lost = {};  // Called when the agent is lost, on a thread of the link.
  };
  /// Errors: unauthenticated; conflict (the agent refuses this rank, with its reason); unavailable.
  [[nodiscard]] static Result<std::unique_ptr<RankLink>> connect(const Options& options);
  ~RankLink();
  RankLink(const RankLink&) = delete;
  RankLink& operator=(const RankLink&) = delete;

  /// Waits for the agent's next request. Errors: cancelled if the agent asks this rank to end,
  /// unavailable if it is lost.
  [[nodiscard]] Result<nlohmann::json> next();
  /// Stops when the agent asks to stop the request that next() returned last, or is lost.
  [[nodiscard]] std::stop_token stop_token();
  /// Notes that the work which next() returned last has come further; the next beat tells the
  /// agent. Any thread.
  void advance() { ++progress_; }
  /// From now on the time that this process computes counts as progress, or no longer: for work
  /// that has no parts to count, but does nothing else than compute and read.
  void count_computing(bool counts) { counts_computing_ = counts; }
  /// From now on each beat is progress, or no longer: while this rank rightly waits for another
  /// one's work, which has a time limit of its own.
  void count_waiting(bool counts) { counts_waiting_ = counts; }
  /// The agent turns it on when another rank that does the same work is lost. Then get() and its
  /// like end too.
  [[nodiscard]] const std::shared_ptr<AbortSwitch>& abort_switch() const { return abort_; }
  /// Answers that request: with "type": "done" and "id" added, or with the error.
  void answer(Result<nlohmann::json> message);

  /// This machine's address on the way to the agent; "" if the agent is on this machine and was
  /// reached by an address of it alone.
  [[nodiscard]] std::string own_address() const;

  // The store. Keys and values are any bytes. All ranks see the same keys.
  void set(const std::string& key, std::string_view value);
  /// Waits until `until` for the key. Errors: deadline; unavailable (the agent is lost, or the work
  /// was aborted).
  [[nodiscard]] Result<std::string> get(const std::string& key, TimePoint until);
  /// Whether the key is there. Errors: as get().
  [[nodiscard]] Result<bool> has(const std::string& key, TimePoint until);
  /// Adds to a number, which begins at 0, and returns the sum. Errors: as get().
  [[nodiscard]] Result<std::int64_t> add(const std::string& key, std::int64_t amount,
                                         TimePoint until);
  /// Returns whether the key was there. Errors: as get().
  [[nodiscard]] Result<bool> remove(const std::string& key, TimePoint until);

 private:
  RankLink(std::unique_ptr<SocketLine> line, const Options& options);
  void receive_all(const std::stop_token& stop);
  void hear(nlohmann::json message);
  void lose(const Error& reason);
  void send(const nlohmann::json& message);
  [[nodiscard]] nlohmann::json beat();
  /// Asks the store and waits for its answer.
  [[nodiscard]] Result<nlohmann::json> ask_store(nlohmann::json request, TimePoint until);

  std::unique_ptr<SocketLine> line_;
  const Duration silence_;
  const std::function<void()> on_lost_;
  const std::shared_ptr<AbortSwitch> abort_ = std::make_shared<AbortSwitch>();
  std::atomic<std::uint64_t> progress_ = 0;
  std::atomic<bool> counts_computing_ = false;
  std::atomic<bool> counts_waiting_ = false;
  Mutex send_mutex_;  // Held while a message is sent: the messages of two threads must not mix.
  Mutex mutex_;
  Condition changed_;
  std::deque<nlohmann::json> requests_ FL_GUARDED_BY(mutex_);
  /// The store's answers by id.
  std::map<std::uint64_t, std::optional<nlohmann::json>> asked_ FL_GUARDED_BY(mutex_);
  std::uint64_t next_id_ FL_GUARDED_BY(mutex_) = 1;
  std::uint64_t request_id_ FL_GUARDED_BY(mutex_) = 0;  // The request that next() returned last.
  std::uint64_t stopped_id_ FL_GUARDED_BY(mutex_) = 0;  // The request that is to stop.
  std::stop_source stop_ FL_GUARDED_BY(mutex_);
  std::optional<Error> lost_ FL_GUARDED_BY(mutex_);
  std::jthread thread_;
};

}  // namespace fl::site
