// SPDX-License-Identifier: Apache-2.0
// A whole federation in one process: the real engine, sessions, store and agents run over simulated
// time, lines, disks and threads, with the faults that a seed or a test asks for. Processes may die
// between any two changes of their disks, and start again from what the disk kept. The same options
// give the same run, event for event.
//
//   World world(options);          // Or World(draw_options(seed)).
//   auto ended = world.run();      // Until the run is over and no coroutine is left.
//   auto right = check(world);     // The invariants (tests/world/check.hpp).
#pragma once

#include "client/agent/agent.hpp"
#include "server/round/engine.hpp"
#include "tests/support/memory_link.hpp"
#include "tests/support/sqlite_files_vfs.hpp"
#include "tests/world/process_files.hpp"
#include "tests/world/toy_trainer.hpp"

#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::client;
using namespace fl::server;

/// The faults of a federation. Each happens once, at a time drawn from the seed.
enum class Trouble {
  cut,             // A line breaks.
  silence,         // A line falls silent: both ends notice after limits::liveness_max.
  slow,            // A line becomes slow.
  lie,             // The next chunk on a line is duplicated, dropped, swapped or changed.
  server_restart,  // A clean stop and start.
  server_kill,     // kill -9, at once or at a change of its disk.
  server_power,    // A crash with a power loss: unsynced data are lost.
  server_disk,     // An operation on the disk fails.
  server_sync,     // A sync fails, and what it should have written is lost at the next power loss.
  server_full,     // The disk is full for a while.
  client_kill,
  client_power,
  client_disk,
  client_sync,
  client_full,
};

/// The attack of a malicious member. It is a trainer with 50 examples, and lives as long as the
/// run.
enum class Malice {
  claims,        // Announces updates with impossible figures.
  flood,         // Answers an offer with hundreds of messages about the tasks of others.
  twice,         // Sends a right update and, once it is accepted, the same again.
  silence,       // Answers nothing. Only for runs with a deadline.
  wrong_digest,  // Sends other bytes than it announces. Only for runs with a deadline.
};

/// The default settings with codec "none", so that updates are exact.
inline RunSettings fp32_settings() {
  RunSettings settings;
  settings.codec = "none";
  return settings;
}

struct WorldOptions {
  std::uint64_t seed = 1;  // For lines, pauses and troubles; settings.seed is for training.
  RunSettings settings = fp32_settings();
  ToyProblem problem = ToyProblem::make(200, 1);
  struct Member {
    std::string name;
    ToyTrainer::Part part;
    bool evaluator = false;
  };
  std::vector<Member> members;
  std::vector<Trouble> troubles;
  std::vector<Malice> malicious;  // Members "mallory-1", ...
  /// No round begins until so many sessions are here, the first time.
  std::size_t sessions_first = 0;
  Duration pause_max = std::chrono::milliseconds(30);  // Before each job of a worker.
  Duration latency_max = std::chrono::milliseconds(60);
  double bytes_per_s_min = 200e3;
  bool is_verbose = false;  // Prints the trace.

  /// True if all clients are in every round, with no deadline and one codec. Then troubles do not
  /// change the result.
  [[nodiscard]] bool is_steady() const;
  [[nodiscard]] bool is_masked() const { return settings.secure_aggregation.starts_with("on"); }
};

/// In a masked world: a member's site key, and the signed list of all trainers.
[[nodiscard]] secure::Secret site_key_of(const std::string& name);
[[nodiscard]] std::string member_list_of(const WorldOptions& options);

/// Draws a federation of 2 to 6 trainers with its codecs, settings and troubles from the seed.
[[nodiscard]] WorldOptions draw_options(std::uint64_t seed);

class World {
 public:
  struct Client {
    explicit Client(WorldOptions::Member who) : member(std::move(who)) {}
    WorldOptions::Member member;
    MemFiles disk;
    std::map<Round, std::vector<float>> updates;  // As last trained, by round.
    std::map<std::int64_t, Round> saved;          // Tasks whose update was pending in a manifest.
    std::optional<std::int64_t> unsure;           // The newest such task; a power loss may undo it.
    std::vector<std::int64_t> acknowledged;  // Tasks whose verdict "accepted" reached the client.
    bool may_fail = false;                   // The client's process may end with an error.
    int starts = 0;
    Result<client::Agent::Outcome> outcome = client::Agent::Outcome::stopped;
    bool is_over = false;

   private:
    friend class World;
    struct Process;
    std::vector<std::shared_ptr<Process>> processes;  // Only the last one can be alive.
    bool power_loss = false;
    bool is_excused = false;  // A fault of its disk is planned, so it may end with an error.
    bool comes_back = false;  // Start it again after it has stopped.
  };

  explicit World(WorldOptions options);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// Runs until the run is over and no coroutine is left. Returns an error for a deadlock, a run
  /// beyond the bound of simulated time, a process that ended without cause, or a leak. An
  /// exception ends the test program with its text, as it would end the real program.
  Result<void> run() noexcept;

  // For scripted tests. These may be set or called before or during run(). ---------------------

