// SPDX-License-Identifier: Apache-2.0
// The actions of operators: which requests are taken, which are refused with what reason, and what
// is written into the history.
#include "server/app/control.hpp"
#include "server/admin/request.hpp"
#include "server/app/setting_form.hpp"
#include "server/run/settings_table.hpp"
#include "tests/server/history/store_world.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace fl::test {

using namespace fl::server;
namespace {

using nlohmann::json;

struct Desk {
  StoreWorld world;
  Store& store = *world.store;
  std::vector<ControlAction> actions;

  Desk() {
    RunOptions options;
    options.state = "/nonesuch";
    options.settings.model = "lenet";
    options.settings.lr = 0.7;  // The options of the server's own command line.
    actions = control_actions(options);
  }
  [[nodiscard]] const ControlAction& action(const std::string& name) const {
    const auto found = std::ranges::find(actions, name, &ControlAction::name);
    REQUIRE(found != actions.end());
    return *found;
  }
  Result<json> run(const std::string& name, const char* body) {
    return action(name).run(store, parse_json(body), "operator 'eve'");
  }
  /// A run with a model, that is under way.
  RunId begin() {
    const RunId run = store.runs().create(some_run()).value().id;
    store.rounds().set_initial_model(run, some_checkpoint(0)).value();
    return run;
  }
};

TEST_CASE("a queued run has the settings that were sent, and the defaults") {
  Desk desk;
  const auto made =
      desk.run("queue", R"({"settings": {"model": "synthetic:10", "rounds": 7, "codec": "none"}})");
  REQUIRE(made);
  const auto run = desk.store.runs().find((*made)["run"].get<RunId>()).value();
  REQUIRE(run);
  CHECK(run->queued);
  CHECK(run->rounds_total == 7);
  const RunSettings settings = settings_from_json(run->config_json).value();
  CHECK(settings.model == "synthetic:10");
  CHECK(settings.codec == "none");
  CHECK(settings.lr == RunSettings().lr);
}

TEST_CASE("a form has each setting that has a flag and names no file of the server's machine") {
  Desk desk;
  desk.begin();
  const auto form = parse_json(setting_form(desk.store).value())["settings"];
  std::set<std::string> flags;
  for (const auto& field : form) {
    const std::string flag = field["flag"];
    CAPTURE(flag);
    flags.insert(flag.substr(2));
    CHECK_FALSE(field["group"].get<std::string>().empty());
    CHECK_FALSE(field["help"].get<std::string>().empty());
    CHECK(field["help"].get<std::string>().find("{}") == std::string::npos);
    CHECK((field["kind"] == "text") != field.contains("limits"));
  }
  std::set<std::string> all;
  const RunSettingTable table = run_setting_table();
  for (const RunSettingRow& row : table.rows())
    if (!row.flag.empty()) all.insert(std::string(row.flag));
  CHECK(all.erase("initial-weights") == 1);
  CHECK(flags == all);
  const auto field = [&form](const char* name) {
    for (const auto& each : form)
      if (each["name"] == name) return each;
    return json();
  };
  CHECK(field("rounds")["limits"] == "1 or more");
  CHECK(field("rounds")["default"] == "10");
  CHECK(field("local_epochs")["limits"] == "1 or more");
  CHECK(field("lr")["limits"] == "above 0");
  CHECK(field("lr")["default"] == "0.01");
  CHECK(field("deadline_s")["flag"] == "--deadline");
  CHECK(field("deadline_s")["default"] == "600");
  CHECK(field("deadline_s")["limits"] == "from 0.1 to 10000000 seconds, or 0 for none");
  CHECK(field("seed")["default"] == "random");
  CHECK(field("target")["default"] == "");
  CHECK(field("keep_best")["default"] == "on");
  CHECK(field("model")["default"] == desk.store.runs().latest().value()->model);
}

TEST_CASE("numbers that come as texts are read as the command line reads them") {
  Desk desk;
  const auto made = desk.run("queue", R"({"settings": {"model": "synthetic:10", "rounds": "7",
      "lr": "1e-3", "seed": "18446744073709551615", "codec": "none"}})");
  REQUIRE(made);
  const auto run = desk.store.runs().find((*made)["run"].get<RunId>()).value();
  const RunSettings settings = settings_from_json(run->config_json).value();
  CHECK(settings.rounds == 7);
  CHECK(settings.lr == 0.001);
  CHECK(settings.seed == 18446744073709551615ULL);
  for (const auto& [body, said] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"({"settings": {"rounds": "seven"}})",
            "--rounds: 'seven' is not a whole number from 0 to 4294967295"},
           {R"({"settings": {"rounds": "007"}})",
            "--rounds: '007' is not a whole number from 0 to 4294967295"},
           {R"({"settings": {"local_epochs": "0"}})",
            "--local-epochs: '0' is not a whole number from 1 to 4294967295"},
           {R"({"settings": {"lr": "nan"}})", "--lr: 'nan' is not a number"},
           {R"({"settings": {"lr": "0"}})", "--lr: it must be above 0, not 0"},
           {R"({"settings": {"optimizer": "adam", "momentum": "0.5"}})",
            "--momentum is for sgd and nesterov; --optimizer adam has beta1= instead"}}) {
    CHECK(desk.run("queue", body).error().message() == said);
  }
  CHECK(desk.store.runs().all().value().size() == 1);
}

