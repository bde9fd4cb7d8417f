// SPDX-License-Identifier: Apache-2.0
// What a model predicts is what an evaluation of it measures.
#include "client/learn/torch/torch_predictor.hpp"

#include "client/learn/data/random.hpp"
#include "client/learn/predictions.hpp"
#include "client/learn/torch/torch_trainer.hpp"
#include "shared/params/model_table.hpp"
#include "tests/client/learn/made_up_texts.hpp"
#include "tests/support/image_data.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace fl::test {
namespace {

BuiltinModel model_for(const std::string& text) {
  return {.model = text,
          .spec = parse_model(text).value(),
          .layout = builtin_layout(text).value(),
          .weights = builtin_initial_weights(text, 3).value()};
}

std::vector<float> outputs_of(const BuiltinModel& model, const LocalData& data) {
  std::vector<float> all;
  const auto done = predict_by_torch({.model = "", .data = "", .device = "cpu", .threads = 1},
                                     model, data, [&all](std::span<const float> outputs) {
                                       all.insert(all.end(), outputs.begin(), outputs.end());
                                       return success();
                                     });
  REQUIRE(done);
  return all;
}

/// The loss that an evaluation of the held-out examples measures.
double measured(const BuiltinModel& model, LocalData data) {
  const auto trainer =
      make_torch_trainer({.model = model.model, .data = "", .device = "cpu", .threads = 1},
                         std::move(data))
          .value();
  return trainer->evaluate(model.weights, {}).value().loss;
}

double cross_entropy(std::span<const float> outputs, std::span<const std::uint32_t> labels) {
  const std::size_t classes = outputs.size() / labels.size();
  double sum = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const auto row = outputs.subspan(i * classes, classes);
    double all = 0;
    for (const float logit : row) all += std::exp(double{logit});
    sum += std::log(all) - double{row[labels[i]]};
  }
  return sum / static_cast<double>(labels.size());
}

}  // namespace

TEST_CASE("outputs are those that an evaluation measures, also of more than one batch") {
  std::vector<std::uint8_t> pixels(std::size_t{1200} * 16);
  std::vector<std::uint32_t> labels(1200);
  Random random(7, 0);
  for (std::uint8_t& pixel : pixels) pixel = static_cast<std::uint8_t>(random.below(256));
  for (std::uint32_t& label : labels) label = random.below(3);
  for (const std::string text : {"cnn:1x4x4-3", "resnet8:1x4x4-3", "mlp:16-5-3"}) {
    CAPTURE(text);
    const BuiltinModel model = model_for(text);
    const DataSet set = images(4, 4, pixels, labels, 3);
    const double loss = measured(model, local(set, set.size()));
    DataSet unlabelled = set;
    unlabelled.labels.clear();
    const auto outputs = outputs_of(model, local(std::move(unlabelled), set.size()));
    REQUIRE(outputs.size() == std::size_t{1200} * 3);
    CHECK(cross_entropy(outputs, labels) == doctest::Approx(loss).epsilon(1e-6));
  }
}

TEST_CASE("missing values and offsets are predicted as they are trained on") {
  constexpr float missing = std::numeric_limits<float>::quiet_NaN();
  BuiltinModel model = model_for("linear:2-1");
  const DataSet set{.kind = DataSet::Kind::values,
                    .shape = {2},
                    .inputs = Storage(std::vector<float>{-1, missing, 1, 20, 0, 10}),
                    .input_offsets = {1.7e9, 0},
                    .source = "table"};
  const std::vector<ColumnSummary> summaries{{3, 1.7e9, 2}, {2, 15, 50}, {3, 0, 3}};
  write_scaling(model.model, summaries, model.weights);
  const auto outputs = outputs_of(model, local(set, 3));
  REQUIRE(outputs.size() == 3);
  const auto weight = model.tensor("fc.weight");
  const auto expect = [&](float first, float second) {
    return doctest::Approx(weight[0] * first + weight[1] * second + model.tensor("fc.bias")[0])
        .epsilon(1e-5);
  };
  const float unit = std::sqrt(1.5F);
  CHECK(outputs[0] == expect(-unit, 0));
  CHECK(outputs[1] == expect(unit, 1));
  CHECK(outputs[2] == expect(0, -1));
}

TEST_CASE("texts get the loss that an evaluation measures, a line for each of any length") {
  const std::vector<std::uint16_t> lengths{3, 40, 9, 2, 17, 33};
  for (const std::string text : {"transformer:layers=1,width=8,heads=2,context=8",
                                 "transformer:layers=1,width=8,heads=2,context=8,experts=2"}) {
    CAPTURE(text);
    const BuiltinModel model = model_for(text);
    const DataSet set = made_up_texts(lengths);
    const double loss = measured(model, local(set, set.size()));
    PredictionTable table(model, set);
    CHECK(table.header() == "row,predictions,loss,perplexity\n");
    std::string lines;
    // In pieces, as a larger file comes: of a piece of text some windows may be missing yet.
    for (const float output : outputs_of(model, local(set, set.size())))
      lines += table.lines_of({&output, 1});
    CHECK(table.rows() == lengths.size());
    double sum = 0;
    double predictions = 0;
    std::istringstream rows(lines);
    for (std::size_t row = 0; row < lengths.size(); ++row) {
      std::string line;
      REQUIRE(std::getline(rows, line));
      int number = 0;
      int count = 0;
      double mean = 0;
      double perplexity = 0;
      REQUIRE(std::sscanf(line.c_str(), "%d,%d,%lf,%lf", &number, &count, &mean, &perplexity) == 4);
      CHECK(number == static_cast<int>(row) + 1);
      CHECK(count == lengths[row] - 1);
      CHECK(perplexity == doctest::Approx(std::exp(mean)).epsilon(1e-5));
      sum += mean * count;
      predictions += count;
    }
    CHECK(sum / predictions == doctest::Approx(loss).epsilon(1e-6));
  }
}

TEST_CASE("an error of the taker ends a prediction") {
  const BuiltinModel model = model_for("mlp:4-2");
  const DataSet set = images(2, 2, std::vector<std::uint8_t>(4), {0}, 2);
  const auto done = predict_by_torch(
      {.model = "", .data = "", .device = "cpu", .threads = 1}, model, local(set, 1),
      [](std::span<const float>) -> Result<void> { return Error(Errc::no_space, "full"); });
  REQUIRE(done.has_error());
  CHECK(done.error().code() == Errc::no_space);
  CHECK(predict_by_torch({.model = "", .data = "", .device = "cuda:99"}, model, local(set, 1), {})
            .error()
            .code() == Errc::invalid_input);
}

}  // namespace fl::test
