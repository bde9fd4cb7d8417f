// SPDX-License-Identifier: Apache-2.0
// The JSON of the pages about the history: what is in it, page by page, and what is not.
#include "server/admin/pages/history_pages.hpp"
#include "server/admin/pages/fleet_page.hpp"
#include "server/admin/pages/remedies.hpp"
#include "server/history/client_figures.hpp"
#include "shared/base/json.hpp"
#include "shared/base/limits.hpp"
#include "tests/server/history/records.hpp"
#include "tests/support/guide_table.hpp"
#include "tests/support/print_result.hpp"
#include "tests/support/temporary_folder.hpp"

#include <doctest/doctest.h>

#include <array>
#include <set>
#include <string>

namespace fl::test {

using namespace fl::server;
namespace {

struct History {
  TemporaryFolder temp;
  std::unique_ptr<Store> store = Store::open({.path = temp / "history.sqlite"}).value();
  RunId run = 0;

  explicit History(const std::string& config = R"({"codec": "none", "rounds": 3})") {
    add_run("0123456789abcdef", config);
  }

  void add_run(const std::string& key, const std::string& config) {
    RunRecord record = some_run(key);
    record.config_json = config;
    run = store->runs().create(record).value().id;
    store->rounds().set_initial_model(run, some_checkpoint(0)).value();
  }

  /// A closed round in which these clients' updates have these losses.
  void add_round(Round round, const std::vector<std::pair<std::string, double>>& losses) {
    std::vector<TaskRecord> tasks;
    for (const auto& [client, loss] : losses) tasks.push_back(some_task(client));
    tasks = store->rounds().open(run, some_round(round), tasks).value();
    std::vector<TaskRecord> decided;
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      TaskRecord task = accepted(tasks[i]);
      task.loss = losses[i].second;
      task.reference = TaskId::none;
      decided.push_back(task);
    }
    store->rounds().decide(decided).value();
    RoundCommit commit = some_commit(run, round);
    for (const TaskRecord& task : decided) commit.cosines.push_back({task.id, -0.5});
    store->rounds().commit(commit).value();
  }

  nlohmann::json ask(std::string_view path, std::string_view text = "", bool show_clients = false) {
    for (const HistoryPage& page : history_pages()) {
      if (page.path != path) continue;
      const auto query = AddressQuery::parse(text, page.names).value();
      return parse_json(page.text(*store, query, show_clients).value());
    }
    FAIL("no such page");
    return {};
  }
};

std::vector<std::pair<std::string, double>> eleven_clients() {
  std::vector<std::pair<std::string, double>> losses;
  for (int i = 0; i < 11; ++i) losses.emplace_back("site-" + std::to_string(10 + i), i);
  return losses;
}

}  // namespace

TEST_CASE("every page has an address of its own, takes its names, and is in the guide") {
  History history;
  history.add_round(1, {{"a", 1}});
  std::set<std::string_view> paths;
  std::string guide;
  for (const Cells& cells : guide_table("guide/dashboard.md", "| page |"))
    guide += quoted_in(cells.at(0)).at(0) + " ";
  for (const HistoryPage& page : history_pages()) {
    CAPTURE(page.path);
    CHECK(paths.insert(page.path).second);
    CHECK(page.path.starts_with("/api/"));
    const std::string path(page.path);
    const bool is_told =
        guide.find(path + "?") != guide.npos || guide.find(path + " ") != guide.npos;
    CHECK(is_told);
    CHECK(!history.ask(page.path).is_discarded());
    for (const std::string_view name : page.names) {
      CAPTURE(name);
      const bool is_number = name == "limit" || name == "run" || name == "round";
      if (is_number) CHECK(history.ask(page.path, std::string(name) + "=1").is_structured());
    }
  }
}

