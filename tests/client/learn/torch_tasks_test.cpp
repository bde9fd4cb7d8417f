// SPDX-License-Identifier: Apache-2.0
// Regression, two classes and language: losses and metrics against formulas written by hand, and
// models against what is known of their solutions.
#include "client/learn/data/random.hpp"
#include "client/learn/torch/held_parameters.hpp"
#include "client/learn/torch/torch_models.hpp"
#include "client/learn/torch/torch_task.hpp"
#include "client/learn/torch/torch_trainer.hpp"
#include "shared/params/model_table.hpp"
#include "tests/client/learn/made_up_texts.hpp"
#include "tests/support/image_data.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fl::test {
namespace {

constexpr float missing = std::numeric_limits<float>::quiet_NaN();

std::unique_ptr<Trainer> trainer_for(const std::string& model, LocalData data) {
  auto trainer = make_torch_trainer({.model = model, .data = "", .device = "cpu", .threads = 1},
                                    std::move(data));
  INFO((trainer ? std::string() : trainer.error().message()));
  REQUIRE(trainer.has_value());
  return std::move(*trainer);
}

/// Initial weights with the scaling of this client's data alone.
std::vector<float> scaled_weights(const std::string& model, const Trainer& trainer) {
  auto weights = builtin_initial_weights(model, 1).value();
  write_scaling(model, trainer.summaries(), weights);
  return weights;
}

/// Trains for some epochs with all examples in each step.
std::vector<float> trained(Trainer& trainer, std::vector<float> weights, TrainSettings settings) {
  std::vector<float> update(weights.size());
  const auto report = trainer.train(weights, settings, {}, update, {});
  INFO((report ? std::string() : report.error().message()));
  REQUIRE(report.has_value());
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] += update[i];
  return weights;
}

double value_of(const EvalReport& report, std::string_view name) {
  const MetricValue* const found = find_metric(report.metrics, name);
  REQUIRE(found != nullptr);
  return found->value;
}

/// y = 30000 + 500 a - 20 b, of columns of unlike sizes; every 10th value of b is missing if
/// `gaps`.
DataSet houses(std::uint32_t n, bool gaps = false) {
  Random random(4, 0);
  std::vector<float> inputs;
  std::vector<float> targets;
  for (std::uint32_t i = 0; i < n; ++i) {
    const double a = random.normal();
    const double b = 1000 + 50 * random.normal();
    inputs.push_back(static_cast<float>(a));
    inputs.push_back(gaps && i % 10 == 0 ? missing : static_cast<float>(b));
    targets.push_back(static_cast<float>(30000 + 500 * a - 20 * (b - 1000)));
  }
  return {.kind = DataSet::Kind::values,
          .shape = {2},
          .inputs = Storage(std::move(inputs)),
          .targets = std::move(targets),
          .outputs = 1,
          .source = "houses"};
}

DataSet text_of(std::string_view words) {
  DataSet set{.kind = DataSet::Kind::text, .shape = {piece_tokens_default + 1}};
  for (std::size_t at = 0; at + 1 < words.size(); at += piece_tokens_default) {
    const std::string_view piece = words.substr(at, piece_tokens_default + 1);
    set.pieces.push_back({at, static_cast<std::uint32_t>(piece.size())});
  }
  set.inputs = Storage(std::vector<std::uint8_t>(words.begin(), words.end()));
  set.source = "words";
  return set;
}

std::string repeated(std::string_view words, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += words;
  return all;
}

}  // namespace

