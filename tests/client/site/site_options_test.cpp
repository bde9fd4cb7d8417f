// SPDX-License-Identifier: Apache-2.0
#include "client/site/site_options.hpp"

#include "client/site/shared_values.hpp"
#include "client/site/site.hpp"
#include "client/site/site_flags.hpp"
#include "client/site/slurm_place.hpp"
#include "shared/base/machine.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/variables.hpp"

#include <doctest/doctest.h>
#include <CLI/CLI.hpp>

namespace fl::test {

using namespace fl::site;
namespace {

Result<SitePlace> place_of(const Variables& variables, const std::string& address = "") {
  return find_place(environment_of(variables), address);
}

/// Reads flags of a site; returns the error, "" without one.
std::string refusal(const std::string& line, SiteOptions& options) {
  CLI::App app;
  options = {};
  declare_site_flags(app, options);
  try {
    app.parse(line);
    check_site_flags(app, options);
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a process finds its place in the variables of its launcher") {
  const Variables torchrun{{"RANK", "5"},
                           {"WORLD_SIZE", "8"},
                           {"LOCAL_RANK", "1"},
                           {"LOCAL_WORLD_SIZE", "4"},
                           {"MASTER_ADDR", "node1"},
                           {"MASTER_PORT", "29400"}};
  auto place = place_of(torchrun).value();
  CHECK(place.launcher == "torchrun");
  CHECK(place.rank == 5);
  CHECK(place.size == 8);
  CHECK(place.local_rank == 1);
  CHECK(place.local_size == 4);
  CHECK(place.host == "node1");
  CHECK(place.port == 29401);
  place = place_of(torchrun, "10.0.0.1:5000").value();
  CHECK(place.host == "10.0.0.1");
  CHECK(place.port == 5000);

  const Variables mpi{{"OMPI_COMM_WORLD_RANK", "3"},
                      {"OMPI_COMM_WORLD_SIZE", "4"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
  CHECK(place_of(mpi).error().message().find("--site-address") != std::string::npos);
  place = place_of(mpi, "[::1]:5000").value();
  CHECK(place.host == "::1");
  CHECK(place.local_rank == 3);
}

TEST_CASE("a process finds its place in the variables of srun") {
  // Seven tasks on nodes of 2, 2, 2 and 1, started from another machine by plain srun.
  const auto srun = [](const Variables& changed) {
    Variables variables{{"SLURM_PROCID", "6"},
                        {"SLURM_NTASKS", "7"},
                        {"SLURM_LOCALID", "0"},
                        {"SLURM_NODEID", "3"},
                        {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
                        {"SLURM_TASKS_PER_NODE", "8(x4)"},  // The job's value, not this step's.
                        {"SLURM_STEP_NODELIST", "node[01-03,17]"},
                        {"SLURM_JOB_NODELIST", "node[00-17]"},
                        {"SLURM_LAUNCH_NODE_IPADDR", "10.9.9.9"},
                        {"SLURM_JOB_ID", "4711"},
                        {"SLURM_STEP_ID", "0"}};
    for (const auto& [name, value] : changed) variables[name] = value;
    std::erase_if(variables, [](const auto& variable) { return variable.second.empty(); });
    return place_of(variables);
  };
  const auto last = srun({}).value();
  CHECK(last.launcher == "Slurm");
  CHECK(last.rank == 6);
  CHECK(last.size == 7);
  CHECK(last.local_size == 1);
  CHECK(last.host == "node01");
  const Variables second{{"SLURM_PROCID", "3"}, {"SLURM_LOCALID", "1"}, {"SLURM_NODEID", "1"}};
  CHECK(srun(second)->local_size == 2);
  CHECK(srun(second)->port == last.port);

  CHECK(last.port == 16384 + 4711 * 16 % 16384);
  CHECK(srun({{"SLURM_JOB_ID", "4712"}})->port != last.port);
  CHECK(srun({{"SLURM_STEP_ID", "1"}})->port == last.port + 1);
  CHECK(srun({{"SLURM_JOB_ID", "4294967295"}, {"SLURM_STEP_ID", "4294967295"}})->port == 32767);
  CHECK(srun({{"MASTER_PORT", "5000"}})->port == 5001);
  CHECK(srun({{"MASTER_ADDR", "gate"}})->host == "gate");

  CHECK(srun({{"SLURM_STEP_NODELIST", ""}})->host == "node00");
  const auto nowhere = srun({{"SLURM_STEP_NODELIST", ""}, {"SLURM_JOB_NODELIST", ""}});
  CHECK(nowhere.error().message().find("--site-address") != std::string::npos);
  CHECK(srun({{"SLURM_STEP_TASKS_PER_NODE", ""}, {"SLURM_TASKS_PER_NODE", "3(x2),1"}})
            .error()
            .message()
            .find("SLURM_TASKS_PER_NODE is '3(x2),1' and SLURM_NODEID is '3'") !=
        std::string::npos);
  const Variables no_lists{{"SLURM_STEP_TASKS_PER_NODE", ""}, {"SLURM_TASKS_PER_NODE", ""}};
  CHECK(srun(no_lists).error().message().find("SLURM_STEP_TASKS_PER_NODE") != std::string::npos);
  Variables same = no_lists;
  same["SLURM_NTASKS_PER_NODE"] = "2";
  CHECK(srun(same)->local_size == 2);
}

TEST_CASE("a rank has the cores that Slurm gives each task, or its share of the machine's") {
  const Variables task{{"SLURM_PROCID", "1"},         {"SLURM_NTASKS", "4"},
                       {"SLURM_LOCALID", "1"},        {"SLURM_NODEID", "0"},
                       {"SLURM_TASKS_PER_NODE", "4"}, {"SLURM_CPUS_PER_TASK", "8"}};
  CHECK(place_of(task, "node1:5000")->cores == 8);
  const int all = this_machine().cores;
  SitePlace place;
  CHECK(cores_of(place) == all);
  place.local_size = all + 1;
  CHECK(cores_of(place) == 1);
  place.cores = all;  // Four tasks of a node with four times as many cores.
  CHECK(cores_of(place) == all);
  place.cores = all + 1;
  CHECK(cores_of(place) == all);
}

TEST_CASE("mpirun inside a job of Slurm counts, not the daemon that Slurm has started") {
  const auto place = place_of({{"SLURM_PROCID", "0"},
                               {"SLURM_NTASKS", "2"},
                               {"OMPI_COMM_WORLD_RANK", "1"},
                               {"OMPI_COMM_WORLD_SIZE", "4"},
                               {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
                              "node1:5000")
                         .value();
  CHECK(place.launcher == "Open MPI");
  CHECK(place.rank == 1);
  CHECK(place.local_size == 2);
}

TEST_CASE("lists of Slurm are read, and wrong ones are refused") {
  CHECK(first_node("node1") == "node1");
  CHECK(first_node("node1,node2") == "node1");
  CHECK(first_node("node[07,9-12],gpu[1-2]") == "node07");
  CHECK(first_node("rack[2-3]node[004-5]-ib,x") == "rack2node004-ib");
  CHECK(first_node("").empty());
  CHECK(first_node("node[1").empty());

  CHECK(tasks_of_node("4", 0) == 4);
  CHECK(tasks_of_node("2(x3),1", 0) == 2);
  CHECK(tasks_of_node("2(x3),1", 2) == 2);
  CHECK(tasks_of_node("2(x3),1", 3) == 1);
  CHECK(tasks_of_node("1,3,2(x2)", 1) == 3);
  CHECK(!tasks_of_node("2(x3),1", 4));
  for (const char* wrong : {"", "x", "0", "-1", "2(x", "2(x)", "2(x0)", "2(x3", "2(3)", "99999"}) {
    CAPTURE(wrong);
    CHECK(!tasks_of_node(wrong, 0));
  }
}

TEST_CASE("--unused-parameters is a flag of a site, and arrives as it was said") {
  const auto parse = [](const std::string& line) -> std::string {
    SiteOptions options;
    if (std::string refused = refusal(line, options); !refused.empty()) return refused;
    GroupOptions group;
    group.unused_parameters = options.unused_parameters;
    return parse_as<GroupOptions>(to_json_of(group))->unused_parameters;
  };
  CHECK(parse("--ranks 2") == "refuse");
  for (const char* const choice : {"refuse", "find", "static"})
    CHECK(parse(std::string("--ranks 2 --unused-parameters ") + choice) == choice);
  CHECK(parse("--ranks 2 --unused-parameters all").find("refuse,find,static") != std::string::npos);
  CHECK(parse("--unused-parameters find").find("it needs --ranks N or --site") !=
        std::string::npos);
}

TEST_CASE("flags of a grid that can't be are refused before anything begins") {
  SiteOptions options;
  CHECK(refusal("--ranks 4 --parallel tp=2 --sequence-parallel --ranks-min 2", options).empty());
  CHECK(refusal("--ranks 4 --parallel dp=2,tp=2", options).empty());
  CHECK(refusal("--site --site-secret-file s --parallel tp=4", options)
            .empty());  // The launcher says how many there are.
  for (const auto& row : {
           std::pair("--ranks 3 --parallel tp=2", "a multiple of 2 ranks, and the site has 3"),
           std::pair("--ranks 4 --parallel dp=4,tp=2", "takes 8 ranks, and the site has 4"),
           std::pair("--ranks 2 --sequence-parallel", "needs --parallel with tp=2 or more"),
           std::pair("--ranks 2 --context-parallel ring", "needs --parallel with cp=2 or more"),
           std::pair("--ranks 2 --parallel cp=2 --context-parallel rings", "none of ring, gather"),
           std::pair("--ranks 4 --parallel tp=2,cp=2 --ranks-min 2", "is no multiple of 4"),
           std::pair("--ranks 2 --expert-parallel direct", "needs --parallel with ep=2 or more"),
           std::pair("--ranks 2 --parallel ep=2 --expert-parallel hops", "neither direct nor two-"),
           std::pair("--ranks 6 --parallel ep=4", "takes a multiple of 4 ranks"),
           std::pair("--expert-parallel two-hops", "it needs --ranks N or --site"),
           std::pair("--context-parallel ring", "it needs --ranks N or --site"),
           std::pair("--ranks 4 --parallel tp=2 --ranks-min 3",
                     "is no multiple of 2, the ranks that take a pass together"),
           std::pair("--parallel tp=2", "it needs --ranks N or --site"),
           std::pair("--sequence-parallel", "it needs --ranks N or --site"),
       }) {
    const std::string line = row.first;
    CAPTURE(line);
    CHECK(refusal(line, options).find(row.second) != std::string::npos);
  }
}

TEST_CASE("rank 0 that can't listen says how to name another address") {
  const TemporaryFolder folder;
  SiteOptions options;
  options.launched = true;
  options.timeout_s = 1;
  // An address of documentation, which no machine has (RFC 5737).
  SitePlace place;
  place.size = 2;
  place.host = "192.0.2.1";
  place.port = 29501;
  const auto site = Site::start(options, place, {}, folder.path() / "state", {});
  REQUIRE(!site.has_value());
  CHECK(site.error().message().starts_with("can't listen at 192.0.2.1:29501: "));
  CHECK(site.error().message().find("--site-address HOST:PORT") != std::string::npos);
}

TEST_CASE("a place that can't be is refused with the variable") {
  CHECK(place_of({}).error().message().find("--ranks N") != std::string::npos);
  const auto message = [](Variables changed) {
    Variables variables{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}};
    for (auto& [name, value] : changed) variables[name] = value;
    const auto place = place_of(variables);
    return place ? std::string() : place.error().message();
  };
  CHECK(message({}).empty());
  CHECK(message({{"RANK", "x"}}).find("RANK is 'x'") != std::string::npos);
  CHECK(message({{"RANK", "-1"}}).find("RANK is '-1'") != std::string::npos);
  CHECK(message({{"WORLD_SIZE", "99999"}}).find("WORLD_SIZE") != std::string::npos);
  CHECK(message({{"RANK", "2"}}).find("rank 2 of 2") != std::string::npos);
  CHECK(message({{"LOCAL_RANK", "2"}}).find("which can't be") != std::string::npos);
  CHECK(message({{"LOCAL_WORLD_SIZE", "3"}}).find("which can't be") != std::string::npos);
  CHECK(message({{"MASTER_PORT", "65535"}}).find("MASTER_PORT") != std::string::npos);
  CHECK(message({{"MASTER_PORT", "none"}}).find("MASTER_PORT") != std::string::npos);
  for (const char* wrong : {"", "host", "host:", ":5", "host:0", "host:65536", "host:5x"}) {
    CAPTURE(wrong);
    CHECK(!parse_host_port(wrong).has_value());
  }
}

TEST_CASE("two maps of a file are the same values") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "values";
  auto made = SharedValues::make(path, 1000).value();
  auto opened = SharedValues::open(path, 1000).value();
  CHECK(opened.values()[999] == 0);
  made.values()[999] = 2.5F;
  CHECK(opened.values()[999] == 2.5F);
  CHECK(SharedValues::open(path, 999).error().code() == Errc::corrupt);
  CHECK(SharedValues::open(folder.path() / "none", 1).error().code() == Errc::not_found);
  // A new file does not change what is mapped of the old one.
  const auto next = SharedValues::make(path, 1000).value();
  CHECK(next.values()[999] == 0);
  CHECK(opened.values()[999] == 2.5F);
  CHECK(SharedValues::make(path, 0)->values().empty());
}

}  // namespace fl::test
