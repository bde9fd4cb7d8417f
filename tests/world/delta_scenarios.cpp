// SPDX-License-Identifier: Apache-2.0
// Codecs with "delta+": clients send the difference between an update and their last accepted one.
// The tests check which reference both ends use, also when one end has lost it, and that the model
// ends where it ends without a codec.
#include "tests/world/scenario.hpp"

#include <cmath>

namespace fl::test {
namespace {

using namespace std::chrono_literals;

WorldOptions deltas(std::string codec, Round rounds) {
  WorldOptions options = calm(3);
  options.settings.codec = std::move(codec);
  options.settings.rounds = rounds;
  return options;
}

/// The accepted tasks of a client, round by round.
std::vector<TaskRecord> accepted_of(World& world, const std::string& client) {
  std::vector<TaskRecord> out;
  for (Round round = 1; round <= world.options().settings.rounds; ++round) {
    for (const TaskRecord& task : tasks_of(world, round)) {
      if (task.client == client && task.state == TaskState::accepted) out.push_back(task);
    }
  }
  return out;
}

/// Checks that each task's reference is the task before it, and that tasks in the rounds of `anew`
/// have no reference.
void check_chain(const std::vector<TaskRecord>& tasks, const std::vector<Round>& anew) {
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    CAPTURE(tasks[i].client);
    CAPTURE(tasks[i].round);
    const bool is_anew = std::ranges::find(anew, tasks[i].round) != anew.end();
    CHECK(tasks[i].reference == (is_anew ? TaskId::none : tasks[i - 1].id));
  }
}

}  // namespace

TEST_CASE("each delta refers to the update before it, and the coding error falls") {
  const WorldOptions options = deltas("delta+topk:0.3,dense_below=0", 8);
  World world(options);
  REQUIRE(world.run());
  CHECK(check(world));
  for (const auto& [name, client] : world.clients()) {
    const auto tasks = accepted_of(world, name);
    REQUIRE(tasks.size() == 8);
    check_chain(tasks, {1});
    CHECK(tasks.back().nmse < tasks.front().nmse / 2);
  }
}

TEST_CASE("with deltas the model converges to the optimum, although the codec is biased") {
  // The clients have different optima, so each client's update stays large. A biased codec loses a
  // part of it in every round. A delta's error goes to zero (EF21, theorem 1).
  const auto distance = [](const std::string& codec) {
    WorldOptions options = deltas(codec, 40);
    options.settings.lr = 0.1;
    World world(options);
    REQUIRE(world.run());
    const auto history = History::open(world);
    REQUIRE(history);
    const auto last = history->store->rounds().checkpoints(history->run.id).value().back();
    const auto version =
        open_version(world.server_disk(), "/state/checkpoints", last, options.problem.layout)
            .value();
    std::vector<float> model(options.problem.layout.elements());
    REQUIRE(read_values(*version, 0, model));
    double squares = 0;
    for (std::size_t i = 0; i < model.size(); ++i) {
      double optimum = 0;
      for (std::uint32_t client = 0; client < 3; ++client)
        optimum += options.problem.point(client)[i] / 3.0;
      squares += (model[i] - optimum) * (model[i] - optimum);
    }
    return std::sqrt(squares / static_cast<double>(model.size()));
  };
  const double delta = distance("delta+topk:0.1,dense_below=0");
  CHECK(delta < 0.01);
  CHECK(distance("topk:0.1,dense_below=0") > 10 * delta);
}

TEST_CASE("after either end has lost a reference, the client sends its next update whole") {
  enum class Loss { clients_manifest, clients_file, clients_half, servers_file, servers_half };
  for (const Loss loss : {Loss::clients_manifest, Loss::clients_file, Loss::clients_half,
                          Loss::servers_file, Loss::servers_half}) {
    CAPTURE(static_cast<int>(loss));
    World world(deltas("delta+qsgd:8", 6));
    MemFiles& clients = world.clients().at("client-1").disk;
    // A client also has the one before, which the next one is written over.
    const auto references_in = [](MemFiles& disk, const std::string& folder,
                                  const std::string& prefix) {
      std::vector<std::string> files;
      for (const auto& name : disk.list(folder).value())
        if (name.starts_with(prefix)) files.push_back(folder + "/" + name);
      return files;
    };
    const auto halve = [](MemFiles& disk, const std::vector<std::string>& files) {
      for (const auto& file : files)
        REQUIRE(disk.open(file, OpenMode::update).value()->truncate(100));
    };
    const auto remove = [](MemFiles& disk, const std::vector<std::string>& files) {
      for (const auto& file : files) REQUIRE(disk.remove(file));
    };
    bool is_lost = false;
    world.on_frame = [&](const std::string& client, bool is_up, const wire::Header& header) {
      const bool is_time = is_up && header.has_fetch() && header.fetch().version() == 3;
      if (is_lost || !is_time || client != "client-1") return;
      is_lost = true;
      const bool is_clients = loss <= Loss::clients_half;
      if (is_clients) {
        world.kill_client(client, false);
      } else {
        world.kill_server(false);
      }
      auto files = is_clients ? references_in(clients, "/state", "reference-")
                              : references_in(world.server_disk(), "/state/references", "");
      REQUIRE(!files.empty());
      if (!is_clients) files.resize(1);  // One client's.
      switch (loss) {
        case Loss::clients_manifest: REQUIRE(clients.remove("/state/client.json")); return;
        case Loss::clients_file: return remove(clients, files);
        case Loss::clients_half: return halve(clients, files);
        case Loss::servers_file: return remove(world.server_disk(), files);
        case Loss::servers_half: return halve(world.server_disk(), files);
      }
    };
    REQUIRE(world.run());
    CHECK(is_lost);
    CHECK(check(world));
    std::size_t anew = 0;
    for (const auto& [name, client] : world.clients()) {
      const auto tasks = accepted_of(world, name);
      REQUIRE(tasks.size() == 6);
      std::vector<Round> rounds;
      for (const TaskRecord& task : tasks) {
        if (task.reference == TaskId::none) rounds.push_back(task.round);
      }
      check_chain(tasks, rounds);
      CHECK(rounds.front() == 1);
      anew += rounds.size();
    }
    CHECK(anew == 4);  // Three in the first round, and one after the loss.
  }
}

