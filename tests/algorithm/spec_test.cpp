// SPDX-License-Identifier: Apache-2.0
// Specs of strategies and optimizers: good ones parse, and bad ones get a useful error.
#include "shared/algorithm/strategy.hpp"

#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <numbers>
#include <set>
#include <string>
#include <utility>

namespace fl::test {
namespace {

TEST_CASE("every strategy of the table parses by its name and with an option") {
  for (const auto& row : strategy_rows()) {
    CAPTURE(row.name);
    CHECK(row.usage.starts_with(row.name));
    const auto strategy = parse_strategy(row.name);
    REQUIRE(strategy);
    CHECK((*strategy)->spec() == row.name);
    CHECK((*strategy)->weight_of(2) == 2);
    CHECK(parse_strategy(std::string(row.name) + ":weight=uniform").value()->weight_of(2) == 1);
    CHECK((*strategy)->state_vectors() <= 2);
  }
}

TEST_CASE("the error for a wrong strategy says what would be right") {
  const std::pair<std::string, std::string> cases[] = {
      {"", "it has no name"},
      {"fedsgd", "there is no strategy 'fedsgd'; there are: fedavg"},
      {"fedprox:mu", "'mu' is not of the form KEY=VALUE"},
      {"fedprox:mu=-1", "mu=-1: it must be from 0"},
      {"fedprox:mu=nan", "mu=nan: it must be from 0"},
      {"fedprox:mu=1e", "mu=1e: it must be from 0"},
      {"fedprox:mu=1,mu=2", "mu is given twice"},
      {"fedavg:mu=1", "fedavg has no option 'mu'; it has: lr weight"},
      {"fedadam:beta2=1", "beta2=1: it must be at least 0 and below 1"},
      {"scaffold:option=3", "option=3: it must be one of: 2 1"},
      {"fedavg:weight=", "weight=: it must be one of: examples uniform"},
  };
  for (const auto& [wrong, words] : cases) {
    const std::string spec = wrong;
    CAPTURE(spec);
    const auto strategy = parse_strategy(spec);
    REQUIRE_FALSE(strategy);
    CHECK(strategy.error().code() == Errc::invalid_input);
    CHECK_MESSAGE(strategy.error().message().find(words) != std::string::npos,
                  strategy.error().message());
  }
}

TEST_CASE("methods that must know how far a step goes reject Adam") {
  TrainSettings settings;
  settings.optimizer = parse_optimizer("adam").value();
  for (const std::string method : {"scaffold", "fednova"}) {
    const auto fits = parse_strategy(method).value()->check(settings);
    REQUIRE_FALSE(fits);
    CHECK(fits.error().message().find("--optimizer sgd and nesterov") != std::string::npos);
  }
  CHECK(parse_strategy("fedavg").value()->check(settings));
  CHECK(parse_strategy("diloco").value()->check(settings));
}

TEST_CASE("each optimizer has a name and a kind of its own, and reads its own spec") {
  std::set<std::string> names;
  std::set<LocalOptimizer::Kind> kinds;
  const std::string refused = parse_optimizer("lamb").error().message();
  for (const OptimizerRow& row : optimizer_rows()) {
    const std::string name(row.name);
    CAPTURE(name);
    CHECK(names.insert(name).second);
    CHECK(kinds.insert(row.kind).second);
    CHECK(row.usage.starts_with(row.name));
    CHECK(to_string(row.kind) == row.name);
    CHECK(refused.find(name) != std::string::npos);
    const std::string with = name + ":beta1=0.5,epsilon=0.25";
    const LocalOptimizer read = parse_optimizer(row.has_moments ? with : name).value();
    CHECK(read.kind == row.kind);
    CHECK(read.is_sgd() != row.has_moments);
    CHECK(optimizer_spec(read) == (row.has_moments ? with : name));
    CHECK(parse_optimizer(with).has_value() == row.has_moments);
  }
}

TEST_CASE("optimizers parse") {
  CHECK(parse_optimizer("").value().kind == LocalOptimizer::Kind::sgd);
  CHECK(parse_optimizer("nesterov").value().kind == LocalOptimizer::Kind::nesterov);
  const auto adamw = parse_optimizer("adamw:beta1=0.8,epsilon=1e-6").value();
  CHECK(adamw.kind == LocalOptimizer::Kind::adamw);
  CHECK(adamw.beta1 == 0.8);
  CHECK(adamw.beta2 == 0.999);
  CHECK(adamw.epsilon == 1e-6);
  CHECK_FALSE(parse_optimizer("lamb"));
  CHECK_FALSE(parse_optimizer("sgd:momentum=0.9"));
  CHECK_FALSE(parse_optimizer("adam:beta1=1"));
}

TEST_CASE("steps, epochs or a time bound the local work") {
  TrainSettings work;
  work.local_epochs = 3;
  CHECK(steps_max(work, 7) == 21);
  work.local_seconds = 0.00002;
  CHECK(steps_max(work, 7) == 21);
  work.local_steps = 5;
  CHECK(steps_max(work, 7) == 5);
  work.local_steps = work.local_epochs = 0;
  CHECK(steps_max(work, 7) == 2);  // As limits::steps_per_s_max says.
}

TEST_CASE("the layout of a run has the shared vector after the model") {
  const Layout model = Layout::make({{"fc.weight", {3, 4}}, {"fc.bias", {3}}}).value();
  const auto plain = run_layout(model, *parse_strategy("fedavg").value()).value();
  CHECK(plain.all.digest() == model.digest());
  CHECK_FALSE(plain.has_shared());
  const auto scaffold = run_layout(model, *parse_strategy("scaffold").value()).value();
  CHECK(scaffold.has_shared());
  CHECK(scaffold.model_elements == 15);
  REQUIRE(scaffold.all.elements() == 30);
  CHECK(scaffold.all.tensors()[2].name == "control.fc.weight");
  CHECK(scaffold.all.tensors()[3].shape == std::vector<std::int64_t>{3});
}

TEST_CASE("BatchNorm statistics come after the parameters and have no control variates") {
  const Layout model = Layout::make({{"bn.weight", {2}},
                                     {"fc.weight", {3}},
                                     {"bn.running_mean", {2}},
                                     {"bn.running_var", {2}}})
                           .value();
  const auto layout = run_layout(model, *parse_strategy("scaffold").value()).value();
  CHECK(layout.parameter_elements == 5);
  CHECK(layout.model_elements == 9);
  CHECK(layout.personal_elements == 0);
  CHECK(layout.all.elements() == 14);
  CHECK(layout.all.tensors().back().name == "control.fc.weight");

  const auto fedbn = run_layout(model, *parse_strategy("scaffold:personal=bn.*").value()).value();
  CHECK(fedbn.parameter_elements == 3);
  CHECK(fedbn.model_elements == 3);
  CHECK(fedbn.personal_elements == 6);
  CHECK(fedbn.all.elements() == 6);

  const auto none = run_layout(model, *parse_strategy("fedavg:personal=*weight").value());
  REQUIRE(none.has_error());
  CHECK(none.error().message().find("every parameter is personal") != std::string::npos);
  const Layout only_empty_left = Layout::make({{"fc.weight", {3}}, {"lora", {0, 4}}}).value();
  const auto empty = run_layout(only_empty_left, *parse_strategy("fedavg:personal=fc.*").value());
  REQUIRE(empty.has_error());
  CHECK(empty.error().message().find("every parameter is personal") != std::string::npos);
  const Layout mixed = Layout::make({{"bn.running_mean", {2}}, {"fc.weight", {3}}}).value();
  const auto wrong = run_layout(mixed, *parse_strategy("fedavg").value());
  REQUIRE(wrong.has_error());
  CHECK(wrong.error().message().find("fc.weight") != std::string::npos);
}

TEST_CASE("a model without elements is refused, with every method") {
  for (const char* const method : {"fedavg", "scaffold", "fedavg:personal=w"}) {
    for (const auto& specs :
         {std::vector<TensorSpec>{}, {{"w", {0}}}, {{"w", {3, 0}}, {"b", {0}}}}) {
      const auto layout = run_layout(Layout::make(specs).value(), *parse_strategy(method).value());
      REQUIRE(layout.has_error());
      CHECK(layout.error().code() == Errc::invalid_input);
    }
  }
}

TEST_CASE("only a tensor with the name of a shared vector is part of one") {
  CHECK(parameter_of_shared("control.fc.weight") == "fc.weight");
  for (const char* other : {"block.fc.weight", "control", "controls.fc.weight", "fc.weight", ""})
    CHECK(parameter_of_shared(other).empty());
}

TEST_CASE("personal tensors are not in a run's vector, and join() puts them back") {
  const Layout model =
      Layout::make({{"a", {2}}, {"bn1", {1}}, {"b", {2}}, {"bn2", {1}}, {"fc", {1}}}).value();
  const auto strategy = parse_strategy("scaffold:personal=bn?|fc").value();
  const auto layout = run_layout(model, *strategy).value();
  CHECK(layout.model_elements == 4);
  CHECK(layout.personal_elements == 3);
  REQUIRE(layout.all.tensors().size() == 4);
  CHECK(layout.all.tensors()[1].name == "b");
  CHECK(layout.all.tensors()[3].name == "control.b");
  const std::vector<float> whole{1, 2, 30, 4, 5, 60, 70};
  std::vector<float> part(4);
  std::vector<float> personal(3);
  layout.split(whole, part, personal);
  CHECK(part == std::vector<float>{1, 2, 4, 5});
  CHECK(personal == std::vector<float>{30, 60, 70});
  std::vector<float> again(7);
  layout.join(part, personal, again);
  CHECK(again == whole);

  for (const std::string wrong : {"nonesuch", "*"}) {
    const auto bad = run_layout(model, *parse_strategy("fedavg:personal=" + wrong).value());
    REQUIRE_FALSE(bad);
    CHECK(bad.error().code() == Errc::invalid_input);
  }
  CHECK_FALSE(parse_strategy("fedavg:personal="));
}

}  // namespace
}  // namespace fl::test