TEST_CASE("a linear regression finds the line, whatever the units of its columns") {
  const auto trainer = trainer_for("linear:2-1", local(houses(400), 100));
  CHECK(trainer->metrics().size() == 2);
  auto weights = scaled_weights("linear:2-1", *trainer);
  weights = trained(*trainer, weights, {.local_epochs = 200, .batch_size = 1000, .lr = 0.3});
  const auto report = trainer->evaluate(weights, {}).value();
  CHECK(report.examples == 100);
  CHECK(value_of(report, "r2") > 0.9999);
  CHECK(value_of(report, "mae") < 1);  // In the targets' unit; their deviation is about 1100.
  // The slopes in the data's units: a weight times the target's deviation, by the input's.
  const std::size_t n = weights.size();
  const double deviation = std::sqrt(weights[n - 1]);
  CHECK(weights[0] * deviation / std::sqrt(weights[n - 4]) == doctest::Approx(500).epsilon(0.01));
  CHECK(weights[1] * deviation / std::sqrt(weights[n - 3]) == doctest::Approx(-20).epsilon(0.01));
}

TEST_CASE("a regression learns from values that lie close together far from 0") {
  DataSet far = houses(400);
  far.input_offsets = {1.7e9, -5e8};
  far.target_offsets = {1e9};
  const auto trainer = trainer_for("linear:2-1", local(std::move(far), 100));
  auto weights = scaled_weights("linear:2-1", *trainer);
  weights = trained(*trainer, weights, {.local_epochs = 300, .batch_size = 1000, .lr = 0.2});
  const auto report = trainer->evaluate(weights, {}).value();
  CHECK(value_of(report, "r2") > 0.99);
  CHECK(std::isfinite(report.loss));
}

TEST_CASE("training leaves means and variances as they are") {
  const auto trainer = trainer_for("mlp:2-8-1", local(houses(50)));
  const auto before = scaled_weights("mlp:2-8-1", *trainer);
  const auto after = trained(*trainer, before, {.local_epochs = 3, .batch_size = 10, .lr = 0.1});
  CHECK(std::vector(before.end() - 6, before.end()) == std::vector(after.end() - 6, after.end()));
  CHECK(before[0] != after[0]);
}

TEST_CASE("a missing value counts as the mean of its column") {
  DataSet filled = houses(100, true);
  const auto gaps = trainer_for("linear:2-1", local(houses(100, true)));
  const auto weights = scaled_weights("linear:2-1", *gaps);
  auto values =
      std::vector<float>(filled.inputs.as<float>().begin(), filled.inputs.as<float>().end());
  for (float& value : values) value = std::isnan(value) ? weights[weights.size() - 5] : value;
  filled.inputs = Storage(std::move(values));
  const auto full = trainer_for("linear:2-1", local(std::move(filled)));
  const TrainSettings settings{.local_epochs = 5, .batch_size = 20, .lr = 0.1};
  CHECK(trained(*gaps, weights, settings) == trained(*full, weights, settings));
}

TEST_CASE("losses of a regression are those of their formulas, and so is the gradient") {
  for (const std::string model : {"linear:2-1", "linear:2-1,loss=mae"}) {
    CAPTURE(model);
    const DataSet data = houses(60);
    const auto trainer = trainer_for(model, local(data, 20));
    const auto weights = scaled_weights(model, *trainer);
    const std::size_t n = weights.size();
    const auto x = data.inputs.as<float>();
    const auto residual_of = [&](std::size_t i) {
      double predicted = weights[2];
      for (std::size_t k = 0; k < 2; ++k)
        predicted +=
            weights[k] * (x[2 * i + k] - weights[n - 6 + k]) / std::sqrt(weights[n - 4 + k]);
      return predicted - (data.targets[i] - weights[n - 2]) / std::sqrt(double{weights[n - 1]});
    };
    double loss = 0;
    for (std::size_t i = 40; i < 60; ++i)
      loss +=
          (model.ends_with("mae") ? std::abs(residual_of(i)) : std::pow(residual_of(i), 2)) / 20;
    CHECK(trainer->evaluate(weights, {})->loss == doctest::Approx(loss).epsilon(1e-4));
    double slope = 0;  // The slope with respect to the bias.
    for (std::size_t i = 0; i < 40; ++i)
      slope +=
          (model.ends_with("mae") ? std::copysign(1.0, residual_of(i)) : 2 * residual_of(i)) / 40;
    std::vector<float> gradient(n);
    REQUIRE(trainer->gradient(weights, {}, gradient, {}).has_value());
    CHECK(gradient[2] == doctest::Approx(slope).epsilon(1e-4));
    CHECK(std::vector(gradient.end() - 6, gradient.end()) == std::vector<float>(6));
  }
}