TEST_CASE("a reference that is damaged while the server runs is offered only once more") {
  for (const bool is_removed : {false, true}) {
    CAPTURE(is_removed);
    World world(deltas("delta+qsgd:8", 6));
    std::string damaged;
    world.on_frame = [&](const std::string&, bool is_up, const wire::Header& header) {
      if (!damaged.empty() || !is_up || !header.has_fetch() || header.fetch().version() != 3)
        return;
      MemFiles& disk = world.server_disk();
      damaged = "/state/references/" + disk.list("/state/references").value().front();
      if (is_removed) {
        REQUIRE(disk.remove(damaged));
      } else {
        REQUIRE(disk.open(damaged, OpenMode::update).value()->truncate(100));
      }
    };
    REQUIRE(world.run());
    REQUIRE(!damaged.empty());
    CHECK(check(world));
    CHECK(world.server_starts() == 1);
    std::size_t refused = 0;
    std::size_t anew = 0;
    for (Round round = 1; round <= 6; ++round) {
      const auto tasks = tasks_of(world, round);
      refused += count(tasks, TaskState::refused);
      CHECK(count(tasks, TaskState::accepted) == 3);
      anew += static_cast<std::size_t>(std::ranges::count_if(tasks, [](const TaskRecord& task) {
        return task.state == TaskState::accepted && task.reference == TaskId::none;
      }));
    }
    CHECK(refused == 1);
    CHECK(anew == 4);  // Three in the first round, and one after the damage.
  }
}

TEST_CASE("a damaged model of the server's is no fault of the client that fetches it") {
  const WorldOptions options = calm(2);
  World world(options);
  MemFiles& disk = world.server_disk();
  const std::string folder = "/state/checkpoints/";
  std::string file, text;
  world.on_frame = [&](const std::string& client, bool is_up, const wire::Header& header) {
    if (client != "client-1" || !is_up) return;
    if (text.empty() && header.has_fetch() && header.fetch().version() == 1) {
      for (const auto& name : disk.list(folder).value())
        if (name == "round-000001.safetensors") file = folder + name;
      REQUIRE(!file.empty());
      text = disk.read_all(file).value();
      REQUIRE(disk.open(file, OpenMode::update).value()->truncate(10));
    } else if (!text.empty() && header.has_hello()) {
      REQUIRE(
          disk.open(file, OpenMode::update).value()->write_at(0, bytes_of(std::string_view(text))));
    }
  };
  REQUIRE(world.run());
  CHECK(check(world));
  REQUIRE(!text.empty());
  for (Round round = 1; round <= options.settings.rounds; ++round)
    CHECK(count(tasks_of(world, round), TaskState::accepted) == tasks_of(world, round).size());
}

TEST_CASE("the next delta does not refer to an update that was refused") {
  WorldOptions options = deltas("delta+ecuq:8", 6);
  options.settings.min_clients = 2;
  options.sessions_first = options.members.size();
  World world(options);
  world.on_connect = [&](const std::string& client, Line& up, Line&) {
    if (client == "client-1") {
      up.edit = [&](wire::Header& header) {
        // The server refuses this: it asked for the reference of the round before.
        if (header.has_begin() && header.begin().round() == 3)
          header.mutable_begin()->set_reference(1'000'000);
      };
    }
    return true;
  };
  REQUIRE(world.run());
  CHECK(check(world));
  const auto third = tasks_of(world, 3);
  const auto refused = std::ranges::find(third, TaskState::refused, &TaskRecord::state);
  REQUIRE(refused != third.end());
  CHECK(refused->client == "client-1");
  CHECK(refused->reason.find("it is the difference to the update of task 1000000") == 0);
  check_chain(accepted_of(world, "client-1"), {1});
}

TEST_CASE("a client that was not asked for some rounds still refers to its last update") {
  WorldOptions options = deltas("delta+qsgd:8", 12);
  options.settings.min_clients = 1;
  options.settings.clients_per_round = 1;
  World world(options);
  REQUIRE(world.run());
  CHECK(check(world));
  std::size_t accepted = 0;
  for (const auto& [name, client] : world.clients()) {
    const auto tasks = accepted_of(world, name);
    accepted += tasks.size();
    if (!tasks.empty()) check_chain(tasks, {tasks.front().round});
  }
  CHECK(accepted == 12);
}

TEST_CASE("settings refuse delta+ with late updates, with signvote and as a downlink codec") {
  RunSettings settings = calm(3).settings;
  settings.model = "synthetic:10";
  const auto refusal = [&settings] { return check_settings(settings).error().message(); };
  settings.codec = "delta+qsgd:8";
  REQUIRE(check_settings(settings));
  settings.mode = "sync:late=1";
  CHECK(refusal().find("delta+ needs every update in its own round") != std::string::npos);
  settings.mode = "async:buffer=2";
  CHECK(refusal().find("delta+ needs every update in its own round") != std::string::npos);
  settings.mode = "sync";
  settings.strategy = "signvote";
  CHECK(refusal().find("delta+ sends differences") != std::string::npos);
  settings.strategy = "fedavg";
  settings.downlink_codec = "delta+qsgd:8";
  CHECK(refusal().find("steps of the model are differences already") != std::string::npos);
}

}  // namespace fl::test
