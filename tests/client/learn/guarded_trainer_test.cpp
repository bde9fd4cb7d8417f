// SPDX-License-Identifier: Apache-2.0
#include "client/learn/guarded_trainer.hpp"
#include "client/learn/initial_file.hpp"
#include "shared/params/model_table.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using namespace fl;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// The behaviour of the user's trainer in a test.
struct Script {
  std::vector<TensorSpec> tensors = {{"a", {2}}, {"b", {}}};
  std::vector<MetricKind> metrics = {known_metric("mae")};
  std::vector<float> update = {1, 2, 3};
  std::vector<float> initial = {4, 5, 6};
  double loss = 0.5;
  bool throws = false;
  std::vector<MetricValue> values = {{.name = "mae", .value = 2}};
};

class Scripted final : public Trainer {
 public:
  explicit Scripted(Script script)
      : script_(std::move(script)), layout_(Layout::make(script_.tensors).value()) {}
  const Layout& layout() const override { return layout_; }
  std::uint64_t train_examples() const override { return 7; }
  std::span<const MetricKind> metrics() const override { return script_.metrics; }
  Result<std::vector<float>> initial_weights(std::uint64_t) const override {
    return script_.initial;
  }
  Result<TrainReport> train(std::span<const float>, const TrainSettings&, std::span<const float>,
                            std::span<float> update, std::stop_token) override {
    if (script_.throws) throw std::runtime_error("no such column");
    std::ranges::copy(script_.update, update.begin());
    return TrainReport{.examples = 7, .steps = 1, .loss = script_.loss};
  }
  Result<EvalReport> evaluate(std::span<const float>, std::stop_token) override {
    if (script_.throws) throw 3;
    return EvalReport{.examples = 1, .loss = 0, .metrics = script_.values};
  }

 private:
  Script script_;
  Layout layout_;
};

Result<std::unique_ptr<Trainer>> make(Script script, const std::string& model = "custom:mine") {
  return make_guarded_trainer(
      [&](const std::string&) -> Result<std::unique_ptr<Trainer>> {
        return std::make_unique<Scripted>(std::move(script));
      },
      model);
}

Result<TrainReport> train(const Script& script) {
  const auto trainer = make(script).value();
  std::vector<float> update(3);
  return trainer->train(std::vector<float>(3), {}, {}, update, {});
}

void expect(const Error& error, Errc code, std::string_view words) {
  CHECK_MESSAGE(error.message().find(words) != std::string::npos, error.message());
  CHECK(error.code() == code);
}

}  // namespace

TEST_CASE("a trainer that does nothing wrong is passed through") {
  const auto trainer = make({}).value();
  std::vector<float> update(3);
  const auto report = trainer->train(std::vector<float>(3), {}, {}, update, {});
  REQUIRE(report.has_value());
  CHECK(report->examples == 7);
  CHECK(report->loss == 0.5);
  CHECK(report->seconds > 0);
  CHECK(update == std::vector<float>{1, 2, 3});
  CHECK(trainer->initial_weights(0).value() == std::vector<float>{4, 5, 6});
  CHECK(trainer->evaluate(update, {}).value().metrics.front().value == 2);
  CHECK_FALSE(trainer->abilities().optimizer);
  CHECK_FALSE(trainer->abilities().correction);
}

TEST_CASE("a trainer without more than training says what it can't do") {
  const auto trainer = make({}).value();
  std::vector<float> gradient(3);
  expect(trainer->gradient(gradient, {}, gradient, {}).error(), Errc::invalid_input,
         "computes no gradient");
}

TEST_CASE("values that are not finite fail the task and name the tensor") {
  expect(train({.update = {1, nan, 3}}).error(), Errc::invalid_input,
         "update of a[1] is not finite");
  expect(train({.loss = nan}).error(), Errc::invalid_input, "loss is not finite");
  expect(make({.initial = {1, 2, nan}}).value()->initial_weights(0).error(), Errc::invalid_input,
         "initial weight b[0] is not finite");
  expect(make({.initial = {1}}).value()->initial_weights(0).error(), Errc::invalid_input,
         "1 initial weights for a model of 3");
}

TEST_CASE("exceptions of a trainer end the client with their text") {
  expect(train({.throws = true}).error(), Errc::internal,
         "train() of the trainer threw an exception: no such column");
  const auto trainer = make({.throws = true}).value();
  expect(trainer->evaluate(std::vector<float>(3), {}).error(), Errc::internal,
         "evaluate() of the trainer threw an exception that is no std::exception");
  const auto thrown = make_guarded_trainer(
      [](const std::string&) -> Result<std::unique_ptr<Trainer>> {
        throw std::invalid_argument("no disk");
      },
      "custom:mine");
  expect(thrown.error(), Errc::internal, "no disk");
  const auto null = make_guarded_trainer(
      [](const std::string&) { return std::unique_ptr<Trainer>(); }, "custom:mine");
  expect(null.error(), Errc::internal, "returned no trainer");
}

TEST_CASE("what a trainer says about itself is checked before it takes part") {
  expect(make({.tensors = {{"b", {}}, {"a", {2}}}}).error(), Errc::invalid_input,
         "has the tensor 'a' behind 'b'");
  expect(make({.tensors = {{"bn.running_mean", {1}}, {"a", {2}}}}).error(), Errc::invalid_input,
         "has the tensor 'a' behind 'bn.running_mean'");
  CHECK(make({.tensors = {{"x", {2}}, {"bn.running_mean", {1}}}}).has_value());
  expect(make({.tensors = {{"a", {0}}}}).error(), Errc::invalid_input, "no elements to train");
  expect(make({.metrics = {{"mae", false}}}).error(), Errc::invalid_input, "metrics()");
  const auto trainer = make({.values = {{.name = "other", .value = 1}}}).value();
  CHECK(trainer->evaluate(std::vector<float>(3), {}).has_error());
}

TEST_CASE("a trainer of a built-in model begins with the server's weights") {
  const Layout layout = builtin_layout("logistic").value();
  Script script{.tensors = {}};
  for (const auto& tensor : layout.tensors()) script.tensors.push_back({tensor.name, tensor.shape});
  const auto trainer = make(script, "logistic").value();
  CHECK(trainer->initial_weights(3).value() == builtin_initial_weights("logistic", 3).value());
}
