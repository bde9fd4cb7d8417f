// SPDX-License-Identifier: Apache-2.0
#include "client/site/site_commands.hpp"

#include "client/learn/pipeline_parts.hpp"
#include "shared/base/json.hpp"

#include <doctest/doctest.h>
#include <CLI/CLI.hpp>

#include <sstream>
#include <string>

using namespace fl;
using namespace fl::site;

namespace {

struct Ran {
  std::string out;
  std::string error;  // The error of a wrong command line.
  int code = -1;
};

Ran run(const std::string& line) {
  Ran ran;
  std::ostringstream out;
  CLI::App app;
  app.fallthrough();
  std::string data;
  app.add_option("--data", data);
  const auto site = declare_site_commands(app, out);
  try {
    app.parse(line);
    ran.code = site();
  } catch (const CLI::ParseError& error) {
    ran.error = error.what();
  }
  ran.out = out.str();
  return ran;
}

const std::string good =
    "site recommend --params 7e9 --gpus 16 --memory 80G --intra 300G --inter 25G ";

}  // namespace

TEST_CASE("site recommend prints the best plan first, and why others do not fit") {
  const Ran ran = run(good);
  CHECK(ran.code == 0);
  const auto best = ran.out.find("\nZeRO-1 ");
  const auto misfits = ran.out.find("\ndoes not fit\n");
  REQUIRE(best != std::string::npos);
  REQUIRE(misfits != std::string::npos);
  CHECK(best < misfits);
  CHECK(ran.out.find("\nDP (dp 16, tp 1, cp 1, ep 1, pp 1) ", misfits) != std::string::npos);
  CHECK(ran.out.find("No compression pays") != std::string::npos);
  // By the plans' formulas ZeRO-1 is the fastest; our ranks' fp32 weights need more.
  CHECK(ran.out.find("\nZeRO-1: a rank of this release, whose weights are fp32, takes 116 GB of a "
                     "GPU, and sends 26.2 GB a step: too much.") != std::string::npos);
  CHECK(ran.out.find("\nfor ZeRO-2: fl-client --site (or --ranks 16) --parallel dp=16 --zero 2 ") !=
        std::string::npos);
}

TEST_CASE("site recommend says what ranks lack for a plan, and names none that they can't run") {
  // Of so many GPUs with little memory each only tensor parallelism and pipelines make use.
  const std::string large =
      "site recommend --params 175e9 --gpus 1024 --memory 40G --intra 300G --inter 25G --batch "
      "256 ";
  const Ran ran = run(large);
  CHECK(ran.code == 0);
  CHECK(ran.out.find(" is arithmetic only: ranks of this release lack ") == std::string::npos);
  // The fastest plans are too large for fp32 weights; a slower one of the same kind is not.
  CHECK(ran.out.find("too much.\n\nfor ZeRO-1 + TP + PP: fl-client --site ") != std::string::npos);
  const Ran unlike = run(large + "--vocabulary 50257");
  CHECK(unlike.out.find("lack a way to divide a vocabulary of 50257 by ") != std::string::npos);
  const auto all = parse_json(
      run("site recommend --params 7e9 --gpus 16 --memory 80G --intra 300G --inter 25G --json")
          .out);
  int runs = 0;
  int divided = 0;
  int staged = 0;
  for (const auto& plan : all["plans"]) {
    if (!plan.contains("step_s")) continue;
    CHECK(plan.contains("flags"));
    CHECK_FALSE(plan.contains("lacks"));
    ++runs;
    const std::string flags = plan["flags"];
    CHECK(flags.find("--zero " + plan["zero"].dump() + " ") != std::string::npos);
    const std::string grid = "--parallel dp=" + plan["dp"].dump();
    const std::string tp = plan["tp"] > 1 ? ",tp=" + plan["tp"].dump() : "";
    const std::string pp = plan["pp"] > 1 ? ",pp=" + plan["pp"].dump() : "";
    const std::string tokens = plan["tp"] > 1 ? " --sequence-parallel" : "";
    const std::string pipeline = plan["pipeline"];
    const std::string stages = plan["pp"] > 1 ? " --pipeline " + pipeline : "";
    CHECK(flags.find(grid + tp + pp + tokens + stages + " --zero") != std::string::npos);
    if (plan["tp"] > 1) ++divided;
    if (plan["pp"] > 1) {
      ++staged;
      CHECK(parse_pipeline(pipeline, plan["pp"]).has_value());
      CHECK(plan["rank_sent_bytes"] >= 2 * plan["pipeline_sent_bytes"].get<double>());
    }
    CHECK((flags.find("--offload optimizer") != std::string::npos) == plan["offload"]);
    CHECK(plan["rank_fits"] == (plan["rank_bytes"] <= 72e9));
    CHECK((plan["rank_host_bytes"] > 0) == plan["offload"]);
    CHECK(plan["rank_sent_bytes"] >= plan["data_sent_bytes"]);
    CHECK(flags.find("--accumulate " + plan["microbatches"].dump()) != std::string::npos);
  }
  CHECK(runs > divided);
  CHECK(divided > 0);
  CHECK(staged > 0);
  const Ran odd = run(good + "--vocabulary 32001 --json");
  const auto odd_plans = parse_json(odd.out);
  for (const auto& plan : odd_plans["plans"]) {
    if (!plan.contains("step_s")) continue;
    CHECK(plan.contains("lacks") == (plan["tp"] > 1));
  }
}