TEST_CASE("a query of an address has known names, each once, and its values are decoded") {
  constexpr std::array<std::string_view, 2> names{"text", "limit"};
  const auto query = AddressQuery::parse("text=a%20b+%3Cc%26&limit=12", names).value();
  CHECK(query.text("text") == "a b <c&");
  CHECK(query.number("limit", 1, 20).value() == 12);
  CHECK(query.text("other").empty());
  CHECK(!query.number("other", 1, 20).value());
  CHECK(!query.number("limit", 1, 11));
  CHECK(!query.number("text", 0, 11));
  for (const char* wrong : {"other=1", "text", "text=%2", "text=%zz", "text=1&text=2", "&"}) {
    CAPTURE(wrong);
    const auto parsed = AddressQuery::parse(wrong, names);
    REQUIRE(!parsed);
    CHECK(parsed.error().message().find("text, limit") != std::string::npos);
  }
  CHECK(!AddressQuery::parse("text=" + std::string(limits::admin_query_bytes_max, 'x'), names));
}

TEST_CASE("runs come newest first, with their settings and what they came to") {
  History history;
  history.add_round(1, {{"a", 1}, {"b", 2}});
  history.add_run("fedcba9876543210", R"({"codec": "qsgd:8", "rounds": 3})");
  const auto page = history.ask("/api/runs", "limit=1");
  CHECK(page["runs"].size() == 1);
  CHECK(page["runs"][0]["key"] == "fedcba9876543210");
  CHECK(page["runs"][0]["settings"]["codec"] == "qsgd:8");
  CHECK(page["runs"][0]["value_last"].is_null());
  CHECK(page["next"] == 2);
  const auto rest = history.ask("/api/runs", "before=2");
  CHECK(rest["runs"].size() == 1);
  CHECK(rest["runs"][0]["rounds_closed"] == 1);
  CHECK(rest["runs"][0]["bytes_up"] == 1000);
  CHECK(rest["runs"][0]["seconds"].get<double>() == doctest::Approx(7.5));
  CHECK(rest["next"].is_null());
}

TEST_CASE("a run's value is of its first and its last version that was measured") {
  History history(R"({"metric": "accuracy"})");
  for (Round round = 1; round <= 2; ++round) {
    history.add_round(round, {{"a", 1}});
    EvaluationRecord evaluation;
    evaluation.run = history.run;
    evaluation.version = round;
    evaluation.client = "judge";
    evaluation.evaluator = true;
    evaluation.examples = 10;
    evaluation.metrics = {{"accuracy", 0.25 * round, 10}};
    evaluation.kinds = {{"accuracy"}};
    history.store->measurements().add(evaluation).value();
  }
  const auto run = history.ask("/api/runs")["runs"][0];
  CHECK(run["metric"] == "accuracy");
  CHECK(run["value_first"] == 0.25);
  CHECK(run["value_last"] == 0.5);
  const auto series = history.ask("/api/series");
  CHECK(series["metric"] == "accuracy");
  CHECK(series["rows"][1][9] == 0.5);
}

TEST_CASE("the series has the figures of /api/rounds, page by page") {
  History history;
  for (Round round = 1; round <= 3; ++round)
    history.add_round(round, {{"a", 1}, {"b", 3}, {"c", 5}});
  const auto rounds = history.store->summaries().rounds(history.run).value();
  const auto first = history.ask("/api/series", "limit=2");
  CHECK(first["next"] == 2);
  const auto rest = history.ask("/api/series", "after=2&limit=2");
  CHECK(rest["next"].is_null());
  std::size_t at = 0;
  for (const auto& page : {first, rest}) {
    for (const auto& row : page["rows"]) {
      const RoundSummary& round = rounds[at++];
      CHECK(row.size() == page["columns"].size());
      CHECK(row[0] == round.round);
      CHECK(row[2] == round.seconds);
      CHECK(row[4] == 3);
      CHECK(row[5] == round.bytes_up);
      CHECK(row[6] == round.bytes_down);
      CHECK(row[7] == round.train_loss.value());
    }
  }
  CHECK(at == 3);
}

