// SPDX-License-Identifier: Apache-2.0
// The clients of a run, one record for each name: its session if it is here, what it has sent and
// received, whether it is waited for, and how many updates it has sent. On the engine's strand.
#pragma once

#include "server/host/peer.hpp"
#include "server/round/bench.hpp"
#include "shared/base/async/clock.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace fl::server {

/// Bytes, as Link counts them.
struct Traffic {
  std::uint64_t up = 0;    // Bytes from clients.
  std::uint64_t down = 0;  // Bytes to clients.
  bool operator==(const Traffic&) const = default;
};

class Roster {
 public:
  using PeerPointer = std::shared_ptr<Peer>;

  /// `ahead`: how many updates a client may be ahead of the slowest one here (RoundMode::ahead);
  /// 0: no limit.
  explicit Roster(std::uint32_t ahead) : ahead_(ahead) {}

  // Sessions --------------------------------------------------------------------------------------

  /// Adds a session. It replaces an earlier one of the same client, which the caller has ended
  /// (leave()).
  void enter(PeerPointer peer);
  /// Removes a session. Returns false if a newer session has replaced this one: then nothing
  /// changes. Without `for_good` the client is expected back for limits::farewell_max.
  bool leave(const PeerPointer& peer, bool for_good);
  /// The client's open session; null while it is not here.
  [[nodiscard]] PeerPointer find(const std::string& client) const;
  /// All open sessions, by the clients' names.
  [[nodiscard]] std::vector<PeerPointer> here() const;
  [[nodiscard]] std::vector<PeerPointer> trainers() const;
  [[nodiscard]] std::size_t sessions() const { return sessions_; }
  [[nodiscard]] std::size_t trainer_count() const { return trainers_; }
  [[nodiscard]] std::size_t evaluator_count() const { return sessions_ - trainers_; }
  /// Counts that a session of the client was displaced by another. True once it happened
  /// limits::displaced_max times within limits::displaced_window: probably two programs use one
  /// identity.
  bool count_displacement(const std::string& client);
  /// True once for each session: it is to be told the digest of the initial model now.
  [[nodiscard]] bool take_initial_notice(const std::string& client);

  // Absence ---------------------------------------------------------------------------------------

  /// Waits for the client for limits::farewell_max.
  void expect_back(const std::string& client);
  /// Whether the client is here, or expected back.
  [[nodiscard]] bool is_awaited(const std::string& client) const;
  /// Gives up the expected clients whose time is over. Returns the end of the next one's time;
  /// `never` if there is none.
  TimePoint expire_absences();
  [[nodiscard]] std::size_t absent_count() const;

  /// Expels a client that was revoked, or whose name was enrolled anew: nobody waits for its tasks.
  void expel(const std::string& client, const std::string& reason);
  /// Names and reasons of expelled clients that have not come back since.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> expelled() const;
  /// Why the client was expelled; "": it was not, or has come back since.
  [[nodiscard]] std::string why_expelled(const std::string& client) const;

  /// Notes why a client can't take part in the run, until it can. Returns false if that is known.
  bool turn_away(const std::string& client, const std::string& why);
  /// Names and reasons of the clients that can't take part.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> turned_away() const;

  // Traffic ---------------------------------------------------------------------------------------

  /// The client's traffic in all its sessions since this process began the run.
  [[nodiscard]] Traffic traffic_of(const std::string& client) const;
  [[nodiscard]] Traffic traffic() const;
  /// The traffic that the last recorded round has counted; before the first round, traffic().
  [[nodiscard]] Traffic recorded_traffic() const { return recorded_traffic_.value_or(traffic()); }
  void set_recorded_traffic(Traffic traffic) { recorded_traffic_ = traffic; }

  // Pace: bounded staleness (SSP) of an asynchronous run ------------------------------------------

  void set_update_counts(const std::map<std::string, std::uint64_t>& counts);
  /// Counts an accepted update. Its client has no misses any more.
  void count_update(const std::string& client);
  /// trainers_to_ask() without those that must wait for the slowest one. Nobody waits for a client
  /// with limits::misses_max misses.
  [[nodiscard]] std::vector<PeerPointer> trainers_in_pace(std::size_t least) const;

  // Clients without updates that count ------------------------------------------------------------

  /// The clients that are not asked for a while.
  [[nodiscard]] Bench& bench() { return bench_; }
  [[nodiscard]] const Bench& bench() const { return bench_; }
  /// The client, or the check of its update, has said why there is no update that counts.
  void note_failure(const std::string& client, const std::string& reason);
  /// Why the run can't go on: all trainers that are here, and they are at least `least`, have
  /// failed limits::failures_alike_max times in a row, each time for this reason, numbers in it
  /// aside. "" otherwise.
  [[nodiscard]] std::string common_failure(std::size_t least) const;
  /// The trainers that are here and may be asked, sorted by name. If these are fewer than `least`:
  /// all trainers that are here.
  [[nodiscard]] std::vector<PeerPointer> trainers_to_ask(std::size_t least) const;

 private:
  struct Client {
    PeerPointer peer;  // Null while it is not here.
    Traffic departed;  // Traffic of its ended sessions.
    std::optional<TimePoint> absent_until;
    std::optional<std::string> expelled;  // Why the client was expelled.
    std::string turned_away;              // Why it can't take part; "": nothing speaks against it.
    std::uint64_t updates = 0;            // Accepted updates, raised by join_pace().
    bool knows_initial = false;           // This session was told the initial model's digest.
    TimePoint displaced_since{};
    int displaced = 0;
    int failures = 0;          // Failures in a row of this kind.
    std::string failure_kind;  // The reason without its numbers.
    std::string failure;       // The reason, as it was told last.
  };

  void join_pace(const std::string& client);
  [[nodiscard]] bool is_trainer(const Client& client) const {
    return client.peer && !client.peer->facts().evaluator;
  }

  std::uint32_t ahead_;
  Bench bench_;
  std::map<std::string, Client> clients_;
  std::size_t sessions_ = 0;
  std::size_t trainers_ = 0;
  std::optional<Traffic> recorded_traffic_;
};

}  // namespace fl::server
