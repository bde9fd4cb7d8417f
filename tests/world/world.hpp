// A whole federation in one process: the real engine, sessions, store and agents over simulated
// time, lines, disks and threads, and the faults that a seed or a test asks for. Processes die
// between any two changes of their disks and start again from what the disk kept. The same options
// give the same run, event for event.
//
//   World world(options);          // Or World(draw_options(seed)).
//   auto ended = world.run();      // Until the run is over and nothing moves any more.
//   auto right = check(world);     // tests/world/check.hpp: the invariants.
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

/// What can happen to a federation. Each strikes once, at a moment drawn from the seed.
enum class Trouble {
  cut,             // A line breaks.
  silence,         // A line falls silent: both ends notice after limits::liveness_max.
  slow,            // A line becomes slow.
  lie,             // The next chunk on a line is duplicated, dropped, swapped or changed.
  server_restart,  // A clean stop and start.
  server_kill,     // kill -9, at once or at a change of its disk.
  server_power,    // The same with the loss of what was not synced.
  server_disk,     // An operation on the disk fails.
  server_sync,     // A sync fails, and what it should have written is lost at the next power loss.
  server_full,     // The disk is full for a while.
  client_kill,
  client_power,
  client_disk,
  client_sync,
  client_full,
};

/// The default settings but for the codec: what a client's update does is then exact.
inline RunSettings fp32_settings() {
  RunSettings settings;
  settings.codec = "none";
  return settings;
}

struct WorldOptions {
  std::uint64_t seed = 1;  // Of lines, pauses and troubles; the training's is settings.seed.
  RunSettings settings = fp32_settings();
  ToyProblem problem = ToyProblem::make(200, 1);
  struct Member {
    std::string name;
    ToyTrainer::Part part;
    bool evaluator = false;
  };
  std::vector<Member> members;
  std::vector<Trouble> troubles;
  Duration pause_max = std::chrono::milliseconds(30);  // Of a worker, before each piece of work.
  Duration latency_max = std::chrono::milliseconds(60);
  double bytes_per_s_min = 200e3;
  bool is_verbose = false;  // Prints the trace.

  /// All clients in every round, no deadline, one codec: what happens on the way does not change
  /// the result.
  [[nodiscard]] bool is_steady() const;
};

/// A federation of 2 to 6 clients with the codecs, settings and troubles that the seed draws.
[[nodiscard]] WorldOptions draw_options(std::uint64_t seed);

class World {
 public:
  struct Client {
    explicit Client(WorldOptions::Member who) : member(std::move(who)) {}
    WorldOptions::Member member;
    MemFiles disk;
    std::map<Round, std::vector<float>> updates;  // As trained, by round: the newest.
    std::map<std::int64_t, Round> saved;     // Tasks whose update a manifest on disk has named.
    std::optional<std::int64_t> unsure;      // Named, but a power loss may take it back.
    std::vector<std::int64_t> acknowledged;  // Tasks that the client was told are accepted.
    bool may_fail = false;                   // Its process may end with an error.
    int starts = 0;
    Result<Agent::Outcome> outcome = Agent::Outcome::stopped;
    bool is_over = false;

   private:
    friend class World;
    struct Process;
    std::vector<std::shared_ptr<Process>> processes;  // The last one lives, if it is not dead.
    bool power_loss = false;
    bool is_excused = false;  // A fault of its disk is under way.
    bool comes_back = false;  // When it has stopped.
  };

  explicit World(WorldOptions options);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// Runs to the end of the run and until nothing moves. An error is a deadlock, a run past the
  /// bound of simulated time, a process that ended without cause, or a leak. An exception ends the
  /// test with its text, as it would end the program.
  Result<void> run() noexcept;

  // For scripts. All of these may be set or called before run() or from within it. -------------

  /// Called for each new connection: may change the lines (up: from the client) and says, with
  /// false, that the connection fails.
  std::function<bool(const std::string& client, Line& up, Line& down)> on_connect;
  /// Called for every frame that is handed to a line.
  std::function<void(const std::string& client, bool is_up, const wire::Header&)> on_frame;
  /// What every member's trainer makes may be changed here.
  std::function<void(const std::string& client, const TrainSettings&, std::span<float> update)>
      on_trained;

  void kill_server(bool power_loss);
  /// In place of the n-th change of its disk from now.
  void kill_server_at(std::uint64_t n, bool power_loss);
  void stop_server();
  void kill_client(const std::string& name, bool power_loss);
  void restart_client(const std::string& name);  // As after Ctrl-C: it stops in good order.
  void kill_client_at(Client& client, std::uint64_t n, bool power_loss);
  /// A connection for a test's own client; null while there is no server.
  std::shared_ptr<MemoryLink> connect(net::any_io_executor executor, const std::string& client,
                                      Line up = {}, Line down = {});
  [[nodiscard]] MemoryLink* link_of(const std::string& client);  // The client's end, or null.
  /// The server takes the client's certificate back, on the engine's strand. Nothing while there is
  /// no server.
  void revoke(const std::string& client);
  [[nodiscard]] RoundEngine* engine();  // Null while there is no server.
  [[nodiscard]] MemFiles& server_disk() { return server_disk_; }
  /// The server may end with an error once: a fault of its disk is planned.
  void expect_trouble() { is_server_excused_ = true; }
  void spawn(Awaitable<void> task);
  [[nodiscard]] net::io_context& io() { return io_; }
  [[nodiscard]] int server_starts() const { return server_starts_; }
  /// Whether the last server ended so: then its disk may hold what the next start would remove.
  [[nodiscard]] bool has_lost_power() const { return has_lost_power_; }
  void note(const std::string& text);

  // What was seen, for the checks. -------------------------------------------------------------

  [[nodiscard]] const WorldOptions& options() const { return options_; }
  [[nodiscard]] std::map<std::string, Client>& clients() { return clients_; }
  /// What spool files held when the server took their names away. A name may come back: after a
  /// power loss, as garbage that has been written over.
  [[nodiscard]] const std::map<std::string, std::vector<std::string>>& spooled() const {
    return spooled_;
  }
  /// Handed to lines by all clients, and by the server.
  [[nodiscard]] std::uint64_t bytes_up() const { return bytes_up_; }
  [[nodiscard]] std::uint64_t bytes_down() const { return bytes_down_; }
  [[nodiscard]] Digest trace() const { return trace_.digest(); }
  [[nodiscard]] Duration elapsed() const { return time_.elapsed(); }

 private:
  struct Server;
  friend struct Client::Process;

  // Life and death (world.cpp; what the clients' manifests say, in manifest.cpp).
  Awaitable<void> live_as_server();
  Result<void> boot(Server& server);
  Awaitable<void> wait_for_sessions(Server& server);
  Awaitable<void> live_as_client(Client& client);
  void boot(Client& client);
  void watch_manifest(Client& client, const std::filesystem::path& path);
  void settle_manifest(Client& client);
  void bury();

  // Trouble (trouble.cpp).
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
  int server_starts_ = 0;
  bool server_is_over_ = false;
  int lives_ = 0;  // Coroutines of the world itself.
};

}  // namespace fl::test