TEST_CASE(
    "a mean over fewer than three clients is on no page, unless figures of one may be shown") {
  History history(R"({"metric": "accuracy"})");
  const std::vector<std::pair<std::string, double>> three{{"a", 1}, {"b", 2}, {"c", 3}};
  history.add_round(1, three);
  history.add_round(2, {{"a", 1}, {"b", 2}});
  const auto measure = [&history](Version version, const std::string& client, bool evaluator) {
    EvaluationRecord evaluation;
    evaluation.run = history.run;
    evaluation.version = version;
    evaluation.client = client;
    evaluation.evaluator = evaluator;
    evaluation.examples = 10;
    evaluation.loss = 0.75;
    evaluation.metrics = {{"accuracy", 0.5, 10}};
    evaluation.own = EvaluationRecord::Own{0.25, {{"accuracy", 0.625, 10}}};
    evaluation.kinds = {{"accuracy"}};
    history.store->measurements().add(evaluation).value();
  };
  for (const auto& [client, loss] : three) measure(1, client, false);
  for (const char* client : {"a", "b"}) measure(2, client, false);
  const auto columns = history.ask("/api/series")["columns"];
  const auto shown = [&](bool show_clients) {
    std::vector<std::vector<std::string>> rounds;
    const auto page = history.ask("/api/series", "", show_clients);
    for (const auto& row : page["rows"]) {
      auto& names = rounds.emplace_back();
      for (std::size_t i = 0; i < columns.size(); ++i) {
        const auto name = columns[i].get<std::string>();
        const bool is_figure = name.starts_with("eval_") || name == "train_loss";
        if (is_figure && !row[i].is_null()) names.push_back(name);
      }
    }
    return rounds;
  };
  const std::vector<std::string> all{"train_loss", "eval_loss", "eval_metric"};
  CHECK(shown(false) == std::vector<std::vector<std::string>>{all, {}});
  CHECK(shown(true) == std::vector<std::vector<std::string>>{all, all});
  // The rounds' page has the same columns and more.
  const auto rounds =
      history.store->pages().rounds(history.run, 0, 9, clients_of_a_mean(false)).value();
  CHECK((rounds[0].own_metric && rounds[0].own_accuracy && rounds[0].eval_accuracy));
  CHECK(!(rounds[1].own_metric || rounds[1].own_accuracy || rounds[1].eval_accuracy));
  // A run's results, and its codec's loss.
  CHECK(history.ask("/api/runs")["runs"][0]["value_first"] == 0.5);
  CHECK(history.ask("/api/runs")["runs"][0]["value_last"].is_null());
  CHECK(history.ask("/api/runs", "", true)["runs"][0]["value_last"] == 0.5);
  CHECK(history.ask("/api/codecs")["codecs"][0]["nmse"].is_number());
  CHECK(history.ask("/api/codecs")["codecs"][0]["value_last"].is_null());
  // An evaluator is there to tell what it measures.
  measure(2, "judge", true);
  CHECK(history.ask("/api/runs")["runs"][0]["value_last"] == 0.5);
  // The loss of a codec that two clients have used is not shown.
  history.add_run("fedcba9876543210", "{}");
  history.add_round(1, {{"a", 1}, {"b", 2}});
  CHECK(history.ask("/api/codecs")["codecs"][0]["nmse"].is_null());
  CHECK(history.ask("/api/codecs", "", true)["codecs"][0]["nmse"].is_number());
}

TEST_CASE("a round's updates say how long each part took, and nothing of the clients' data") {
  History history;
  history.add_round(1, {{"a", 1.25}, {"b", 2.5}});
  const auto page = history.ask("/api/updates", "round=1");
  CHECK(page["round"]["round"] == 1);
  CHECK(page["updates"].size() == 2);
  const auto& update = page["updates"][0];
  CHECK(update["client"] == "a");
  CHECK(update["state"] == "accepted");
  CHECK(update["train_seconds"] == 3.5);
  CHECK(update["upload_seconds"] == 0.75);
  for (const char* name : {"loss", "norm", "cosine", "examples", "nmse", "steps"})
    CHECK(!update.contains(name));
  const auto shown = history.ask("/api/updates", "round=1", true)["updates"][1];
  CHECK(shown["loss"] == 2.5);
  CHECK(shown["norm"] == 0.75);
  CHECK(shown["cosine"] == -0.5);
  CHECK(shown["examples"] == 100);
  // Page by page, and without a round the newest.
  const auto first = history.ask("/api/updates", "limit=1");
  CHECK(first["next"] == first["updates"][0]["task"]);
  const auto next = history.ask("/api/updates", "after=" + first["next"].dump());
  CHECK(next["updates"][0]["client"] == "b");
}