  /// Called for each new connection. May change the lines (up: from the client). Returns false to
  /// make the connection fail.
  std::function<bool(const std::string& client, Line& up, Line& down)> on_connect;
  /// Called for each frame when it is handed to a line.
  std::function<void(const std::string& client, bool is_up, const wire::Header&)> on_frame;
  /// Called with each trained update of a member; may change it.
  std::function<void(const std::string& client, const TrainSettings&, std::span<float> update)>
      on_trained;

  void set_wall_clock(double by) { time_.set_wall_clock(by); }
  void kill_server(bool power_loss);
  /// Kills the server instead of the n-th change of its disk from now.
  void kill_server_at(std::uint64_t n, bool power_loss);
  void stop_server();
  void kill_client(const std::string& name, bool power_loss);
  void restart_client(const std::string& name);  // A clean stop and start, as by Ctrl-C.
  void kill_client_at(Client& client, std::uint64_t n, bool power_loss);
  /// Connects a client that the test plays. Returns null while there is no server.
  std::shared_ptr<MemoryLink> connect(net::any_io_executor executor, const std::string& client,
                                      Line up = {}, Line down = {});
  /// Whether connect() was called for a client that is not a member.
  [[nodiscard]] bool has_played_clients() const { return has_played_clients_; }
  [[nodiscard]] MemoryLink* link_of(const std::string& client);  // The client's end, or null.
  /// Revokes the client's certificate, on the engine's strand. Does nothing while there is no
  /// server.
  void revoke(const std::string& client);
  void pardon(const std::string& client);
  [[nodiscard]] RoundEngine* engine();  // Null while there is no server.
  [[nodiscard]] MemFiles& server_disk() { return server_disk_; }
  /// Call when a fault of the server's disk is planned: the server may end with an error once.
  void expect_trouble() { is_server_excused_ = true; }
  void spawn(Awaitable<void> task);
  [[nodiscard]] net::io_context& io() { return io_; }
  [[nodiscard]] int server_starts() const { return server_starts_; }
  /// Whether the last server ended by a power loss. Then its disk may have files that the next
  /// start would remove.
  [[nodiscard]] bool has_lost_power() const { return has_lost_power_; }
  void note(const std::string& text);

  // Observations for the checks. ---------------------------------------------------------------

  [[nodiscard]] const WorldOptions& options() const { return options_; }
  [[nodiscard]] std::map<std::string, Client>& clients() { return clients_; }
  /// The contents of each spool file when the server removed or renamed it, by name. A name may
  /// occur more than once, for example if garbage after a power loss was overwritten.
  [[nodiscard]] const std::map<std::string, std::vector<std::string>>& spooled() const {
    return spooled_;
  }
  /// Bytes that all clients, or the server, have handed to lines.
  [[nodiscard]] std::uint64_t bytes_up() const { return bytes_up_; }
  [[nodiscard]] std::uint64_t bytes_down() const { return bytes_down_; }
  [[nodiscard]] Digest trace() const { return trace_.digest(); }
  [[nodiscard]] Duration elapsed() const { return time_.elapsed(); }

 private:
  struct Server;
  friend struct Client::Process;

  // Processes (world.cpp) and the clients' manifests (manifest.cpp).
  Awaitable<void> live_as_server();
  Result<void> boot(Server& server);
  Awaitable<void> wait_for_sessions(Server& server);
  Awaitable<void> live_as_client(Client& client);
  void boot(Client& client);
  void watch_manifest(Client& client, const std::filesystem::path& path);
  void settle_manifest(Client& client);
  void bury();

  /// A malicious member's life (malice.cpp).
  Awaitable<void> live_as_malicious(std::string name, Malice malice);

  // Troubles (trouble.cpp).
  Awaitable<void> make_trouble();
  void strike(Trouble trouble);
  Awaitable<void> fill_disk(MemFiles& disk);
  Awaitable<void> end_later(std::weak_ptr<MemoryLink> liar);
  Client& some_client();
  MemoryLink* some_link();
  [[nodiscard]] std::uint64_t below(std::uint64_t bound);  // 0 to bound - 1.
  [[nodiscard]] Duration draw_duration(Duration max);
  void complain(const std::string& what);

  WorldOptions options_;
  SimulatedTime time_;
  net::io_context io_{1};
  std::mt19937_64 random_;
  MemFiles server_disk_;
  std::map<std::string, Client> clients_;
  std::vector<std::unique_ptr<Server>> servers_;
  std::map<std::string, std::vector<std::string>> spooled_;
  Hasher trace_;
  Signal changed_;  // A process died or ended.
  std::optional<Error> complaint_;
  std::uint64_t bytes_up_ = 0;
  std::uint64_t bytes_down_ = 0;
  bool power_loss_ = false;
  bool has_lost_power_ = false;
  bool is_server_excused_ = false;
  bool has_played_clients_ = false;
  int server_starts_ = 0;
  bool server_is_over_ = false;
  int lives_ = 0;  // Running coroutines of the world itself.
};

}  // namespace fl::test