TEST_CASE("bad requests for a run are refused and queue nothing") {
  Desk desk;
  for (const auto& [body, word] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"({})", "settings"},
           {R"({"settings": []})", "settings"},
           {R"({"settings": {}})", "at least one"},
           {R"({"settings": {"speed": 1}})", "no setting \"speed\""},
           {R"({"settings": {"rounds": "seven"}})", "rounds"},
           {R"({"settings": {"rounds": 0}})", "--rounds"},
           {R"({"settings": {"rounds": -1}})",
            "\"rounds\": it must be a whole number from 0 to 4294967295, not -1"},
           {R"({"settings": {"rounds": 1.5}})", "not 1.5"},
           {R"({"settings": {"rounds": 4294967296}})", "not 4294967296"},
           {R"({"settings": {"seed": 1180591620717411303424}})",
            "\"seed\": it must be a whole number from 0 to 18446744073709551615, not 1.18"},
           {R"({"settings": {"lr": true}})", "\"lr\": it must be a number, not true"},
           {R"({"settings": {"codec": 7}})", "\"codec\": it must be a text, not 7"},
           {R"({"settings": {"codec": "zip"}})", "zip"},
           {R"({"settings": {"tensors": []}})", "no setting \"tensors\""},
           {R"({"settings": {"initial_weights": "/etc/passwd"}})", "server's machine"}}) {
    const char* const sent = body;  // INFO captures it, which clang 14 can't do with a binding.
    INFO(sent);
    const auto refused = desk.run("queue", sent);
    REQUIRE(refused.has_error());
    CHECK(refused.error().message().find(word) != std::string::npos);
  }
  CHECK(desk.store.runs().all().value().empty());
}

TEST_CASE("a run under way ends early, and one that is over can't be ended") {
  Desk desk;
  const RunId run = desk.begin();
  CHECK(desk.run("stop", R"({"run": 1})"));
  CHECK(desk.store.runs().find(run).value()->early_end == "operator 'eve' has ended it");
  CHECK(desk.store.runs().find(run).value()->state == RunState::running);
  CHECK(desk.store.events().all(run).value().back().level == EventLevel::notice);
  desk.store.runs().set_state(run, RunState::finished).value();
  CHECK(desk.run("stop", R"({"run": 1})").error().message() == "run 1 is over");
  CHECK(desk.run("drop", R"({"run": 1})").error().message() == "run 1 is over");
  CHECK(desk.run("stop", R"({"run": 2})").error().code() == Errc::not_found);
  for (const char* body : {R"({})", R"({"run": ""})", R"({"run": -1})", R"({"run": 1.5})",
                           R"({"run": 18446744073709551615})"})
    CHECK(desk.run("stop", body).error().code() == Errc::invalid_input);
}

TEST_CASE("a run without a model can be removed wherever it is in the queue, by either action") {
  for (const char* action : {"stop", "drop"}) {
    for (const RunId removed : {1, 2}) {
      CAPTURE(action);
      CAPTURE(removed);
      Desk desk;
      desk.store.runs().create(some_run()).value();
      RunRecord queued = some_run("fedcba9876543210");
      queued.queued = true;
      desk.store.runs().create(queued).value();
      const std::string body = fmt::format(R"({{"run": {}}})", removed);
      CHECK(desk.run(action, body.c_str()));
      const RunRecord run = *desk.store.runs().find(removed).value();
      CHECK(run.state == RunState::stopped);
      CHECK(run.early_end == "operator 'eve' has removed it");
      CHECK(desk.store.events().all(removed).value().back().level == EventLevel::notice);
      CHECK(desk.store.runs().next_open().value()->id == 3 - removed);
      CHECK(desk.run(action, body.c_str()).error().code() == Errc::conflict);
    }
  }
}

TEST_CASE("a run under way is not dropped") {
  Desk desk;
  const RunId run = desk.begin();
  const auto refused = desk.run("drop", R"({"run": 1})");
  CHECK(refused.error().code() == Errc::conflict);
  CHECK(refused.error().message().find("'fl-server end-run 1'") != std::string::npos);
  CHECK(desk.store.runs().find(run).value()->state == RunState::running);
}

TEST_CASE("a run is named by its number or its key") {
  Desk desk;
  const auto add = [&](const char* key) {
    return desk.store.runs().create(some_run(key)).value().id;
  };
  const RunId first = add("0123456789abcdef");
  const RunId second = add("0000000000000001");  // A key that is a number, too.
  CHECK((*desk.run("drop", R"({"run": "0123456789abcdef"})"))["run"] == first);
  CHECK((*desk.run("drop", R"({"run": "0000000000000001"})"))["run"] == second);
  const RunId third = add("fedcba9876543210");
  CHECK((*desk.run("drop", fmt::format(R"({{"run": "{}"}})", third).c_str()))["run"] == third);
  for (const char* body : {R"({"run": "fedcba"})", R"({"run": "99"})", R"({"run": "-1"})"})
    CHECK(desk.run("drop", body).error().code() == Errc::not_found);
}