// Each client's R2 counts with its sum of squares about the mean of all training targets.
TEST_CASE("the weighted mean of clients' R2 is the R2 of all their data") {
  const DataSet all = houses(90);
  const auto judge = [](DataSet set) {
    const std::uint32_t everything = set.size();
    return trainer_for("linear:2-1", local(std::move(set), everything));
  };
  auto weights = scaled_weights("linear:2-1", *trainer_for("linear:2-1", local(all)));
  weights[0] = 0.1F;
  weights[1] = -0.5F;
  std::vector<std::uint32_t> few(20);
  std::vector<std::uint32_t> many(70);
  for (std::uint32_t i = 0; i < 90; ++i) (i < 20 ? few[i] : many[i - 20]) = i;
  double sum = 0;
  double weight = 0;
  for (const auto& part : {few, many}) {
    const auto report = judge(all.select(part))->evaluate(weights, {}).value();
    const MetricValue& r2 = *find_metric(report.metrics, "r2");
    sum += r2.value * r2.weight;
    weight += r2.weight;
  }
  CHECK(sum / weight ==
        doctest::Approx(value_of(judge(all)->evaluate(weights, {}).value(), "r2")).epsilon(1e-5));
}

TEST_CASE("AUROC is the share of pairs in the right order") {
  const auto area = [](std::vector<std::pair<float, bool>> scores) {
    return auroc_of(std::move(scores));
  };
  CHECK(area({{1, false}, {2, true}}).value == 1);
  CHECK(area({{2, false}, {1, true}}).value == 0);
  CHECK(area({{1, false}, {1, true}}).value == 0.5);
  CHECK(std::isnan(area({{1, true}, {2, true}}).value));
  Random random(2, 0);
  std::vector<std::pair<float, bool>> scores;
  for (int i = 0; i < 200; ++i)
    scores.emplace_back(static_cast<float>(random.below(50)), random.below(3) == 0);
  double pairs = 0;
  double won = 0;
  for (const auto& one : scores) {
    for (const auto& zero : scores) {
      if (!one.second || zero.second) continue;
      ++pairs;
      won += one.first > zero.first ? 1 : one.first == zero.first ? 0.5 : 0;
    }
  }
  CHECK(area(scores).value == doctest::Approx(won / pairs));
  CHECK(area(scores).weight == pairs);
}

TEST_CASE("two classes are measured by accuracy and AUROC") {
  DataSet data = houses(200);
  for (const float target : data.targets) data.labels.push_back(target > 30000 ? 1 : 0);
  data.classes = 2;
  const auto trainer = trainer_for("logistic:2-2", local(data, 100));
  auto weights = scaled_weights("logistic:2-2", *trainer);
  weights = trained(*trainer, weights, {.local_epochs = 200, .batch_size = 200, .lr = 1});
  const auto report = trainer->evaluate(weights, {}).value();
  CHECK(value_of(report, "accuracy") > 0.9);
  CHECK(value_of(report, "auroc") > 0.99);
}

TEST_CASE("a transformer learns a text that repeats, and its perplexity is that of its loss") {
  const std::string model = "transformer:layers=1,width=32,heads=2,context=32";
  const auto trainer =
      trainer_for(model, local(text_of(repeated("the cat sat on the mat. ", 200)), 1));
  auto weights = builtin_initial_weights(model, 1).value();
  const auto before = trainer->evaluate(weights, {}).value();
  CHECK(before.loss == doctest::Approx(std::log(256)).epsilon(0.02));
  CHECK(value_of(before, "perplexity") == doctest::Approx(std::exp(before.loss)));
  TrainSettings settings{.local_epochs = 12, .batch_size = 16, .lr = 0.01};
  settings.optimizer = {.kind = LocalOptimizer::Kind::adam};
  weights = trained(*trainer, weights, settings);
  CHECK(trainer->evaluate(weights, {})->loss < 0.7);
}

