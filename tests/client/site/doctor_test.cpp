// SPDX-License-Identifier: Apache-2.0
#include "client/site/doctor.hpp"

#include <doctest/doctest.h>

#include <algorithm>

namespace fl::test {

using namespace fl::site;
namespace {

using Verdict = DoctorLine::Verdict;

struct SiteCase {
  std::vector<RankFacts> facts;
  SiteMeasurement measured;
};

/// Four ranks on two machines without GPUs, with links of 10 GB/s inside and 2 GB/s between.
SiteCase good_site() {
  SiteCase site;
  for (int rank = 0; rank < 4; ++rank) {
    RankFacts facts;
    facts.rank = rank;
    facts.host = rank < 2 ? "node1" : "node2";
    facts.local_size = 2;
    facts.cores = 8;
    facts.memory_bytes = 64e9;
    facts.torch = "2.11.0";
    facts.clock_s = facts.asked_s = 1e9;
    site.facts.push_back(facts);
  }
  site.measured.latency_s.assign(4, std::vector<double>(4, 2e-5));
  site.measured.bytes_per_s.assign(4, std::vector<double>(4, 2e9));
  for (const int first : {0, 2}) {
    auto& rates = site.measured.bytes_per_s;
    const auto a = static_cast<std::size_t>(first);
    rates[a][a + 1] = rates[a + 1][a] = 10e9;
  }
  site.measured.sums = {{16e6, 16e6 * 1.5 / 1.9e9}};
  site.measured.topology = "tree";
  return site;
}

/// Gives the ranks two GPUs on each machine, all as it should be.
void give_gpus(SiteCase& site) {
  for (RankFacts& facts : site.facts) {
    facts.gpus = facts.gpu_pairs = 2;
    facts.gpu = "H100";
    facts.gpu_address = facts.rank % 2 == 0 ? "00000000:17:00" : "00000000:65:00";
    facts.cuda = "13.0";
    facts.driver = "580.95";
    facts.nccl = "2.28.9";
    facts.has_nccl = facts.infiniband = true;
    facts.variables["NCCL_SOCKET_IFNAME"] = facts.interface = "ib0";
  }
}

std::vector<DoctorLine> lines_of(const SiteCase& site) {
  return diagnose_site(site.facts, site.measured);
}

const DoctorLine& line(const std::vector<DoctorLine>& lines, std::string_view subject) {
  const auto found = std::ranges::find_if(
      lines, [subject](const DoctorLine& one) { return one.subject == subject; });
  REQUIRE(found != lines.end());
  return *found;
}

}  // namespace

TEST_CASE("a good site has only good lines, with its figures") {
  const auto lines = lines_of(good_site());
  for (const DoctorLine& one : lines) {
    CAPTURE(one.text);
    CHECK(one.verdict == Verdict::ok);
  }
  CHECK(doctor_exit_code(lines) == 0);
  CHECK(line(lines, "ranks").text == "4 on 2 machines: node1 (2), node2 (2)");
  CHECK(line(lines, "links within machines").text.starts_with("10 GB/s and 20 us"));
  CHECK(line(lines, "links between machines").text.starts_with("2 GB/s"));
  CHECK(line(lines, "sums over all ranks").text.find("(1.9 GB/s)") != std::string::npos);
  CHECK(line(lines, "libtorch").text == "2.11.0 everywhere");
  CHECK(line(lines, "NCCL").text == "not used, without GPUs; variables that are set: none");
  CHECK(line(lines, "advice").text.starts_with("--topology tree is the fastest"));
  CHECK(line(lines, "advice").text.find("does not pay") != std::string::npos);
  const std::string text = doctor_text(lines);
  CHECK(text.starts_with("ok    ranks"));
  CHECK(std::ranges::count(text, '\n') == static_cast<std::ptrdiff_t>(lines.size()));
  CHECK(doctor_output(lines, false, {}, "tables\n") == text + "tables\n");
  const auto figures = to_json_of(good_site().measured);
  const auto json = parse_json(doctor_output(lines, true, {{"measured", figures}}, "tables\n"));
  CHECK(json["lines"].size() == lines.size());
  CHECK(json["measured"]["topology"] == "tree");
}

TEST_CASE("each fault has its line, its verdict and what to do") {
  struct Fault {
    const char* subject;
    Verdict verdict;
    const char* says;
    void (*make)(SiteCase&);
  };
  const Fault faults[] = {
      {"libtorch", Verdict::fail,
       "2.10.0 (rank 3 (node2)), 2.11.0 (3 ranks, such as rank 0 (node1))",
       [](SiteCase& s) { s.facts[3].torch = "2.10.0"; }},
      {"processors", Verdict::warn, "2 ranks share 1 cores",
       [](SiteCase& s) { s.facts[1].cores = 1; }},
      {"clocks", Verdict::warn, "rank 2 (node2) is 5 s off",
       [](SiteCase& s) { s.facts[2].clock_s += 5; }},
      {"clocks", Verdict::fail, "400 s off", [](SiteCase& s) { s.facts[2].clock_s -= 400; }},
      {"GPUs", Verdict::fail, "rank 2 (node2) has 0 GPUs",
       [](SiteCase& s) {
         for (const std::size_t i : {0, 1}) s.facts[i].gpus = 2, s.facts[i].has_nccl = true;
       }},
      // As srun without a number of GPUs a task, where a node's only GPU is shown to all of them.
      {"GPUs", Verdict::fail, "rank 2 (node2) and rank 3 (node2) take the same GPU, 00000000:17:00",
       [](SiteCase& s) {
         give_gpus(s);
         for (const std::size_t i : {2, 3}) {
           s.facts[i].gpus = 1;
           s.facts[i].gpu_address = "00000000:17:00";
         }
       }},
      // Without CUDA_VISIBLE_DEVICES the second rank finds no GPU of its number.
      {"GPUs", Verdict::fail, "rank 3 (node2) has 1 GPUs for 2 ranks",
       [](SiteCase& s) {
         give_gpus(s);
         s.facts[2].gpus = s.facts[3].gpus = 1;
         s.facts[3].gpu_address.clear();
       }},
      {"GPUs", Verdict::fail, "no NCCL",
       [](SiteCase& s) {
         for (RankFacts& facts : s.facts) facts.gpus = 2;
       }},
      {"GPUs", Verdict::warn, "rank 0 (node1) has H100, rank 3 (node2) has A100",
       [](SiteCase& s) {
         give_gpus(s);
         s.facts[3].gpu = "A100";
       }},
      {"CUDA", Verdict::warn, "different versions: 12.8 (rank 0 (node1)), 13.0 (3 ranks, such as",
       [](SiteCase& s) {
         give_gpus(s);
         s.facts[0].cuda = "12.8";
       }},
      {"NVIDIA driver", Verdict::warn, "none (2 ranks, such as rank 2 (node2)), 580.95 (2 ranks",
       [](SiteCase& s) {
         for (const std::size_t i : {0, 1}) s.facts[i].driver = "580.95";
       }},
      {"NCCL version", Verdict::fail, "2.27.5 (rank 2 (node2))",
       [](SiteCase& s) {
         give_gpus(s);
         s.facts[2].nccl = "2.27.5";
       }},
      {"ways between GPUs", Verdict::warn, "0 of 2 pairs are direct on 2 ranks, such as rank 2",
       [](SiteCase& s) {
         give_gpus(s);
         for (const std::size_t i : {2, 3}) s.facts[i].gpu_pairs = 0;
       }},
      {"NCCL", Verdict::warn, "NCCL_P2P_DISABLE=1 on rank 1",
       [](SiteCase& s) { s.facts[1].variables["NCCL_P2P_DISABLE"] = "1"; }},
      {"NCCL", Verdict::warn, "NCCL_DEBUG=TRACE on 4 ranks, such as rank 0 (node1)",
       [](SiteCase& s) {
         for (RankFacts& facts : s.facts) facts.variables["NCCL_DEBUG"] = "TRACE";
       }},
      {"NCCL", Verdict::warn, "NCCL_SOCKET_IFNAME is not set on rank 3 (node2)",
       [](SiteCase& s) {
         give_gpus(s);
         s.facts[3].variables.clear();
       }},
      {"NCCL", Verdict::warn, "beside InfiniBand",
       [](SiteCase& s) {
         s.facts[0].infiniband = true;
         s.facts[0].variables["NCCL_IB_DISABLE"] = "1";
       }},
      {"links between machines", Verdict::warn, "the slowest 100 MB/s",
       [](SiteCase& s) { s.measured.bytes_per_s[0][3] = 1e8; }},
      {"links within machines", Verdict::warn, "5 ms",
       [](SiteCase& s) {
         s.measured.latency_s[0][1] = s.measured.latency_s[2][3] = s.measured.latency_s[1][0] =
             s.measured.latency_s[3][2] = 5e-3;
       }},
      {"sums over all ranks", Verdict::warn, "16 MB in 240 ms",
       [](SiteCase& s) { s.measured.sums[0].seconds = 0.24; }},
  };
  for (const Fault& fault : faults) {
    CAPTURE(std::string(fault.says));
    SiteCase site = good_site();
    fault.make(site);
    const auto lines = lines_of(site);
    const DoctorLine& found = line(lines, fault.subject);
    CAPTURE(found.text);
    CHECK(found.verdict == fault.verdict);
    CHECK(found.text.find(fault.says) != std::string::npos);
    CHECK(!found.advice.empty());
    CHECK(doctor_exit_code(lines) == (fault.verdict == Verdict::fail ? 1 : 0));
  }
}

TEST_CASE("a good site of GPUs says which versions, ways and variables it has") {
  SiteCase site = good_site();
  give_gpus(site);
  const auto lines = lines_of(site);
  for (const DoctorLine& one : lines) {
    CAPTURE(one.text);
    CHECK(one.verdict == Verdict::ok);
  }
  CHECK(line(lines, "CUDA").text == "13.0 everywhere");
  CHECK(line(lines, "NVIDIA driver").text == "580.95 everywhere");
  CHECK(line(lines, "NCCL version").text == "2.28.9 everywhere");
  CHECK(line(lines, "NCCL").text ==
        "nothing costs speed; variables that are set: NCCL_SOCKET_IFNAME");
  CHECK(line(lines, "ways between GPUs").text.starts_with("all GPUs"));
}

TEST_CASE(
    "ranks that a launcher shows one GPU each, of its own, are as good as ranks that see all") {
  SiteCase site = good_site();
  give_gpus(site);
  CHECK(line(lines_of(site), "GPUs").text == "2 each, H100");
  for (RankFacts& facts : site.facts) {
    facts.gpus = 1;
    facts.gpu_pairs = 0;
  }
  const auto lines = lines_of(site);
  for (const DoctorLine& one : lines) {
    CAPTURE(one.text);
    CHECK(one.verdict == Verdict::ok);
  }
  CHECK(line(lines, "GPUs").text == "each rank sees one of its own, H100");
  // One rank on each machine: the GPUs have the same place on other buses.
  for (RankFacts& facts : site.facts) {
    facts.host = "node" + std::to_string(facts.rank);
    facts.local_size = 1;
    facts.gpu_address = "00000000:17:00";
  }
  CHECK(line(lines_of(site), "GPUs").verdict == Verdict::ok);
  CHECK(line(lines_of(site), "GPUs").text == "1 each, H100");
}

TEST_CASE("ranks that compute on CPUs do not need GPUs of their own") {
  SiteCase site = good_site();
  give_gpus(site);
  for (RankFacts& facts : site.facts) {
    facts.gpus = 1;
    facts.takes_gpu = false;
    facts.gpu_address.clear();
  }
  CHECK(line(lines_of(site), "GPUs").verdict == Verdict::ok);
  CHECK(line(diagnose_ranks(site.facts), "GPUs").text.starts_with("none: ranks compute on CPUs"));
}

TEST_CASE("each of NCCL's faults has a line, whatever else is wrong, and says what to unset") {
  SiteCase site = good_site();
  give_gpus(site);
  site.facts[0].variables["NCCL_P2P_DISABLE"] = "1";
  site.facts[1].variables = {{"NCCL_IB_DISABLE", "1"}, {"NCCL_DEBUG", "TRACE"}};
  std::vector<std::string> advice;
  for (const DoctorLine& one : lines_of(site)) {
    if (one.subject == "NCCL") advice.push_back(one.advice);
  }
  REQUIRE(advice.size() == 4);
  CHECK(advice[0] == "unset it: while it is set, sums go over sockets");
  CHECK(advice[1] == "unset it: while it is set, GPUs of one machine copy through its memory");
  CHECK(advice[3].starts_with("set NCCL_SOCKET_IFNAME=ib0: "));
  for (RankFacts& facts : site.facts) facts.interface.clear();
  CHECK(line(lines_of(site), "NCCL").verdict == Verdict::warn);
  for (const DoctorLine& one : lines_of(site)) CHECK(one.advice.find("eth0") == std::string::npos);
}

TEST_CASE("a machine whose own name leads nowhere has a line, where others must reach it") {
  SiteCase site = good_site();
  site.facts[2].name_leads_to = "this machine alone";
  const DoctorLine found = line(lines_of(site), "host names");
  CHECK(found.verdict == Verdict::warn);
  CHECK(found.text.starts_with("node2's name leads to this machine alone: "));
  CHECK(found.advice.find("--site-interface") != std::string::npos);
  const auto is_quiet = [&site] {
    return std::ranges::none_of(lines_of(site),
                                [](const auto& one) { return one.subject == "host names"; });
  };
  site.facts[2].interface = "eth0";
  CHECK(is_quiet());
  site.facts[2].interface = "";
  for (RankFacts& facts : site.facts) facts.host = "node2";
  CHECK(is_quiet());
}

TEST_CASE("the default topology is no advice") {
  SiteCase site = good_site();
  site.measured.topology = "backend";
  site.measured.sums[0].seconds = 0.24;
  const auto lines = lines_of(site);
  CHECK(line(lines, "sums over all ranks").advice ==
        "the links could do more; give each rank more cores");
  CHECK(line(lines, "advice").text.starts_with("the default --topology is the fastest"));
  site.measured.topology = "tree";
  CHECK(line(lines_of(site), "sums over all ranks").advice.ends_with("or try --topology tree"));
}

TEST_CASE("the text has the links between all ranks of a small site") {
  SiteCase site = good_site();
  site.measured.latency_s[3][0] = 0.0123;
  const std::string text = links_text(site.facts, site.measured);
  CAPTURE(text);
  CHECK(text.find("\n     3    12300       20       20        -\n") != std::string::npos);
  CHECK(text.find("\n     0        -    10000     2000     2000\n") != std::string::npos);
  CHECK(std::ranges::count(text, '\n') == 2 * 7);
  site.facts.resize(1);
  CHECK(links_text(site.facts, site.measured).empty());
  site.facts.resize(9);
  CHECK(links_text(site.facts, site.measured).find("--json") != std::string::npos);
}

TEST_CASE("the advice follows the slowest link") {
  const auto advice = [](double between) {
    SiteCase site = good_site();
    for (const std::size_t a : {0, 1}) {
      for (const std::size_t b : {2, 3})
        site.measured.bytes_per_s[a][b] = site.measured.bytes_per_s[b][a] = between;
    }
    return line(lines_of(site), "advice").text;
  };
  CHECK(advice(5e8).find("--hook bf16") != std::string::npos);
  CHECK(advice(5e8).find("--topology hierarchical") != std::string::npos);
  CHECK(advice(5e7).find("diloco") != std::string::npos);
}

TEST_CASE("a site of one rank has no links to judge") {
  SiteCase site = good_site();
  site.facts.resize(1);
  site.measured = {{{0}}, {{0}}, {}, "backend"};
  const auto lines = lines_of(site);
  CHECK(lines.size() == 6);
  CHECK(doctor_exit_code(lines) == 0);
}

TEST_CASE("facts and figures arrive as they were") {
  SiteCase site = good_site();
  give_gpus(site);
  const auto facts = parse_facts(parse_json(json_text(to_json_of(site.facts[2])))).value();
  CHECK(facts.host == "node2");
  CHECK(facts.gpu_address == "00000000:17:00");
  CHECK(facts.clock_s == 1e9);
  const auto measured = parse_measurement(parse_json(json_text(to_json_of(site.measured)))).value();
  CHECK(measured.bytes_per_s == site.measured.bytes_per_s);
  CHECK(measured.sums[0].bytes == 16e6);
  CHECK(parse_facts({{"rank", "x"}}).error().code() == Errc::protocol);
}

}  // namespace fl::test
