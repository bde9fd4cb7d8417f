// SPDX-License-Identifier: Apache-2.0
// SiteHub: the agent's end of its connections to the ranks of a site. It knows which ranks are
// there, keeps the store through which they find each other (a c10d store, whose other end is
// RankLink), and sends them requests, a line of JSON each (docs/design/sites.md).
#pragma once

#include "client/learn/process/tcp.hpp"
#include "client/site/site_member.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/error.hpp"
#include "shared/base/json.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/line_limit.hpp"
#include "shared/net/strangers.hpp"

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

namespace fl {

/// Any thread; ask() one at a time.
class SiteHub {
 public:
  struct Options {
    std::string host;        // Where to listen; "" for all addresses.
    std::uint16_t port = 0;  // 0: any.
    std::string secret;
    int size = 1;                                // Ranks of the site.
    Duration silence{};                          // A rank that is silent for so long is lost.
    Duration collective{};                       // How long a collective of the ranks may take.
    Duration progress = limits::rank_progress;   // Work that gets no further for so long hangs.
    Duration grace = limits::trainer_grace;      // Time to answer after that or a stop request.
    std::function<void(int rank)> on_lost = {};  // Called on a thread of the hub.
  };
  /// Errors: those of TcpListener::make().
  [[nodiscard]] static Result<std::unique_ptr<SiteHub>> open(Options options);
  /// Ends all connections, upon which the ranks end.
  ~SiteHub();
  SiteHub(const SiteHub&) = delete;
  SiteHub& operator=(const SiteHub&) = delete;

  [[nodiscard]] std::uint16_t port() const { return listener_.port(); }
  /// The ranks that are connected, by number.
  [[nodiscard]] std::vector<SiteMember> members() const;
  /// Waits until `count` ranks are connected, until `until`, or for a stop request.
  [[nodiscard]] std::vector<SiteMember> wait_for(std::size_t count, TimePoint until,
                                                 const std::stop_token& stop) const;

  struct Request {
    int rank = 0;
    nlohmann::json message;
  };
  /// Sends the requests at the same time and returns an answer for each. After a stop request the
  /// ranks are asked to stop. Once one has failed, the others have the time of a collective left.
  /// A rank that does not answer in time is dropped; so is one whose connection lives while its
  /// work stands still for Options::progress. Errors in an answer: unavailable (the rank was lost,
  /// or it lost another), cancelled, and what else the rank says.
  [[nodiscard]] std::vector<Result<nlohmann::json>> ask(const std::vector<Request>& requests,
                                                        const std::stop_token& stop);
  /// Ends a rank's connection.
  void drop(int rank, const std::string& reason);
  /// Asks all ranks to end.
  void end_ranks();
  /// Puts a line into the log of every rank.
  void tell(const std::string& text);
  /// Forgets the store's keys.
  void clear_store();

 private:
  struct Peer;
  using PeerPtr = std::shared_ptr<Peer>;
  /// A request to one rank, and the answer once it is there.
  struct Asked {
    std::uint64_t id = 0;
    PeerPtr peer;  // Null if the rank was not there.
    std::unique_ptr<Result<nlohmann::json>> answer;
    std::uint64_t progress = 0;  // The number in the rank's last beat.
    TimePoint moved{};           // When that number changed last.
  };
  struct Waiter {
    PeerPtr peer;
    std::uint64_t id = 0;
    std::string key;
  };

  SiteHub(Options options, TcpListener listener);
  void accept_all(const std::stop_token& stop);
  void take(Descriptor socket);
  void end_strangers();
  void serve(const PeerPtr& peer, const std::stop_token& stop);
  [[nodiscard]] Result<void> greet(Peer& peer);
  [[nodiscard]] Result<void> enter(const PeerPtr& peer);
  void warn_of_stranger(const Error& error);
  void leave(const PeerPtr& peer, const Error& reason);
  void hear(const PeerPtr& peer, const nlohmann::json& message);
  void take_progress(const PeerPtr& peer, std::uint64_t progress);
  void take_answer(const PeerPtr& peer, const nlohmann::json& message);
  void use_store(const PeerPtr& peer, const std::string& type, const nlohmann::json& message);
  [[nodiscard]] std::vector<Waiter> set_key(const std::string& key, const std::string& value);
  void send_all(const nlohmann::json& message);
  void send_asked(const std::vector<Request>& requests);
  void request_stop();
  void drop_silent();
  [[nodiscard]] TimePoint hangs_at() const;
  void drop_hanging();
  [[nodiscard]] bool all_answered() const;
  [[nodiscard]] bool has_failure() const;

  const Options options_;
  TcpListener listener_;
  mutable std::mutex mutex_;  // Guards the members between it and the thread.
  mutable std::condition_variable_any changed_;
  std::map<int, PeerPtr> peers_;   // By rank.
  std::set<PeerPtr> connections_;  // Ranks, and connections that have not said hello.
  /// Connections whose peer has not proven yet that it knows the secret.
  Strangers strangers_;
  std::map<Strangers::Id, PeerPtr> unproven_;
  std::vector<Asked> asked_;
  std::uint64_t next_id_ = 1;
  std::map<std::string, std::string> store_;
  std::vector<Waiter> waiters_;
  LineLimit stranger_lines_{
      {.lines_max = limits::rank_stranger_lines_max, .window = limits::lines_window}};
  bool is_ending_ = false;
  std::jthread thread_;
};

}  // namespace fl
