// SPDX-License-Identifier: Apache-2.0
// The printed forms of the history, character by character.
#include "server/history/format.hpp"
#include "shared/base/json.hpp"
#include "tests/server/history/records.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

namespace fl::test {

using namespace fl::server;
namespace {

std::vector<RoundSummary> two_rounds() {
  RoundSummary first;
  first.run = 1;
  first.round = 9;
  first.started_at = 1'750'000'000;
  first.seconds = 12.34;
  first.clients_offered = 10;
  first.clients_accepted = 8;
  first.bytes_up = 999;
  first.bytes_down = 1'500'000;
  first.train_loss = 2.30259;
  first.model_digest = "00ff";
  first.metric = "accuracy";
  RoundSummary second = first;
  second.round = 10;
  second.started_at += 60;
  second.seconds = 3725;
  second.bytes_up = 999'950;
  second.bytes_down = 2'000'000'000;
  second.train_loss = 1.5;
  second.eval_loss = 1.25;
  second.eval_accuracy = 0.98765;
  second.eval_metric = 0.98765;
  return {first, second};
}

std::vector<ClientRecord> two_clients() {
  ClientRecord plain = some_client("site-a", "0a1b");
  plain.enrolled_at = 1'750'000'000;
  ClientRecord odd = some_client("b\"\xc3\xbc,\n", "");
  odd.enrolled_at = 1'750'000'060;
  odd.last_seen_at = 1'750'000'061.5;
  odd.revoked_at = 1'750'000'062;
  odd.evaluator = true;
  odd.examples_max = 500;
  return {plain, odd};
}

}  // namespace

TEST_CASE("the history is printed as a table") {
  CHECK(format_rows(two_rounds(), {}, Format::table) ==
        "round  started (UTC)              time  clients      up    down  train loss  eval loss  "
        "accuracy\n"
        "9      2025-06-15 15:06:40      12.3 s     8/10   999 B  1.5 MB      2.3026          -  "
        "       -\n"
        "10     2025-06-15 15:07:40  1 h 02 min     8/10  1.0 MB  2.0 GB      1.5000     1.2500  "
        " 98.77 %\n"
        "total                       1 h 02 min    16/20  1.0 MB  2.0 GB      1.5000     1.2500  "
        " 98.77 %\n");
  CHECK(format_rows(std::vector<RoundSummary>{}, {}, Format::table) ==
        "no round is finished yet\n");
}

TEST_CASE("the round that made the best version is marked, and named below the table") {
  const auto rounds = two_rounds();
  BestVersions best{{1, {.version = 10, .figure = {"accuracy", 0.98765, true}}}};
  CHECK(format_rows(rounds, best, Format::table) ==
        "round  started (UTC)              time  clients      up    down  train loss  eval loss  "
        "accuracy\n"
        "9      2025-06-15 15:06:40      12.3 s     8/10   999 B  1.5 MB      2.3026          -  "
        "       -\n"
        "10     2025-06-15 15:07:40  1 h 02 min     8/10  1.0 MB  2.0 GB      1.5000     1.2500  "
        " 98.77 %  best\n"
        "total                       1 h 02 min    16/20  1.0 MB  2.0 GB      1.5000     1.2500  "
        " 98.77 %\n"
        "best: version 10, accuracy 98.77 %\n");
  const auto json = nlohmann::json::parse(format_rows(rounds, best, Format::json));
  CHECK(json[0]["is_best"] == false);
  CHECK(json[1]["is_best"] == true);
  CHECK(format_rows(rounds, best, Format::csv).find(",true,true\n") != std::string::npos);

  // The initial model has no row.
  best[1] = {.version = 0, .is_kept = false, .figure = {"loss", 0.5, true}};
  const std::string table = format_rows(rounds, best, Format::table);
  CHECK(table.ends_with("\nbest: version 0, loss 0.5000; its model is not kept\n"));
  CHECK(table.find("  best\n") == std::string::npos);

  // In a table of several runs only the marks say it.
  auto two_runs = rounds;
  two_runs[1].run = 2;
  best = {{1, {.version = 9}}, {2, {.version = 9}}};
  const std::string both = format_rows(two_runs, best, Format::table);
  CHECK(both.find("best: ") == std::string::npos);
  CHECK(std::ranges::count(both, 'b') == 1);
}

TEST_CASE("a round has the run's main metric, in percent only if it is a fraction") {
  auto rounds = two_rounds();
  for (RoundSummary& round : rounds) round.metric = "perplexity";
  rounds[1].eval_metric = 21.344;
  std::string table = format_rows(rounds, {}, Format::table);
  CHECK(table.find(" eval loss  perplexity\n") != std::string::npos);
  CHECK(table.find("         -           -\n") != std::string::npos);
  CHECK(table.find("    1.2500       21.34\n") != std::string::npos);
  // No mean makes an AUROC of several clients exact.
  for (RoundSummary& round : rounds) round.metric = "auroc";
  rounds[1].eval_metric = 0.875;
  rounds[1].is_exact = false;
  table = format_rows(rounds, {}, Format::table);
  CHECK(table.find("    1.2500  ~87.50 %\n") != std::string::npos);
  CHECK(table.ends_with("1.2500  ~87.50 %\n"));  // The total.
  // The loss has its own column already.
  for (RoundSummary& round : rounds) round.metric = "loss";
  table = format_rows(rounds, {}, Format::table);
  CHECK(table.find("eval loss\n") != std::string::npos);
  CHECK(table.ends_with("1.2500\n"));
  // Runs with different main metrics.
  rounds[0].run = 7;
  rounds[0].metric = "mae";
  rounds[0].eval_metric = 2.5;
  rounds[1].metric = "auroc";
  table = format_rows(rounds, {}, Format::table);
  CHECK(table.find("eval loss          metric\n") != std::string::npos);
  CHECK(table.find("        -         mae 2.5\n") != std::string::npos);
  CHECK(table.find("   1.2500  auroc ~87.50 %\n") != std::string::npos);
}

TEST_CASE("all metrics of the versions are printed as a table, as JSON and as CSV") {
  MetricSummary f1{.run = 1, .version = 2, .name = "f1", .value = 0.5};
  f1.clients = 2;
  f1.examples = 300;
  f1.by_evaluators = true;
  MetricSummary auroc = f1;
  auroc.name = "auroc";
  auroc.value = 0.875;
  auroc.is_exact = false;
  auroc.clients = 1;
  auroc.by_evaluators = false;
  const std::vector<MetricSummary> rows{f1, auroc};
  CHECK(format_rows(rows, Format::table) ==
        "version  metric     value   measured by  examples\n"
        "1:2      f1       50.00 %  2 evaluators       300\n"
        "1:2      auroc   ~87.50 %     1 trainer       300\n");
  CHECK(format_rows(rows, Format::csv) ==
        "run_id,version,name,value,is_exact,clients,examples,evaluator\n"
        "1,2,f1,0.5,true,2,300,true\n"
        "1,2,auroc,0.875,false,1,300,false\n");
  CHECK(nlohmann::json::parse(format_rows(rows, Format::json))[1]["name"] == "auroc");
  CHECK(format_rows(std::vector<MetricSummary>{}, Format::table) == "nothing is measured yet\n");
}

TEST_CASE("if clients have their own models, the table has a column for their accuracy") {
  auto rounds = two_rounds();
  rounds[1].own_metric = 0.995;
  const std::string table = format_rows(rounds, {}, Format::table);
  CHECK(table.find("accuracy  own model\n") != std::string::npos);
  CHECK(table.find("       -          -\n") != std::string::npos);
  CHECK(table.find(" 98.77 %    99.50 %\n") != std::string::npos);
}

TEST_CASE("a table of several runs names the run of each round") {
  auto rounds = two_rounds();
  rounds[1].run = 2;
  const std::string table = format_rows(rounds, {}, Format::table);
  CHECK(table.find("\n1:9 ") != std::string::npos);
  CHECK(table.find("\n2:10 ") != std::string::npos);
}

TEST_CASE("a cell changes its unit before the number becomes too long") {
  const auto cell = [](std::uint64_t bytes, double seconds) {
    RoundSummary round;
    round.bytes_up = bytes;
    round.seconds = seconds;
    const std::string table = format_rows(std::vector<RoundSummary>{round}, {}, Format::table);
    return table.substr(table.find('\n') + 1, table.find('\n', table.find('\n') + 1));
  };
  CHECK(cell(0, 0).find(" 0 B ") != std::string::npos);
  CHECK(cell(1000, 0).find(" 1.0 kB ") != std::string::npos);
  CHECK(cell(999'949, 0).find(" 999.9 kB ") != std::string::npos);
  CHECK(cell(999'951, 0).find(" 1.0 MB ") != std::string::npos);
  CHECK(cell(std::numeric_limits<std::uint64_t>::max(), 0).find(" 18.4 EB ") != std::string::npos);
  CHECK(cell(0, 59.94).find(" 59.9 s ") != std::string::npos);
  CHECK(cell(0, 59.96).find(" 1 min 00 s ") != std::string::npos);
  CHECK(cell(0, 3599.4).find(" 59 min 59 s ") != std::string::npos);
  CHECK(cell(0, 3599.6).find(" 1 h 00 min ") != std::string::npos);
}

TEST_CASE("the history as JSON has the view's columns in order, and null for unknown values") {
  auto rounds = two_rounds();
  rounds[1].own_accuracy = 0.995;
  const auto json = nlohmann::ordered_json::parse(format_rows(rounds, {}, Format::json));
  REQUIRE(json.size() == 2);
  std::string names;
  for (const auto& [name, value] : json[0].items()) names += name + " ";
  CHECK(
      names ==
      "run_id round started_at seconds clients_offered clients_accepted bytes_up "
      "bytes_down train_loss eval_loss eval_accuracy model_digest own_accuracy metric eval_metric "
      "own_metric is_exact is_best ");
  CHECK(json[0]["eval_loss"].is_null());
  CHECK(json[1]["eval_accuracy"] == 0.98765);
  CHECK(json[0]["own_accuracy"].is_null());
  CHECK(json[1]["own_accuracy"] == 0.995);
  CHECK(json[1]["bytes_down"] == 2'000'000'000);
  CHECK(json[1]["model_digest"] == "00ff");
  CHECK(format_rows(std::vector<RoundSummary>{}, {}, Format::json) == "[]\n");
}

TEST_CASE("the history is printed as CSV") {
  auto rounds = two_rounds();
  rounds[1].train_loss = std::numeric_limits<double>::infinity();
  CHECK(format_rows(rounds, {}, Format::csv) ==
        "run_id,round,started_at,seconds,clients_offered,clients_accepted,bytes_up,bytes_down,"
        "train_loss,eval_loss,eval_accuracy,model_digest,own_accuracy,metric,eval_metric,"
        "own_metric,is_exact,is_best\n"
        "1,9,1750000000.0,12.34,10,8,999,1500000,2.30259,,,00ff,,accuracy,,,true,false\n"
        "1,10,1750000060.0,3725.0,10,8,999950,2000000000,,1.25,0.98765,00ff,,accuracy,0.98765,,"
        "true,false\n");
}

TEST_CASE("the codecs are printed as a table, as JSON and as CSV") {
  CodecSummary of;
  of.run = 3;
  of.codec = "topk:0.01+qsgd:4";
  of.updates = 20;
  of.raw_bytes = 4'000'000;
  of.update_bytes = 50'000;
  of.encode_seconds = 0.05;
  of.save_seconds = 0.08;
  of.residual_seconds = 0.02;
  of.digest_seconds = 0.002;
  of.sync_seconds = 0.006;
  of.decode_seconds = 0.02;
  of.nmse = 0.4321;
  of.bytes = 150'000;
  of.accuracy_first = 0.125;
  of.accuracy_last = 0.875;
  of.metric = "f1";
  of.value_first = 0.25;
  of.value_last = 0.75;
  CodecSummary early;
  early.codec = "none";
  early.updates = 1;
  CHECK(
      format_rows(std::vector<CodecSummary>{of, early}, Format::table) ==
      "codec             run  updates    fp32     sent  ratio   encode  residual     sync     save"
      "   decode    NMSE  measured last  traffic a point\n"
      "topk:0.01+qsgd:4    3       20  4.0 MB  50.0 kB   80.0  2.50 ms   1.00 ms  0.30 ms  4.00 ms"
      "  1.00 ms  0.4321     f1 75.00 %           3.0 kB\n"
      "none                0        1     0 B      0 B      -  0.00 ms   0.00 ms  0.00 ms  0.00 ms"
      "  0.00 ms  0.0000              -                -\n");
  CHECK(format_rows(std::vector<CodecSummary>{}, Format::table) == "no update was accepted yet\n");
  const auto json = parse_json(format_rows(std::vector<CodecSummary>{of, early}, Format::json));
  CHECK(json[0]["bytes_per_point"] == 3000);
  CHECK(json[1]["bytes_per_point"].is_null());
  CHECK(format_rows(std::vector<CodecSummary>{of}, Format::csv) ==
        "run_id,codec,updates,raw_bytes,update_bytes,encode_seconds,save_seconds,residual_seconds,"
        "digest_seconds,sync_seconds,decode_seconds,train_seconds,nmse,bytes,accuracy_first,"
        "accuracy_last,metric,value_first,value_last,bytes_"
        "per_point\n"
        "3,topk:0.01+qsgd:4,20,4000000,50000,0.05,0.08,0.02,0.002,0.006,0.02,0.0,0.4321,150000,0."
        "125,0.875,f1,0.25,"
        "0.75,"
        "3000.0\n");
  of.metric = "perplexity";  // It has no points.
  const auto other = parse_json(format_rows(std::vector<CodecSummary>{of}, Format::json));
  CHECK(other[0]["bytes_per_point"].is_null());
}

TEST_CASE("the codecs that clients were asked for are printed as a table, as JSON and as CSV") {
  CodecAsked early{.run = 2,
                   .round = 1,
                   .client = "site-a",
                   .codec = "ecuq:2+ef",
                   .reason = "it begins, in the middle"};
  CodecAsked here = early;
  here.round = 10;
  here.client = "b\n";
  here.state = TaskState::accepted;
  here.update_bytes = 12'345;
  here.ready_seconds = 4.5;
  here.upload_seconds = 75;
  CHECK(format_rows(std::vector<CodecAsked>{early, here}, Format::table) ==
        "round  client  codec      state     sent     ready after  upload      why\n"
        "2:1    site-a  ecuq:2+ef  offered   -        -            -           it begins, in the "
        "middle\n"
        "2:10   b?      ecuq:2+ef  accepted  12.3 kB  4.5 s        1 min 15 s  it begins, in the "
        "middle\n");
  CHECK(format_rows(std::vector<CodecAsked>{}, Format::table).starts_with("no codec was chosen"));
  const auto json = parse_json(format_rows(std::vector<CodecAsked>{early, here}, Format::json));
  CHECK(json[0]["state"] == "offered");
  CHECK(json[1]["upload_seconds"] == 75);
  CHECK(format_rows(std::vector<CodecAsked>{here}, Format::csv) ==
        "run_id,round,client,codec,state,update_bytes,ready_seconds,upload_seconds,reason\n"
        "2,10,b?,ecuq:2+ef,accepted,12345,4.5,75.0,\"it begins, in the middle\"\n");
}

TEST_CASE("events are printed in every format") {
  const EventRecord start{0, 1'750'000'000, EventLevel::info, "fl-server starts"};
  const EventRecord refused{3, 1'750'000'001.5, EventLevel::warning,
                            "b: update refused: \x1b[2J, twice"};
  const std::vector<EventRecord> both{start, refused};
  CHECK(format_rows(both, Format::table) ==
        "time (UTC)           level    event\n"
        "2025-06-15 15:06:40  info     fl-server starts\n"
        "2025-06-15 15:06:41  warning  b: update refused: ?[2J, twice\n");
  CHECK(format_rows(std::vector<EventRecord>{}, Format::table) == "nothing has happened yet\n");
  const auto json = parse_json(format_rows(both, Format::json));
  CHECK(json[0]["run_id"].is_null());
  CHECK(json[1]["run_id"] == 3);
  CHECK(format_rows(both, Format::csv) ==
        "run_id,at,level,text\n"
        ",1750000000.0,info,fl-server starts\n"
        "3,1750000001.5,warning,\"b: update refused: ?[2J, twice\"\n");
  // No terminal shows what a client has sent as anything else than text, not even in JSON.
  const std::vector<EventRecord> evil{{3, 1, EventLevel::warning,
                                       "\xc2\x9b"
                                       "2J\xe2\x80\xae\xff"}};
  CHECK(format_rows(evil, Format::json).find("\\u009b2J\\u202e\xef\xbf\xbd") != std::string::npos);
  CHECK(format_rows(evil, Format::csv).find(",?2J??\n") != std::string::npos);
}

TEST_CASE("the clients are printed as a table, in which no name breaks a line") {
  CHECK(format_rows(two_clients(), Format::table) ==
        "name    enrolled (UTC)       last seen            certificate serial  revoked        "
        "      role       examples at most\n"
        "site-a  2025-06-15 15:06:40  never                0a1b                no             "
        "      trainer\n"
        "b\"\xc3\xbc,?   2025-06-15 15:07:40  2025-06-15 15:07:41  -                   2025-06-15 "
        "15:07"
        ":42  evaluator               500\n");
  CHECK(format_rows(std::vector<ClientRecord>{}, Format::table) == "no client is enrolled yet\n");
}

TEST_CASE("the clients are printed as JSON and as CSV") {
  const auto json = parse_json(format_rows(two_clients(), Format::json));
  REQUIRE(json.size() == 2);
  CHECK(json[0]["name"] == "site-a");
  CHECK(json[0]["last_seen_at"].is_null());
  CHECK(json[0]["evaluator"] == false);
  CHECK(json[1]["name"] == "b\"\xc3\xbc,\n");
  CHECK(json[1]["revoked_at"] == 1'750'000'062);
  CHECK(format_rows(two_clients(), Format::csv) ==
        "name,enrolled_at,last_seen_at,certificate_serial,revoked_at,evaluator,examples_max\n"
        "site-a,1750000000.0,,0a1b,,false,\n"
        "\"b\"\"\xc3\xbc,?\",1750000060.0,1750000061.5,,1750000062.0,true,500\n");
}

TEST_CASE("a name that is not UTF-8 still gives valid JSON") {
  const auto json = parse_json(
      format_rows(std::vector<ClientRecord>{some_client("\xff\xfe", "01")}, Format::json));
  CHECK(json[0]["name"] == "\xef\xbf\xbd\xef\xbf\xbd");
}

TEST_CASE("a run's header has its number, key, model, state, rounds, seed and start") {
  RunRecord run = some_run();
  run.id = 4;
  run.seed = 7;
  run.state = RunState::running;
  run.started_at = 1'750'000'000;
  run.config_json = R"({"strategy":"fedavg","codec":"ecuq:4","lr":0.1})";
  CHECK(format_run_header(run) ==
        "run 4 (cnn, fedavg, ecuq:4): running\n"
        "3 rounds wanted, seed 7, key 0123456789abcdef, started 2025-06-15 15:06:40 UTC\n");
}

TEST_CASE("runs are told apart by number, model, method and codec") {
  RunSummary first;
  first.run = some_run();
  first.run.id = 1;
  first.run.started_at = 1'750'000'000;
  first.run.config_json = R"({"strategy":"fedprox:mu=0.1","codec":"topk:0.01\u001b"})";
  RunSummary second = first;
  second.run.id = 12;
  second.run.config_json = "";  // An older program wrote no settings.
  second.run.state = RunState::finished;
  second.rounds_closed = 3;
  CHECK(format_rows(std::vector<RunSummary>{first, second}, Format::table) ==
        "run  model  method          codec       state     rounds  made (UTC)           key\n"
        "1    cnn    fedprox:mu=0.1  topk:0.01?  waiting   0 of 3  2025-06-15 15:06:40  "
        "0123456789abcdef\n"
        "12   cnn    -               -           finished  3 of 3  2025-06-15 15:06:40  "
        "0123456789abcdef\n");
  const auto json = parse_json(format_rows(std::vector<RunSummary>{first}, Format::json));
  CHECK(json[0]["strategy"] == "fedprox:mu=0.1");
  CHECK(json[0]["run_id"] == 1);
}

}  // namespace fl::test