TEST_CASE("the spread is of groups of five clients or more, and of fewer there is none") {
  CHECK(group_means({4, 1, 3, 2}, 5).empty());
  CHECK(group_means({5, 1, 3, 2, 4}, 5) == std::vector<double>{3});
  CHECK(group_means({9, 8, 7, 6, 5, 4, 3, 2, 1, 0}, 5) == std::vector<double>{2, 7});
  CHECK(group_means(std::vector<double>(1000, 1.5), 5) == std::vector<double>(5, 1.5));
  History history;
  history.add_round(1, {{"a", 1}, {"b", 2}, {"c", 3}, {"d", 4}});
  history.add_round(2, eleven_clients());
  const auto small = history.ask("/api/spread", "round=1")["figures"];
  REQUIRE_FALSE(small.empty());
  for (const auto& figure : small) CHECK(figure["group_means"].empty());
  const auto figures = history.ask("/api/spread")["figures"];
  CHECK(figures[0]["name"] == "training loss");
  CHECK(figures[0]["clients"] == 11);
  CHECK(figures[0]["group_means"] == nlohmann::json::parse("[2.0, 7.5]"));
  CHECK(figures[2]["name"] == "cosine with the round's mean");
  CHECK(figures[2]["group_means"] == nlohmann::json::parse("[-0.5, -0.5]"));
}

TEST_CASE("events come newest first, by level and text, with what to do") {
  History history;
  for (int i = 0; i < 3; ++i)
    history.store->events().add(history.run, EventLevel::info, "nothing special").value();
  history.store->events()
      .add(0, EventLevel::warning, "site-1 (x): update refused: <b>100%</b>")
      .value();
  const auto page = history.ask("/api/log", "limit=2");
  CHECK(page["events"][0]["text"] == "site-1 (x): update refused: <b>100%</b>");
  CHECK(page["events"][0]["remedy"].is_string());
  CHECK(page["events"][1]["remedy"].is_null());
  CHECK(history.ask("/api/log", "before=" + page["next"].dump())["events"].size() == 2);
  CHECK(history.ask("/api/log", "level=warning")["events"].size() == 1);
  CHECK(history.ask("/api/log", "text=SPECIAL")["events"].size() == 3);
  CHECK(history.ask("/api/log", "text=%25")["events"].size() == 1);
  CHECK(history.ask("/api/log", "run=1")["events"].size() == 4);
  for (const HistoryPage& each : history_pages()) {
    if (each.path != "/api/log") continue;
    const auto query = AddressQuery::parse("level=bad", each.names).value();
    CHECK(!each.text(*history.store, query, false));
  }
}

TEST_CASE("events have figures of one client's data only if they may be shown, and a search too") {
  History history;
  history.store->events()
      .add(history.run, EventLevel::warning,
           "site-1: update refused: its norm is 987.5, more than 4 times the median 1.25 "
           "(--norm-limit)")
      .value();
  for (int i = 0; i < 3; ++i)
    history.store->events()
        .add(history.run, EventLevel::info, "site-2 is here: trainer, 654 examples")
        .value();
  auto page = history.ask("/api/log");
  for (auto& event : page["events"]) event.erase("at");  // The time's digits may be any.
  CHECK(page.dump().find("987") == std::string::npos);
  CHECK(page.dump().find("654") == std::string::npos);
  REQUIRE(page["events"].size() == 4);
  CHECK(page["events"][0]["text"] == "site-2 is here: trainer");
  CHECK(page["events"][3]["text"] ==
        "site-1: update refused: its norm is too large beside the others' (--norm-limit)");
  CHECK(page["events"][3]["remedy"].is_string());
  for (const char* guess : {"text=654&limit=1", "text=987&limit=1"}) {
    CAPTURE(guess);
    const auto found = history.ask("/api/log", guess);
    CHECK(found["events"].empty());
    CHECK(found["next"].is_null());
  }
  const auto first = history.ask("/api/log", "text=TRAINER&limit=2");
  CHECK(first["events"].size() == 2);
  CHECK(history.ask("/api/log", "text=TRAINER&before=" + first["next"].dump())["events"].size() ==
        1);
  CHECK(history.ask("/api/log", "text=654", true)["events"].size() == 3);
  CHECK(history.ask("/api/log", "", true).dump().find("987.5") != std::string::npos);
}

