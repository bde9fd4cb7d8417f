// SPDX-License-Identifier: Apache-2.0
// The table of a run's settings: everything about a setting follows from its one row.
#include "server/app/setting_flags.hpp"
#include "server/cohort/sampler.hpp"
#include "server/run/run_plan.hpp"
#include "server/run/settings_table.hpp"
#include "server/run/target.hpp"
#include "server/sums/rules/rule_table.hpp"
#include "shared/params/model_table.hpp"
#include "shared/wire/train_messages.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>

namespace fl::test {

using namespace fl::server;
namespace {

/// A new setting as docs/design/adding-a-setting.md describes it: a field and one row. Here
/// `warmth` is new, and `name` existed before.
struct ToySettings {
  std::string name = "toy";
  double warmth = 0.5;
};
struct ToyWork {
  double warmth = 0;
};

constexpr SettingRow<ToySettings, ToyWork> toy_rows[] = {
    {.field = &ToySettings::name, .flag = "name", .help = "A name"},
    {.field = &ToySettings::warmth,
     .flag = "toy-warmth",
     .help = "How warm it is",
     .range = {.most = 40},
     .into_work = [](const ToySettings& s, const WorkRound& at,
                     ToyWork& work) { work.warmth = s.warmth * at.round; }},
};
constexpr SettingTable<ToySettings, ToyWork> toy_table(toy_rows);

TEST_CASE("one row gives a setting its flag, help, TOML key, JSON, check and share in the work") {
  ToySettings settings;
  std::set<std::string> given;
  CLI::App app;
  add_config_flag(app, "TOML");
  declare_settings(app, toy_table, settings, given);
  const std::string help = app.help();
  CHECK(help.find("--toy-warmth") != std::string::npos);
  CHECK(help.find("How warm it is") != std::string::npos);
  CHECK(help.find("0.5") != std::string::npos);

  SUBCASE("on the command line") { app.parse("--toy-warmth 2"); }
  SUBCASE("in a file") {
    const auto path = std::filesystem::temp_directory_path() / "toy-settings.toml";
    std::ofstream(path) << "toy-warmth = 2\n";
    app.parse("--config " + path.string());
    std::filesystem::remove(path);
  }
  CHECK(settings.warmth == 2);
  CHECK(given == std::set<std::string>{"toy-warmth"});

  const std::string json = toy_table.to_json(settings);
  CHECK(json == R"({"name":"toy","toy_warmth":2.0})");
  CHECK(toy_table.from_json(json).value().warmth == 2);

  ToySettings merged{.name = "kept", .warmth = 7};
  toy_table.copy(given, settings, merged);
  CHECK(merged.name == "kept");
  CHECK(merged.warmth == 2);

  const auto strategy = parse_strategy("fedavg").value();
  const WorkRound third{.strategy = *strategy, .round = 3, .losses = {}};
  CHECK(toy_table.work(settings, third).warmth == 6);

  CHECK(toy_table.check_each(settings));
  settings.warmth = -1;
  const auto checked = toy_table.check_each(settings);
  REQUIRE(checked.has_error());
  CHECK(checked.error().message() == "--toy-warmth: it must be from 0 to 40, not -1");
}

TEST_CASE("a range says which numbers it has") {
  struct Case {
    NumberRange range;
    const char* text;
    std::vector<double> in;
    std::vector<double> out;
  };
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<Case> cases{
      {{}, "0 or more", {0, 1e300}, {-1, inf}},
      {{.least = 1}, "1 or more", {1}, {0, 0.5}},
      {{.is_above = true}, "above 0", {1e-300}, {0, -1}},
      {{.most = 1, .is_above = true}, "above 0 and at most 1", {0.5, 1}, {0, 1.5}},
      {{.most = 1, .is_below = true}, "at least 0 and below 1", {0, 0.99}, {1}},
      {{.least = 0.1, .most = 1e7, .or_zero = true, .hint = " seconds, or 0 for none"},
       "from 0.1 to 10000000 seconds, or 0 for none",
       {0, 0.1, 1e7},
       {0.05, 1.1e7}}};
  for (const Case& each : cases) {
    CAPTURE(each.text);
    CHECK(each.range.text() == each.text);
    for (const double value : each.in) CHECK(each.range.has(value));
    for (const double value : each.out) CHECK_FALSE(each.range.has(value));
    CHECK_FALSE(each.range.has(std::nan("")));
  }
}

TEST_CASE("each setting with a flag stands under a heading of a form, and a few come first") {
  const RunSettingTable table = run_setting_table();
  std::size_t usual = 0;
  for (const RunSettingRow& row : table.rows()) {
    CAPTURE(std::string(row.flag));
    CHECK(row.group.empty() == row.flag.empty());
    usual += row.is_usual ? 1 : 0;
    // A file of the server's machine can't be offered.
    CHECK_FALSE((row.is_usual && row.is_existing_file));
  }
  CHECK((usual > 3 && usual < 12));
}

TEST_CASE("a run that is older than a setting gets the setting's default") {
  const auto before = toy_table.from_json(R"({"name":"old","gone":[1]})").value();
  CHECK(before.name == "old");
  CHECK(before.warmth == 0.5);
  for (const char* bad : {"", "[]", R"({"toy_warmth":"hot"})", R"({"name":null})"}) {
    CAPTURE(bad);
    const auto read = toy_table.from_json(bad);
    REQUIRE(read.has_error());
    CHECK(read.error().code() == Errc::corrupt);
  }
}

/// The settings as version 0.1.0 wrote them.
constexpr const char* stored =
    R"({"accumulate":2,"batch_size":32,"clients_per_round":5,"codec":"kbit:4+ef","deadline_s":60.0,)"
    R"("downlink_codec":"qsgd:8","fraction":0.25,"initial_weights":"/data/w.safetensors",)"
    R"("keep_checkpoints":3,"local_epochs":2,"local_seconds":1.5,"local_steps":7,)"
    R"("local_steps_schedule":"warmup:rounds=3","lr":0.125,"lr_schedule":"cosine","min_clients":4,)"
    R"("mode":"sync:late=1","model":"custom:mine","momentum":0.75,"optimizer":"nesterov",)"
    R"("over_select":1.5,"patience":6,"proximal_mu":0.5,"rounds":20,"sampling":"oort",)"
    R"("seed":18446744073709551615,"strategy":"fedavgm","target_accuracy":0.5,)"
    R"("tensors":[["a",[2,3]],["b",[]]],"weight_decay":0.0625})";

TEST_CASE("the stored settings of a run are read, and written with the same bytes") {
  const RunSettings settings = settings_from_json(stored).value();
  CHECK(settings.deadline_s == 60);
  CHECK(settings.seed == ~std::uint64_t{0});
  CHECK(settings.initial_weights == "/data/w.safetensors");
  CHECK(settings.tensors == NamedShapes{{"a", {2, 3}}, {"b", {}}});
  CHECK(settings.over_select == 1.5);
  CHECK(settings.norm_limit == 1000);  // The run is older than these settings.
  CHECK(settings.aggregate == "mean");
  std::string with_newer(stored);
  CHECK(settings.weight_cap == 10);
  with_newer.insert(with_newer.find("\"optimizer\""), "\"norm_limit\":1000.0,");
  with_newer.insert(with_newer.find("\"batch_size\""), "\"aggregate\":\"mean\",");
  CHECK(settings.clip_norm == 0);
  with_newer.insert(with_newer.find("\"codec\""), "\"clip_norm\":0.0,");
  CHECK(settings.keep_updates == "none");
  with_newer.insert(with_newer.find("\"local_epochs\""), "\"keep_updates\":\"none\",");
  CHECK(settings.keep_best);
  with_newer.insert(with_newer.find("\"keep_checkpoints\""), "\"keep_best\":true,");
  CHECK(settings.target_examples == 10);
  with_newer.insert(with_newer.find("\"tensors\""), "\"target_examples\":10,");
  CHECK(settings.metric.empty());
  with_newer.insert(with_newer.find("\"min_clients\""), "\"metric\":\"\",");
  CHECK(settings.target.empty());
  CHECK((target_of(settings) == Target{"accuracy", false, 0.5}));
  with_newer.insert(with_newer.find("\"target_accuracy\""), "\"target\":\"\",");
  with_newer.insert(with_newer.find("\"weight_decay\""), "\"weight_cap\":10.0,");
  CHECK(settings.secure_aggregation == "off");
  with_newer.insert(with_newer.find("\"seed\""), "\"secure_aggregation\":\"off\",");
  CHECK(settings.weights.empty());
  with_newer.insert(with_newer.size() - 1, ",\"weights\":\"\"");
  CHECK(to_json(settings) == with_newer);
}

TEST_CASE("a setting that is on or off is a flag with a word, and true or false in files") {
  const auto keeps_best = [](std::vector<std::string> words) {
    RunSettings settings;
    std::set<std::string> given;
    CLI::App app;
    add_config_flag(app, "");
    declare_settings(app, run_setting_table(), settings, given);
    const bool is_given = !words.empty();
    std::ranges::reverse(words);
    app.parse(words);
    CHECK(given.contains("keep-best") == is_given);
    return settings.keep_best;
  };
  CHECK(keeps_best({}));
  CHECK(keeps_best({"--keep-best", "on"}));
  CHECK(!keeps_best({"--keep-best", "off"}));
  CHECK(!keeps_best({"--keep-best=off"}));
  const auto path = std::filesystem::temp_directory_path() / "keep-best-settings.toml";
  std::ofstream(path) << "keep-best = false\n";
  CHECK(!keeps_best({"--config", path.string()}));
  std::filesystem::remove(path);
  CHECK_THROWS_AS(keeps_best({"--keep-best", "perhaps"}), CLI::ValidationError);

  CHECK(!settings_from_json(R"({"keep_best":false})").value().keep_best);
  const auto wrong = settings_from_json(R"({"keep_best":"off"})");
  REQUIRE(wrong.has_error());
  CHECK(wrong.error().message().find("\"keep_best\": it must be true or false, not \"off\"") !=
        std::string::npos);
}

TEST_CASE("every setting's row has a unique key, and help if it has a flag") {
  std::set<std::string> keys;
  for (const auto& row : run_setting_table().rows()) {
    CAPTURE(row.flag);
    CHECK(keys.insert(row.json_key()).second);
    CHECK(row.help.empty() == row.flag.empty());
    if (!row.flag.empty()) CHECK(run_setting_table().find(row.flag) == &row);
  }
  CHECK(run_setting_table().find("") == nullptr);
  CHECK(run_setting_table().find("nonesuch") == nullptr);
}

/// Help lists what a table of names has, by the texts of its rows.
template <class Rows, class TextOf>
void check_help_lists(std::string_view flag, const Rows& rows, TextOf text_of) {
  CAPTURE(flag);
  const std::string help = run_setting_table().find(flag)->help_text();
  CHECK(help.find("{}") == std::string::npos);
  for (const auto& row : rows) {
    const std::string text(std::invoke(text_of, row));
    CAPTURE(text);
    CHECK(help.find(text) != std::string::npos);
  }
}

TEST_CASE("help has the names of every table behind a setting") {
  check_help_lists("model", builtin_models(), &ModelRow::name);
  check_help_lists("sampling", sampler_rows(), &SamplerRow::usage);
  check_help_lists("optimizer", optimizer_rows(), &OptimizerRow::usage);
  check_help_lists("aggregate", rule_rows(), &RuleRow::usage);
}

TEST_CASE("an offer has the local work of its round") {
  RunSettings settings = settings_from_json(stored).value();
  settings.model = "mlp";
  settings.clip_norm = 2.5;
  const auto strategy = parse_strategy("fedprox:mu=0.75").value();
  const TrainSettings work = local_work(settings, *strategy, 2, {});
  wire::Offer offer;
  write_train_settings(work, offer);
  CHECK(work.round == 2);
  CHECK(offer.round() == 2);
  CHECK(offer.local_epochs() == 2);
  CHECK(offer.local_steps() == 4);  // The second of three rounds from 1 to 7.
  CHECK(offer.local_seconds() == 1.5);
  CHECK(offer.batch_size() == 32);
  CHECK(offer.accumulate() == 2);
  CHECK(offer.optimizer() == "nesterov");
  CHECK(offer.lr() == work.lr);
  CHECK(offer.lr() < 0.125);
  CHECK(offer.momentum() == 0.75);
  CHECK(offer.weight_decay() == 0.0625);
  CHECK(offer.clip_norm() == 2.5);
  CHECK(offer.proximal_mu() == 0.75);
}

TEST_CASE("without a bound on the local work a client takes one epoch") {
  const auto strategy = parse_strategy("fedavg").value();
  RunSettings settings;
  CHECK(local_work(settings, *strategy, 1, {}).local_epochs == 1);
  settings.local_seconds = 3;
  CHECK(local_work(settings, *strategy, 1, {}).local_epochs == 0);
  settings.local_seconds = 0;
  settings.local_steps = 3;
  CHECK(local_work(settings, *strategy, 1, {}).local_epochs == 0);
  settings.local_epochs = 5;
  CHECK(local_work(settings, *strategy, 1, {}).local_epochs == 5);
}

TEST_CASE("the error for a wrong setting names its flag") {
  CHECK(check_settings(RunSettings{}));
  struct Case {
    void (*change)(RunSettings&);
    const char* message;
  };
  const std::vector<Case> cases{
      {[](RunSettings& s) { s.rounds = 0; }, "--rounds: it must be 1 or more, not 0"},
      {[](RunSettings& s) { s.fraction = 1.5; }, "--fraction: it must be above 0 and at most 1"},
      {[](RunSettings& s) { s.over_select = 0.5; }, "--over-select: it must be from 1 to 100"},
      {[](RunSettings& s) { s.lr = std::nan(""); }, "--lr: it must be above 0, not nan"},
      {[](RunSettings& s) { s.momentum = 1; }, "--momentum: it must be at least 0 and below 1"},
      {[](RunSettings& s) { s.weight_decay = -1; }, "--weight-decay: it must be 0 or more"},
      {[](RunSettings& s) { s.model = "nonesuch"; }, "--model: "},
      {[](RunSettings& s) { s.strategy = "nonesuch"; }, "--strategy: "},
      {[](RunSettings& s) { s.mode = "nonesuch"; }, "--mode: "},
      {[](RunSettings& s) { s.sampling = "nonesuch"; }, "--sampling: "},
      {[](RunSettings& s) { s.codec = "nonesuch"; }, "--codec: "},
      {[](RunSettings& s) { s.downlink_codec = "delta+qsgd:8"; }, "--downlink-codec: "},
      {[](RunSettings& s) { s.clients_per_round = 1; },
       "--clients-per-round is 1, and must not be below --min-clients, which is 2"},
      {[](RunSettings& s) { s.local_seconds = 600; },
       "--local-seconds is 600, and must be less than --deadline, which is 600"},
      {[](RunSettings& s) { s.local_steps_schedule = "adaptive"; },
       "--local-steps-schedule adaptive needs --local-steps"},
      {[](RunSettings& s) {
         s.mode = "async";
         s.over_select = 2;
       },
       "--mode async: --over-select is for synchronous rounds"},
      {[](RunSettings& s) { s.strategy = "signvote:lr=0.1"; }, "--codec ecuq gives zeros"},
      {[](RunSettings& s) { s.keep_updates = "0"; },
       "--keep-updates: it must be none, all or a number of rounds from 1 to 100000, not '0'"},
      {[](RunSettings& s) { s.keep_updates = "100001"; }, "--keep-updates: it must be none"},
      {[](RunSettings& s) { s.keep_updates = "3x"; }, "--keep-updates: it must be none"},
      {[](RunSettings& s) { s.keep_updates = ""; }, "--keep-updates: it must be none"},
  };
  for (const Case& one : cases) {
    CAPTURE(one.message);
    RunSettings settings;
    one.change(settings);
    const auto checked = check_settings(settings);
    REQUIRE(checked.has_error());
    CAPTURE(checked.error().message());
    CHECK(checked.error().code() == Errc::invalid_input);
    CHECK(checked.error().message().starts_with(one.message));
    CHECK(checked.error().message().find('\n') == std::string::npos);  // It goes into logs.
  }
}

TEST_CASE("a robust rule refuses what it can't be combined with, and says what fits") {
  struct Case {
    const char* rule;
    void (*change)(RunSettings&);
    const char* why;
  };
  const std::vector<Case> cases{
      {"median", [](RunSettings& s) { s.mode = "async"; }, "use --mode sync"},
      {"median", [](RunSettings& s) { s.mode = "sync:late=1"; }, "use --mode sync"},
      {"median", [](RunSettings& s) { s.strategy = "scaffold"; }, "use one that needs only one"},
      {"median", [](RunSettings& s) { s.strategy = "feddyn:alpha=0.1"; }, "use one that needs"},
      {"median", [](RunSettings& s) { s.strategy = "fednova"; }, "use one that needs only one"},
      {"median",
       [](RunSettings& s) {
         s.strategy = "signvote:lr=0.1";
         s.codec = "sign";
       },
       "use one that needs only one"},
      {"median", [](RunSettings& s) { s.codec = "topk:0.01+ef"; }, "or krum, multikrum"},
      {"nnm+trimmed:1", [](RunSettings& s) { s.codec = "auto:ecuq:4+ef|topk:0.01+ef"; },
       "or krum, multikrum"},
      {"median", [](RunSettings& s) { s.codec = "countsketch:3x2000"; }, "recovery=own"},
      {"krum:2", [](RunSettings&) {}, "it needs 7 updates, and a round may close with"},
      {"median", [](RunSettings& s) { s.min_clients = 2; }, "raise that"},
      {"median", [](RunSettings& s) { s.clients_per_round = 300; }, "at most 256 updates"},
      {"median", [](RunSettings& s) { s.min_clients = 300; }, "at most 256 updates"},
      {"middle", [](RunSettings&) {}, "choose mean, median"},
  };
  for (const Case& one : cases) {
    CAPTURE(one.rule);
    CAPTURE(one.why);
    RunSettings settings;
    settings.min_clients = 6;
    one.change(settings);
    CHECK(check_settings(settings));  // Nothing else is wrong.
    settings.aggregate = one.rule;
    const auto checked = check_settings(settings);
    REQUIRE(checked.has_error());
    CAPTURE(checked.error().message());
    CHECK(checked.error().message().starts_with("--aggregate"));
    CHECK(checked.error().message().find(one.why) != std::string::npos);
  }
}

TEST_CASE("a robust rule goes with codecs and strategies that need one update a round") {
  constexpr std::pair<const char*, const char*> fitting[] = {
      {"median", "ecuq:4"},
      {"nnm+median", "delta+qsgd:8"},
      {"trimmed:0.2", "gradzip:1+ef"},
      {"krum", "topk:0.01+ef"},
      {"geomedian", "randk:0.1"},
      {"centered-clip:1", "countsketch:3x2000,recovery=own+ef"},
  };
  for (const auto& row : fitting) {
    for (const char* const strategy : {"fedavg", "fedprox:mu=0.1", "fedavgm", "fedadam", "ditto"}) {
      CAPTURE(std::string(row.first));
      CAPTURE(std::string(strategy));
      RunSettings settings;
      settings.min_clients = 6;
      settings.aggregate = row.first;
      settings.codec = row.second;
      settings.strategy = strategy;
      const auto checked = check_settings(settings);
      CHECK(checked);
    }
  }
}

TEST_CASE("with a robust rule a round wants no more clients than the rule takes") {
  for (const char* const rule : {"mean", "median"}) {
    RunSettings settings;
    settings.aggregate = rule;
    const RunPlan plan(settings, RunRecord(), builtin_layout(settings.model).value());
    CHECK(plan.target_clients(1000) == (rule == std::string("mean") ? 1000 : 256));
    CHECK(plan.target_clients(100) == 100);
  }
}

}  // namespace
}  // namespace fl::test