TEST_CASE("a transformer predicts a byte from those before it only") {
  const std::string model = "transformer:layers=2,width=16,heads=4,context=20";
  const auto module = make_module(model).value();
  const WholeParameters whole(module, builtin_layout(model).value(), torch::kCPU);
  torch::NoGradGuard no_grad;
  whole.whole_model().normal_();
  const torch::Tensor bytes = torch::randint(256, {1, 20}, torch::kInt64);
  torch::Tensor changed = bytes.clone();
  changed[0][12] = (bytes[0][12].item<std::int64_t>() + 1) % 256;
  const torch::Tensor difference =
      (module->forward(bytes) - module->forward(changed)).abs().amax(2);
  CHECK(difference.narrow(1, 0, 12).max().item<float>() == 0);
  CHECK(difference.narrow(1, 12, 8).min().item<float>() > 0);
}

// The last window of a piece is short; what is behind its end is neither trained nor measured.
TEST_CASE("only bytes of the text are predicted") {
  const std::string words = repeated("abc", 45);  // 135 bytes: windows of 100 and of 34.
  const auto data = std::make_shared<const DataSet>(text_of(words));
  const ModelSpec spec = parse_model("transformer:layers=1,width=8,heads=1,context=100").value();
  const std::vector<std::uint32_t> piece = {0};
  const Examples examples(data, piece, spec, torch::kCPU);
  CHECK(examples.size() == 2);
  CHECK(examples.predictions() == 134);
  const Batch batch = examples.batch(0, 2);
  CHECK(batch.inputs[0][0].item<std::int64_t>() == 'a');
  CHECK(batch.targets[0][99].item<std::int64_t>() == words[100]);
  CHECK(batch.inputs[1][0].item<std::int64_t>() == words[100]);
  CHECK(batch.targets[1][33].item<std::int64_t>() == words[134]);
  CHECK(batch.targets.ne(no_target).sum().item<std::int64_t>() == 134);
}

namespace {

constexpr const char* small_transformer = "transformer:layers=1,width=16,heads=2,context=32";

double bytes_predicted(std::span<const std::uint16_t> lengths) {
  double sum = 0;
  for (const std::uint16_t length : lengths) sum += length - 1;
  return sum;
}

}  // namespace

// A mean of the parts' means would be off by percents: the parts have 8 to 130 bytes.
TEST_CASE("a step on texts weighs their bytes, whatever parts its batch is cut into") {
  const auto trainer = trainer_for(small_transformer, local(made_up_texts(ragged_lengths())));
  const auto global = builtin_initial_weights(small_transformer, 1).value();
  const auto update_of = [&](std::uint32_t batch, std::uint32_t accumulate, double& loss) {
    const TrainSettings settings{
        .local_epochs = 2, .batch_size = batch, .accumulate = accumulate, .lr = 0.5, .seed = 3};
    std::vector<float> update(global.size());
    const auto report = trainer->train(global, settings, {}, update, {}).value();
    CHECK(report.predictions == bytes_predicted(ragged_lengths()));
    CHECK(report.examples == 16);
    loss = report.loss;
    return update;
  };
  for (const auto& [at_once, parts] : {std::pair(4U, 2U), std::pair(3U, 3U), std::pair(1U, 8U)}) {
    CAPTURE(at_once);
    double expected = 0;
    double loss = 0;
    const auto whole = update_of(at_once * parts, 1, expected);
    CHECK(relative_distance(update_of(at_once, parts, loss), whole) < 1e-6);
    CHECK(loss == doctest::Approx(expected).epsilon(1e-6));
  }
}

