// SPDX-License-Identifier: Apache-2.0
// The choice of each client's codec: the finest one whose update is expected in time. The store's
// record of the client gives the expectation.
#include "server/cohort/codec_choice.hpp"

#include "client/state/client_state.hpp"
#include "kernels/kernels.hpp"
#include "shared/codec/spec/parser.hpp"
#include "tests/support/run_of.hpp"
#include "tests/support/stored.hpp"
#include "tests/world/scenario.hpp"

namespace fl::test {

using namespace fl::client;
using namespace fl::codec;
using namespace fl::server;
namespace {

const std::vector<Rung> rungs{{"a", 4000}, {"b", 2000}, {"c", 1000}, {"d", 500}, {"e", 250}};

/// A client whose last upload began after `ready_seconds` and sent 1000 bytes at this speed.
ClientHistory measured(double ready_seconds, double bytes_per_s) {
  ClientHistory client;
  client.update_bytes = 1000;
  client.ready_seconds = ready_seconds;
  client.upload_seconds = 1000 / bytes_per_s;
  return client;
}

std::string choice(const ClientHistory& client, double seconds) {
  return choose_codec(rungs, {seconds, "the test's"}, client).codec;
}

TEST_CASE("a client gets the finest codec that arrives in time, or the coarsest if none does") {
  // At 100 bytes per second the five codecs take 40, 20, 10, 5 and 2.5 s.
  const ClientHistory client = measured(2, 100);
  CHECK(choice(client, 100) == "a");
  CHECK(choice(client, 42) == "a");
  CHECK(choice(client, 41.9) == "b");
  CHECK(choice(client, 12) == "c");
  CHECK(choice(client, 7.5) == "d");
  CHECK(choice(client, 4.5) == "e");
  CHECK(choice(client, 4.4) == "e");
  CHECK(choice(client, 1) == "e");
  CHECK(choose_codec(rungs, {41.9, "80% of the deadline, 52 s"}, client).reason ==
        "starts to send after 2.00 s, then needs 20.00 s for 2.0 kB at its 0.1 kB/s; the limit is "
        "41.90 s: 80% of the deadline, 52 s");
  CHECK(choose_codec(rungs, {1, "so"}, client).reason ==
        "starts to send after 2.00 s, then needs 2.50 s for 0.2 kB at its 0.1 kB/s; the limit is "
        "4.95 s: 110% of what the coarsest codec needs, as that is more than 1.00 s, so");
  // Training alone takes longer than the limit, and no codec can change that.
  CHECK(choice(measured(100, 1e6), 50) == "a");
  CHECK(choice(measured(100, 200), 50) == "b");
}

TEST_CASE("a new client gets the middle codec, and a late client the next coarser one") {
  ClientHistory client;
  CHECK(choice(client, 1e9) == "c");
  CHECK(choose_codec(rungs, {}, client).reason ==
        "no upload of this client is measured yet: the middle of the ladder");
  client.late_codec = "c";
  CHECK(choice(client, 1e9) == "c");  // It was not slow: the round closed without it.
  client.last_seconds = 1e9;
  CHECK(choice(client, 1e9) == "d");
  CHECK(choose_codec(rungs, {}, client).reason ==
        "its last update, with c, was late: one codec coarser");
  client.late_codec = "e";
  CHECK(choice(client, 1e9) == "e");
  client.late_codec = "of another ladder";
  CHECK(choice(client, 1e9) == "c");
  // Now with a client that was fast before.
  client = measured(0, 1e9);
  client.late_codec = "a";
  client.last_seconds = 10;
  CHECK(choice(client, 10) == "b");
  // The expected time may require an even coarser codec.
  client = measured(0, 100);
  client.late_codec = "a";
  client.last_seconds = 5;
  CHECK(choice(client, 5) == "d");
}

TEST_CASE(
    "the time limit follows the deadline, or the clients' median time with the middle codec") {
  std::map<std::string, ClientHistory> histories;
  CHECK(time_limit(rungs, 50, histories).seconds == 40);
  CHECK(std::isinf(time_limit(rungs, 0, histories).seconds));
  histories["new"] = {};
  CHECK(std::isinf(time_limit(rungs, 0, histories).seconds));
  histories["fast"] = measured(1, 1000);     // Needs 2 s for 1000 bytes.
  histories["usual"] = measured(2, 500);     // 4 s.
  histories["as usual"] = measured(3, 900);  // A little more.
  histories["slow"] = measured(4, 50);       // 24 s.
  const TimeLimit limit = time_limit(rungs, 0, histories);
  CHECK(limit.seconds == 5);
  CHECK(limit.why == "125% of the 4.00 s that half of the clients need with c");
  const auto choice_for = [&](const char* name) {
    return choose_codec(rungs, limit, histories.at(name)).codec;
  };
  CHECK(choice_for("fast") == "a");
  CHECK(choice_for("usual") == "c");
  CHECK(choice_for("as usual") == "c");
  CHECK(choice_for("slow") == "e");
}

TEST_CASE("equally fast clients keep the middle codec, whatever codec they had last") {
  for (const Rung& last : rungs) {
    std::map<std::string, ClientHistory> histories;
    for (const char* name : {"a", "b", "c"}) {
      // Training takes 0.1 s.
      histories[name].update_bytes = last.bytes;
      histories[name].ready_seconds = 0.1;
      histories[name].upload_seconds = static_cast<double>(last.bytes) / 1000;
    }
    const TimeLimit limit = time_limit(rungs, 0, histories);
    CHECK(choose_codec(rungs, limit, histories.at("b")).codec == "c");
  }
}

TEST_CASE("a ladder is a list of specs, and a single spec is a ladder of one") {
  CHECK(parse_ladder("kbit:4+ef").value() == std::vector<std::string>{"kbit:4+ef"});
  CHECK(parse_ladder("auto:none|*.b=none;*=kbit:2").value() ==
        std::vector<std::string>{"none", "*.b=none;*=kbit:2"});
  CHECK(parse_ladder("auto").value().size() > 5);
  for (const std::string& spec : parse_ladder("auto").value()) CHECK(spec.ends_with("+ef"));
  for (const char* wrong : {"auto:", "auto:none|", "auto:none||fp16", "auto:zip", "auto|none",
                            "auto:topk:0.1+dgc:0.9|topk:0.01+ef"}) {
    CAPTURE(wrong);
    CHECK_FALSE(parse_ladder(wrong));
  }
  CHECK(parse_ladder("auto:topk:0.1+dgc:0.9|topk:0.01+dgc:0.9"));
}

TEST_CASE("a rung's expected bytes are those of an update of Gaussian values") {
  const Layout layout = Layout::make({{"w", {300, 200}}, {"b", {300}}}).value();
  const auto ladder = parse_ladder("auto").value();
  const auto found = rungs_of(ladder, 3, layout);
  REQUIRE(found.size() == ladder.size());
  std::vector<float> values(layout.elements());
  kernels().gaussian(9, 0, 0, values.data(), values.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    CAPTURE(found[i].codec);
    std::vector<std::byte> payload;
    VectorSink sink(payload);
    const auto codec = parse_codec(ladder[i]).value();
    const auto bytes = static_cast<double>(codec->encode(layout, values, 1, sink).value());
    CHECK(static_cast<double>(found[i].bytes) == doctest::Approx(bytes).epsilon(0.1));
    if (i > 0) CHECK(found[i].bytes < found[i - 1].bytes);
  }
  const std::vector<std::string> warming{"none", "topk:0.01,from=0.25,over=4"};
  CHECK(rungs_of(warming, 1, layout)[1].codec == "topk:0.25");
  CHECK(rungs_of(warming, 5, layout)[1].codec == "topk:0.01");
}

/// Three clients; slow_down() makes the third one's connection slow.
WorldOptions with_a_slow_client(Round rounds, double deadline_s) {
  WorldOptions options = calm(3, 20'000);
  options.settings.codec = "auto:none+ef|fp16+ef|kbit:8+ef|kbit:4+ef|kbit:2+ef";
  options.settings.rounds = rounds;
  options.settings.deadline_s = deadline_s;
  return options;
}

void slow_down(World& world) {
  world.on_connect = [](const std::string& client, Line& up, Line& down) {
    up.latency = down.latency = std::chrono::milliseconds(5);
    up.bytes_per_s = client == "client-3" ? 5e3 : 100e3;
    down.bytes_per_s = 10e6;
    return true;
  };
}

std::map<std::string, TaskRecord> tasks_by_client(World& world, Round round) {
  std::map<std::string, TaskRecord> tasks;
  for (const auto& task : tasks_of(world, round)) tasks[task.client] = task;
  return tasks;
}

TEST_CASE("without a deadline a slow client gets a coarser codec, so that rounds are not delayed") {
  World world(with_a_slow_client(3, 0));
  slow_down(world);
  REQUIRE(world.run());
  CHECK(check(world));
  for (const auto& [client, task] : tasks_by_client(world, 1)) CHECK(task.codec == "kbit:8+ef");
  const auto first = tasks_by_client(world, 1);
  // 20,000 values of about 6 bits.
  CHECK(first.at("client-3").upload_seconds == doctest::Approx(3).epsilon(0.25));
  CHECK(first.at("client-1").upload_seconds == doctest::Approx(0.16).epsilon(0.25));
  for (const Round round : {2u, 3u}) {
    const auto tasks = tasks_by_client(world, round);
    CHECK(tasks.at("client-1").codec == "kbit:8+ef");
    CHECK(tasks.at("client-2").codec == "kbit:8+ef");
    CHECK(tasks.at("client-3").codec == "kbit:2+ef");
    CHECK(tasks.at("client-3").codec_reason.find("110% of what the coarsest codec needs") !=
          std::string::npos);
  }
}

TEST_CASE(
    "with a deadline each client gets the finest codec that meets it, or a coarser one if late") {
  WorldOptions options = with_a_slow_client(5, 2);
  options.settings.min_clients = 2;
  options.sessions_first = 3;
  World world(options);
  slow_down(world);
  REQUIRE(world.run());
  CHECK(check(world));
  std::vector<std::string> slow;
  std::vector<std::string> fast;
  for (Round round = 1; round <= 5; ++round) {
    const auto tasks = tasks_by_client(world, round);
    slow.push_back(fmt::format("{} {}", tasks.at("client-3").codec,
                               tasks.at("client-3").state == TaskState::late ? "late" : "here"));
    fast.push_back(tasks.at("client-1").codec);
  }
  CHECK(fast == std::vector<std::string>{"kbit:8+ef", "none+ef", "none+ef", "none+ef", "none+ef"});
  CHECK(slow == std::vector<std::string>{"kbit:8+ef late", "kbit:4+ef late", "kbit:2+ef here",
                                         "kbit:2+ef here", "kbit:2+ef here"});
}

TEST_CASE("a restarted server offers the same codecs again") {
  for (const bool is_before_the_round : {false, true}) {
    World world(with_a_slow_client(3, 0));
    slow_down(world);
    std::map<std::pair<std::string, std::uint32_t>, std::set<std::string>> offered;
    int left = is_before_the_round ? 1 : 2;
    world.on_frame = [&](const std::string& client, bool is_up, const wire::Header& header) {
      if (is_up || !header.has_offer()) return;
      offered[{client, header.offer().round()}].insert(header.offer().codec());
      if (header.offer().round() == 2 && left > 0 && --left == 0) world.kill_server(false);
    };
    REQUIRE(world.run());
    CHECK(check(world));
    CHECK(world.server_starts() == 2);
    for (const auto& [who, codecs] : offered) CHECK(codecs.size() == 1);
    CHECK(offered.at({"client-3", 2}) == std::set<std::string>{"kbit:2+ef"});
  }
}

TEST_CASE(
    "a residual waits while codecs have no error feedback, and is sent with the next that has it") {
  const Layout layout = Layout::make({{"w", {30, 40}}}).value();
  MemFiles files;
  auto state = ClientState::open(files, "/state").value();
  state.enter_run("a run").value();
  std::vector<double> trained(layout.elements());
  std::vector<double> sent(layout.elements());
  const auto train = [&](std::uint64_t round, const char* spec) {
    std::vector<float> update(layout.elements());
    kernels().gaussian(5, round, 0, update.data(), update.size());
    for (std::size_t i = 0; i < update.size(); ++i) trained[i] += static_cast<double>(update[i]);
    save(state, run_of(layout), update, *parse_codec(spec).value(), round).value();
  };
  const auto deliver = [&] {
    const auto file = state.open_pending().value();
    FileSource source(*file);
    auto reader = PayloadReader::open(source, state.pending()->begin.bytes(), layout).value();
    std::vector<float> values(layout.elements());
    reader.decode_all(values).value();
    for (std::size_t i = 0; i < values.size(); ++i) sent[i] += static_cast<double>(values[i]);
    state.settle_accepted().value();
  };
  const auto is_all_there = [&] {
    const auto residual = test::values_of(state.residual(layout), layout);
    for (std::size_t i = 0; i < sent.size(); ++i) {
      if (std::fabs(sent[i] + static_cast<double>(residual[i]) - trained[i]) > 1e-5) return false;
    }
    return true;
  };
  train(1, "terngrad+ef");
  deliver();
  const auto left = test::values_of(state.residual(layout), layout);
  CHECK(std::ranges::any_of(left, [](float v) { return std::fabs(v) > 0.1F; }));
  CHECK(is_all_there());
  train(2, "none");
  deliver();
  CHECK(test::values_of(state.residual(layout), layout) == left);
  CHECK(is_all_there());
  train(3, "none");
  state.settle_unused(run_of(layout)).value();
  CHECK(is_all_there());
  train(4, "powersgd:2+ef");
  deliver();
  CHECK(is_all_there());
  train(5, "none+ef");
  deliver();
  CHECK(is_all_there());
  const auto last = test::values_of(state.residual(layout), layout);
  CHECK(std::ranges::all_of(last, [](float v) { return v == 0; }));
}

}  // namespace
}  // namespace fl::test