TEST_CASE("numbers of an invitation that are none are refused") {
  Desk desk;
  for (const char* body :
       {R"({"client": "a", "examples_max": -1})", R"({"client": "a", "examples_max": 1.5})",
        R"({"client": "a", "examples_max": 18446744073709551615})",
        R"({"client": "a", "expires_s": "1"})", R"({"client": "a", "expires_s": 1e10})"}) {
    CAPTURE(body);
    CHECK(desk.run("enroll", body).error().code() == Errc::invalid_input);
  }
}

TEST_CASE("an operator's token is new each time, and its hash finds the operator") {
  Desk desk;
  const std::string token =
      name_operator(desk.store.operators(), "eve", "operator", "a test").value();
  CHECK(token.size() == 5 + 43);
  const auto found = desk.store.operators().with_token(operator_token_hash(token)).value();
  REQUIRE(found);
  CHECK(found->name == "eve");
  CHECK(found->token_hash != token);
  CHECK_FALSE(desk.store.operators().with_token(operator_token_hash(token + "x")).value());
  CHECK(name_operator(desk.store.operators(), "eve", "admin", "a test").error().code() ==
        Errc::conflict);
  for (const char* name : {"", "a b", "a\n", "<b>", "\xc3\xbc"})
    CHECK(name_operator(desk.store.operators(), name, "admin", "a test").error().code() ==
          Errc::invalid_input);
  CHECK(name_operator(desk.store.operators(), std::string(65, 'a'), "admin", "a test").has_error());
  CHECK(name_operator(desk.store.operators(), "bob", "root", "a test").has_error());

  REQUIRE(desk.store.operators().revoke("eve", "a test"));
  CHECK_FALSE(desk.store.operators().with_token(operator_token_hash(token)).value());
  CHECK_FALSE(desk.store.operators().find("eve").value());
  CHECK(desk.store.operators().revoke("eve", "a test").error().code() == Errc::not_found);
  CHECK(name_operator(desk.store.operators(), "eve", "admin", "a test").value() != token);
  CHECK_FALSE(desk.store.operators().with_token(operator_token_hash(token)).value());

  std::vector<std::string> texts;
  for (const auto& row : desk.store.audit().all().value()) {
    CHECK(row.kind == AuditKind::operators);
    CHECK(row.who == "a test");
    texts.push_back(row.text);
  }
  CHECK(texts == std::vector<std::string>{"'eve' is an operator now, with the role operator",
                                          "'eve' is revoked",
                                          "'eve' is an operator now, with the role admin"});
}

TEST_CASE("what stands in the audit names what was done and never a secret") {
  const Desk desk;
  const auto text = [&](const char* name, const char* body) {
    const json parsed = parse_json(body);
    return desk.action(name).client(parsed) + "|" + desk.action(name).text(parsed);
  };
  CHECK(text("revoke", R"({"client": "b"})") == "b|revokes the client");
  CHECK(text("stop", R"({"run": 3})") == "|ends run 3");
  CHECK(text("stop", R"({"run": {"a": 1}})") == "|ends run {\"a\":1}");
  CHECK(text("enroll", R"({})") == "nothing|makes a join token for the client");
  CHECK(text("add-operator", R"({"name": "bob", "role": "admin"})") ==
        "|names an operator 'bob' with the role admin");
}

TEST_CASE("a request that another site has made changes nothing") {
  const auto status = [](std::initializer_list<std::pair<http::field, const char*>> fields,
                         const char* site = nullptr, http::verb method = http::verb::post) {
    HttpRequest request(method, "/api/control/queue", 11);
    request.set(http::field::host, "trainer:8080");
    request.set(http::field::content_type, "application/json; charset=utf-8");
    for (const auto& [field, value] : fields) request.set(field, value);
    if (site != nullptr) request.set("Sec-Fetch-Site", site);
    const auto refused = refuse_foreign(request);
    return refused ? refused->status : 200u;
  };
  using http::field;
  CHECK(status({}) == 200);  // A script.
  CHECK(status({{field::origin, "http://trainer:8080"}}, "same-origin") == 200);
  CHECK(status({{field::origin, "https://trainer:8080"}}) == 200);  // Behind a proxy with HTTPS.
  for (const char* origin : {"http://evil", "http://trainer:8081", "http://trainer:8080.evil",
                             "null", "trainer:8080", "http://evil/trainer:8080"})
    CHECK(status({{field::origin, origin}}) == 403);
  for (const char* site : {"cross-site", "same-site", "SAME-ORIGIN"})
    CHECK(status({}, site) == 403);
  for (const char* type : {"text/plain", "application/x-www-form-urlencoded", ""})
    CHECK(status({{field::content_type, type}}) == 415);
  CHECK(status({}, nullptr, http::verb::get) == 405);
  CHECK(status({}, nullptr, http::verb::delete_) == 405);
}

}  // namespace
}  // namespace fl::test