TEST_CASE("an update's reason names its norm only if it may be shown") {
  History history;
  TaskRecord task = some_task("a");
  const auto open = history.store->rounds().open(history.run, some_round(1), {task}).value();
  task = open.front();
  task.state = TaskState::refused;
  task.reason = "its norm is 987.5, more than 4 times the median 1.25 (--norm-limit)";
  history.store->rounds().decide({task}).value();
  CHECK(history.ask("/api/updates")["updates"][0]["reason"] ==
        "its norm is too large beside the others' (--norm-limit)");
  CHECK(history.ask("/api/updates", "", true)["updates"][0]["reason"] == task.reason);
}

TEST_CASE("security events are apart from the others, by kind") {
  History history;
  history.store->audit().add(AuditKind::refusal, "site-1", "it was revoked").value();
  history.store->audit().add(AuditKind::renewal, "site-2", "a new certificate").value();
  CHECK(history.ask("/api/audit")["audit"][0]["client"] == "site-2");
  CHECK(history.ask("/api/audit")["audit"][0]["who"] == "site-2");
  history.store->audit().add_control("operator 'eve'", "site-1", "revokes the client").value();
  CHECK(history.ask("/api/audit")["audit"][0]["who"] == "operator 'eve'");
  CHECK(history.ask("/api/audit", "text=EVE")["audit"].size() == 1);
  CHECK(history.ask("/api/audit", "kind=refusal")["audit"].size() == 1);
  CHECK(history.ask("/api/audit", "text=site-1")["audit"][1]["text"] == "it was revoked");
  CHECK(history.ask("/api/log")["events"].empty());
}

TEST_CASE("the model's versions are those that are kept") {
  History history;
  for (Round round = 1; round <= 2; ++round) history.add_round(round, {{"a", 1}});
  const auto page = history.ask("/api/model", "limit=2");
  CHECK(page["versions"][0]["version"] == 2);
  CHECK(page["versions"][0]["digest"] == some_checkpoint(2).digest.hex());
  CHECK(page["next"] == 1);
  CHECK(history.ask("/api/model", "before=1")["versions"][0]["version"] == 0);
}

TEST_CASE(
    "the best version stands beside the series and the versions, unless too few measured it") {
  History history(R"({"metric": "accuracy"})");
  const auto answer = [&](Version version, std::string client, double value, bool is_evaluator) {
    EvaluationRecord record =
        some_evaluation(history.run, version, std::move(client), 10, 1, value);
    record.evaluator = is_evaluator;
    history.store->measurements().add(record).value();
  };
  for (Round round = 1; round <= 3; ++round) history.add_round(round, {{"a", 1}});
  CHECK(history.ask("/api/series")["best"].is_null());
  answer(2, "a", 0.875, false);
  answer(2, "b", 0.875, false);
  // A mean of two trainers' figures would tell each of them the other's.
  for (const char* const page : {"/api/series", "/api/model"}) {
    CAPTURE(std::string(page));
    CHECK(history.ask(page, "", false)["best"].is_null());
    CHECK(history.ask(page, "", true)["best"]["version"] == 2);
  }
  answer(2, "c", 0.875, false);
  CHECK(history.ask("/api/model", "", false)["best"]["value"] == 0.875);
  answer(3, "judge", 0.5, true);
  answer(1, "judge", 0.75, true);
  const auto best = history.ask("/api/series", "after=2", false)["best"];
  CHECK(best["version"] == 1);
  CHECK(best["metric"] == "accuracy");
  CHECK(best["value"] == 0.75);
  CHECK(best["is_exact"] == true);
  CHECK(best["is_kept"] == true);
  const auto rounds = history.ask("/api/rounds", "", false);
  CHECK(rounds[0]["is_best"] == true);
  CHECK(rounds[2]["is_best"] == false);
}

