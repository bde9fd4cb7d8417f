// SPDX-License-Identifier: Apache-2.0
// SiteHub: the agent's end of the conversation with the ranks of a site. It knows which ranks are
// there, and sends them requests, a line of JSON each (docs/design/sites.md). RankPort has the
// connections, and RendezvousStore what ranks tell each other through the agent. However many ranks
// there are, the hub has two threads: the port's, and one that tells of lost ranks, because what
// follows from a loss may take time.
#pragma once

#include "client/site/rank_port.hpp"
#include "client/site/rendezvous_store.hpp"
#include "client/site/site_member.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/async/mutex.hpp"
#include "shared/base/error.hpp"
#include "shared/base/json.hpp"
#include "shared/base/limits.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

namespace fl::site {

/// Any thread; ask() one at a time.
class SiteHub {
 public:
  struct Options {
    std::string host;        // Where to listen; "" for all addresses.
    std::uint16_t port = 0;  // 0: any.
    std::string secret;
    int size = 1;                               // Ranks of the site.
    Duration silence{};                         // A rank that is silent for so long is lost.
    Duration collective{};                      // How long a collective of the ranks may take.
    Duration progress = limits::rank_progress;  // Work that gets no further for so long hangs.
    Duration grace = limits::trainer_grace;     // Time to answer after that or a stop request.
    Duration greeting = limits::rank_greeting;  // From a connection to its hello.
    /// A rank is lost that leaves more bytes unsent.
    std::size_t unsent_bytes_max = limits::rank_unsent_bytes_max;
    /// Called on a thread of the hub, and may take time. The requests to this rank fail after it.
    std::function<void(int rank)> on_lost = {};
  };
  /// Errors: those of RankPort::open().
  [[nodiscard]] static Result<std::unique_ptr<SiteHub>> open(Options options);
  /// Ends all connections, upon which the ranks end.
  ~SiteHub();
  SiteHub(const SiteHub&) = delete;
  SiteHub& operator=(const SiteHub&) = delete;

  [[nodiscard]] std::uint16_t port() const { return port_->port(); }
  /// The ranks that are connected, by number.
  [[nodiscard]] std::vector<SiteMember> members() const;
  /// Waits until `count` ranks are connected, until `until`, or for a stop request.
  [[nodiscard]] std::vector<SiteMember> wait_for(std::size_t count, TimePoint until,
                                                 const std::stop_token& stop) const;

  struct Request {
    int rank = 0;
    nlohmann::json message;
    bool is_common = false;  // The ranks wait for each other in this work.
  };
  /// Sends the requests at the same time and returns an answer for each. After a stop request the
  /// ranks are asked to stop. Once one has failed, the others are told to end common work, and have
  /// the time of a collective left.
  /// A rank that does not answer in time is dropped; so is one whose connection lives while its
  /// work stands still for Options::progress. Errors in an answer: unavailable (the rank was lost,
  /// or it lost another), cancelled, and what else the rank says.
  [[nodiscard]] std::vector<Result<nlohmann::json>> ask(const std::vector<Request>& requests,
                                                        const std::stop_token& stop);
  /// Asks all ranks to end.
  void end_ranks();
  /// Puts a line into the log of every rank.
  void tell(const std::string& text);
  /// Forgets the store's keys.
  void clear_store();

 private:
  using Peer = RankPort::Peer;
  /// A request to one rank, and the answer once it is there.
  struct Asked {
    std::uint64_t id = 0;
    Peer peer;  // Without a connection's number if the rank was not there.
    bool is_common = false;
    bool is_told = false;  // To end, because another rank has failed.
    std::unique_ptr<Result<nlohmann::json>> answer;
    std::uint64_t progress = 0;  // The number in the rank's last beat.
    TimePoint moved{};           // When that number changed last.
  };
  struct Loss {
    Peer peer;
    Error reason;
  };

  explicit SiteHub(Options options);
  [[nodiscard]] Result<void> enter(const Peer& peer);
  [[nodiscard]] Result<void> hear(const Peer& peer, const nlohmann::json& message);
  void abort_others(const Asked& failed, const std::string& reason) FL_REQUIRES(mutex_);
  void take_progress(const Peer& peer, std::uint64_t progress);
  void take_answer(const Peer& peer, const nlohmann::json& message);
  [[nodiscard]] Result<void> use_store(const Peer& peer, const std::string& type,
                                       const nlohmann::json& message);
  void note_loss(const Peer& peer, const Error& reason);
  void tell_losses(const std::stop_token& stop);
  [[nodiscard]] std::optional<Loss> next_loss(const std::stop_token& stop);
  void leave(const Loss& loss);
  void send_all(const nlohmann::json& message);
  void send_asked(const std::vector<Request>& requests);
  void request_stop();
  void drop(const Peer& peer, const std::string& reason);
  void drop_silent();
  [[nodiscard]] TimePoint hangs_at() const FL_REQUIRES(mutex_);
  void drop_hanging();
  [[nodiscard]] bool all_answered() const FL_REQUIRES(mutex_);
  [[nodiscard]] std::vector<Result<nlohmann::json>> take_answers() FL_REQUIRES(mutex_);

  const Options options_;
  mutable Mutex mutex_;
  mutable StoppableCondition changed_;
  std::map<int, Peer> peers_ FL_GUARDED_BY(mutex_);  // By rank.
  std::vector<Asked> asked_ FL_GUARDED_BY(mutex_);
  std::uint64_t next_id_ FL_GUARDED_BY(mutex_) = 1;
  RendezvousStore store_ FL_GUARDED_BY(mutex_);
  /// Connections that have ended, until tell_losses() takes them.
  std::deque<Loss> losses_ FL_GUARDED_BY(mutex_);
  bool is_ending_ FL_GUARDED_BY(mutex_) = false;
  // Both end before the members above, which they use.
  std::unique_ptr<RankPort> port_;
  std::jthread thread_;  // Tells of losses.
};

}  // namespace fl::site