// With a rate of 0 each step sees the same weights.
TEST_CASE("the training loss is the mean over all bytes, whatever the batches") {
  const auto texts = ragged_lengths();
  const auto trainer = trainer_for(small_transformer, local(made_up_texts(texts)));
  const auto judge = trainer_for(small_transformer, local(made_up_texts(texts), 16));
  const auto weights = builtin_initial_weights(small_transformer, 1).value();
  const double expected = judge->evaluate(weights, {})->loss;
  std::vector<float> update(weights.size());
  for (const std::uint32_t batch : {1U, 5U, 16U}) {
    const TrainSettings settings{.local_epochs = 3, .batch_size = batch, .lr = 0};
    CHECK(trainer->train(weights, settings, {}, update, {})->loss ==
          doctest::Approx(expected).epsilon(1e-6));
  }
}

TEST_CASE("evaluations of parts make that of all, by their predictions") {
  std::vector<std::uint16_t> lengths;  // More than are evaluated at once: the last batch is small.
  for (int i = 0; i < 20; ++i)
    for (const std::uint16_t length : ragged_lengths()) lengths.push_back(length);
  const DataSet all = made_up_texts(lengths);
  const auto weights = builtin_initial_weights(small_transformer, 1).value();
  const auto judge = [&](std::vector<std::uint32_t> chosen) {
    return trainer_for(small_transformer, {.all = std::make_shared<const DataSet>(all),
                                           .train = {},
                                           .holdout = std::move(chosen)})
        ->evaluate(weights, {})
        .value();
  };
  std::vector<std::vector<std::uint32_t>> parts(3);
  std::vector<std::uint32_t> numbers;
  for (std::uint32_t i = 0; i < lengths.size(); ++i) {
    numbers.push_back(i);
    parts[lengths[i] > 30 ? 0 : i % 16 == 1 ? 1 : 2].push_back(i);
  }
  const EvalReport whole = judge(numbers);
  CHECK(whole.examples == 320);
  CHECK(whole.predictions == bytes_predicted(lengths));
  double sum = 0;
  double predictions = 0;
  for (auto& part : parts) {
    const EvalReport one = judge(part);
    sum += one.loss * one.predictions.value();
    predictions += one.predictions.value();
  }
  CHECK(predictions == whole.predictions);
  CHECK(whole.loss == doctest::Approx(sum / predictions).epsilon(1e-6));
}

TEST_CASE("a batch of one trains a model, but not the BatchNorms of tiny images") {
  const DataSet set = images(4, 4, std::vector<std::uint8_t>(3 * 16, 7), {0, 1, 1}, 2);
  const auto steps = [&](const std::string& model, std::uint32_t batch_size) {
    const auto trainer = trainer_for(model, local(set));
    const auto weights = trainer->initial_weights(1).value();
    std::vector<float> update(weights.size());
    const auto report = trainer->train(weights, {.batch_size = batch_size}, {}, update, {});
    if (report) return report->steps;
    CHECK(report.error().code() == Errc::invalid_input);
    CHECK(report.error().message().find("--batch-size") != std::string::npos);
    return std::uint64_t{0};
  };
  CHECK(steps("mlp:16-3-2", 1) == 3);
  CHECK(steps("resnet8:1x4x4-2", 1) == 0);
  CHECK(steps("resnet8:1x4x4-2", 2) == 0);  // The last batch has one example.
  CHECK(steps("resnet8:1x4x4-2", 3) == 1);
}

TEST_CASE("an example that is one prediction is told as an example alone") {
  const auto trainer = trainer_for("linear:2-1", local(houses(40), 10));
  const auto weights = scaled_weights("linear:2-1", *trainer);
  std::vector<float> update(weights.size());
  CHECK_FALSE(trainer->evaluate(weights, {})->predictions);
  CHECK_FALSE(trainer->train(weights, {}, {}, update, {})->predictions);
}

}  // namespace fl::test
