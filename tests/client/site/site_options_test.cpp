// SPDX-License-Identifier: Apache-2.0
#include "client/site/site_options.hpp"

#include "client/site/shared_values.hpp"
#include "tests/support/temporary_folder.hpp"

#include <doctest/doctest.h>

#include <map>

namespace fl::test {
namespace {

using Variables = std::map<std::string, std::string>;

Result<SitePlace> place_of(const Variables& variables, const std::string& address = "") {
  return find_place(
      [&variables](const char* name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
      },
      address);
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

  place = place_of({{"SLURM_PROCID", "0"},
                    {"SLURM_NTASKS", "2"},
                    {"SLURM_LOCALID", "0"},
                    {"SLURM_NTASKS_PER_NODE", "1"},
                    {"SLURM_LAUNCH_NODE_IPADDR", "10.1.1.1"}})
              .value();
  CHECK(place.launcher == "Slurm");
  CHECK(place.local_size == 1);
  CHECK(place.host == "10.1.1.1");

  const Variables mpi{{"OMPI_COMM_WORLD_RANK", "3"},
                      {"OMPI_COMM_WORLD_SIZE", "4"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
  CHECK(place_of(mpi).error().message().find("--site-address") != std::string::npos);
  CHECK(place_of(mpi, "[::1]:5000")->host == "::1");
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