TEST_CASE("a page of a history without a run is empty") {
  const TemporaryFolder temp;
  const auto store = Store::open({.path = temp / "history.sqlite"}).value();
  for (const HistoryPage& page : history_pages()) {
    CAPTURE(page.path);
    CHECK(page.text(*store, AddressQuery::parse("", page.names).value(), true));
  }
}

ClientRecord client_named(const std::string& name) {
  ClientRecord client;
  client.name = name;
  return client;
}

TEST_CASE("the fleet's page joins what the history and the engine know") {
  FleetRecords records;
  records.total = 9;
  records.has_more = true;
  records.clients = {client_named("a"), client_named("b")};
  records.clients[0].enrolled_at = 5;
  records.clients[1].revoked_at = 7;
  records.uploads = {{"a", {1234.4, 600}}};
  std::vector<MemberStatus> members(2);
  members[0].activity = Activity::training;
  members[0].due_s = 30;
  members[0].trouble = "<img src=x>";
  members[0].trouble_at = 99;
  const auto page = parse_json(fleet_text(records, members, 1000, false));
  CHECK(page["next"] == "b");
  CHECK(page["members"][0]["state"] == "training");
  CHECK(page["members"][0]["next"] == "sends its update");
  CHECK(page["members"][0]["upload_bytes_per_s"] == 1234);
  CHECK(page["members"][0]["due_at"] == 1030);
  CHECK(page["members"][0]["trouble"] == "<img src=x>");
  members[0].trouble =
      "a: update refused: its norm is 9, more than 4 times the median 1 (--norm-limit)";
  CHECK(fleet_text(records, members, 1000, false).find("norm is 9") == std::string::npos);
  CHECK(fleet_text(records, members, 1000, true).find("norm is 9") != std::string::npos);
  CHECK(page["members"][1]["state"] == "revoked");
  CHECK(page["members"][1]["next"] == "nothing: it was revoked");
  CHECK(page["members"][1]["upload_bytes_per_s"].is_null());
  // How much data a client has says something of it; which model it trains does not.
  CHECK(!page["members"][0].contains("examples"));
  const auto all = parse_json(fleet_text(records, members, 1000, true));
  CHECK(all["members"][0]["examples"] == 600);
  CHECK(all["members"][1]["examples"].is_null());
}

TEST_CASE("a member that waits for a run is there, with its model, and is seen now") {
  FleetRecords records;
  records.clients = {client_named("a"), client_named("b")};
  for (ClientRecord& client : records.clients) client.last_seen_at = 5;
  std::vector<MemberStatus> members(2);
  members[0].activity = Activity::present;
  members[0].said = {.model = "lenet", .data = "1x28x28 pixels, 10 classes"};
  for (const auto& [waits_for, next] :
       {std::pair(WaitsFor::its_data, "gets ready"), std::pair(WaitsFor::a_run, "waits for a run"),
        std::pair(WaitsFor::another_run, "waits for another run")}) {
    members[0].waits_for = waits_for;
    const auto page = parse_json(fleet_text(records, members, 1000, false))["members"];
    CHECK(page[0]["state"] == "present");
    CHECK(page[0]["next"] == next);
    CHECK(page[0]["model"] == "lenet");
    CHECK(page[0]["data"] == "1x28x28 pixels, 10 classes");
    CHECK(page[0]["last_seen_at"] == 1000);
    CHECK(page[1]["state"] == "away");
    CHECK(page[1]["model"].is_null());
    CHECK(page[1]["last_seen_at"] == 5);
  }
}

TEST_CASE("clients come page by page, by name or a part of it") {
  History history;
  for (const char* name : {"site-a", "SITE-b", "other"})
    history.store->members().touch(name, false).value();
  CHECK(history.store->pages().clients("", "", 2).value().size() == 2);
  CHECK(history.store->pages().clients("other", "", 9).value().size() == 1);
  CHECK(history.store->pages().clients("", "Site", 9).value().size() == 2);
  CHECK(history.store->pages().client_count().value() == 3);
}

}  // namespace fl::test