TEST_CASE("site recommend divides long sequences") {
  const Ran ran = run(good + "--sequence 131072 --batch 1");
  CHECK(ran.code == 0);
  CHECK(ran.out.find(",cp=") != std::string::npos);
}

TEST_CASE("site recommend divides experts, and prints flags that ranks take") {
  const std::string mixtral =
      "site recommend --params 46.7e9 --active-params 12.9e9 --experts 8 --layers 32 --hidden 4096 "
      "--heads 32 --sequence 4096 --memory 80G --intra 300G ";
  const Ran fast = run(mixtral + "--gpus 64 --inter 25G");
  CHECK(fast.out.find("8 experts of which a token uses 2 (and 12.9 billion parameters)") !=
        std::string::npos);
  CHECK(fast.out.find("\nZeRO-1 + EP ") < fast.out.find("\nZeRO-1 + TP "));
  const auto all = parse_json(run(mixtral + "--gpus 64 --inter 25G --json").out);
  int divided = 0;
  for (const auto& plan : all["plans"]) {
    if (!plan.contains("flags") || plan["ep"] == 1) continue;
    ++divided;
    CHECK(plan["expert_sent_bytes"] > 0);
    CHECK(plan["zero"] > 0);
    const std::string flags = plan["flags"];
    CHECK(flags.find(",ep=" + plan["ep"].dump()) != std::string::npos);
    CHECK(plan["rank_bytes"] > plan["activation_bytes"]);
  }
  CHECK(divided > 0);
  // Two GPUs a node: a group of four or eight is on several.
  const auto few = parse_json(run(mixtral + "--gpus 64 --gpus-per-node 2 --inter 100G --json").out);
  bool hops = false;
  for (const auto& plan : few["plans"])
    hops = hops || plan.value("flags", "").find("--expert-parallel two-hops") != std::string::npos;
  CHECK(hops);
  for (const auto& [flags, reason] :
       {std::pair("--params 7e9 --active-params 1e9", "--active-params is for a model with"),
        std::pair("--params 47e9 --experts 8 --top 9", "--top 9 is above --experts 8"),
        std::pair("--params 47e9 --experts 8 --active-params 5e9", "uses between 11.8 billion")}) {
    const Ran refused = run(std::string("site recommend --gpus 1 --memory 80G ") + flags);
    CHECK(refused.code != 0);
    CHECK(refused.error.find(reason) != std::string::npos);
  }
}

TEST_CASE("site recommend prints JSON with the numbers of the text") {
  const Ran ran = run(good + "--json");
  const auto all = parse_json(ran.out);
  REQUIRE(all.is_object());
  CHECK(all["model"]["layers"] == 32);
  CHECK(all["plans"].size() == 16);
  CHECK(all["plans"][0]["plan"] == "ZeRO-1");
  CHECK(all["for_ranks"]["plan"] == "ZeRO-2");
  CHECK(all["for_ranks"]["rank_fits"] == true);
  CHECK(all["plans"][0]["fits"] == true);
  CHECK(all["plans"][0]["state_bytes"] == 7e9 * (4 + 12.0 / 16));
  CHECK(all["hooks"].size() > 10);
}

TEST_CASE("site recommend without a plan that fits says so") {
  const Ran ran = run("site recommend --params 7e9 --gpus 1 --memory 8G");
  CHECK(ran.code == 0);
  CHECK(ran.out.find("No plan fits") != std::string::npos);
}

TEST_CASE("site recommend refuses wrong numbers by their names") {
  const auto refused = [](const std::string& line, const std::string& text) {
    CAPTURE(line);
    const Ran ran = run(line);
    CHECK(ran.out.empty());
    CHECK_MESSAGE(ran.error.find(text) != std::string::npos, ran.error);
  };
  refused("site", "subcommand is required");
  refused("site recommend --gpus 8 --memory 80G", "--params is required");
  refused("site recommend --gpus 8 --memory 80G --params 7X", "--params: '7X' is not a number");
  refused("site recommend --params 7e9 --gpus 12 --memory 80G",
          "--gpus 12 is not a multiple of --gpus-per-node 8");
  refused("site recommend --params 7e9 --gpus 0 --memory 80G", "--gpus");
  refused(good + "--heads 7", "--hidden 4096 can't be divided into 7 heads");
  refused(good + "--layers 2 --hidden 64", "does not fit 2 layers of hidden size 64");
  refused(good + "--utilisation 1.5", "--utilisation");
  refused(good + "--recompute some", "--recompute");
  refused("site recommend --params 7e9 --gpus 16 --memory 80G --intra 300G", "also give --inter");
  refused("site recommend --params 7e9 --gpus 8 --memory 80G", "also give --intra");
  // A flag of a client would have no effect.
  refused(good + "--data here", "--data");
}

TEST_CASE("without site nothing runs") { CHECK(run("--data here").code == -1); }
