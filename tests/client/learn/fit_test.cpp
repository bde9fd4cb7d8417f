// SPDX-License-Identifier: Apache-2.0
// Which data a model takes, and what a client tells of its values.
#include "client/learn/data/fit.hpp"

#include "tests/support/image_data.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

namespace fl::test {
namespace {

constexpr float missing = std::numeric_limits<float>::quiet_NaN();

/// Three examples of two values, with one target each.
DataSet table() {
  return {.kind = DataSet::Kind::values,
          .shape = {2},
          .inputs = Storage(std::vector<float>{1, 10, 3, missing, 5, 30}),
          .targets = {100, 200, 600},
          .outputs = 1,
          .source = "csv:table.csv"};
}

DataSet text() {
  DataSet set{.kind = DataSet::Kind::text,
              .shape = {1025},
              .inputs = Storage(std::vector<std::uint8_t>(1325, 'a')),
              .pieces = {{0, 1025}, {1025, 300}},
              .source = "text:books"};
  return set;
}

std::string refusal(std::string_view model, DataSet set) {
  const auto fit = check_fit(parse_model(model).value(), model, local(std::move(set)));
  return fit ? "" : fit.error().message();
}

}  // namespace

TEST_CASE("the shape of data is told in words") {
  CHECK(data_shape_text(table()) == "2 values, 1 target");
  CHECK(data_shape_text(text()) == "text");
  CHECK(data_shape_text(images(2, 3, std::vector<std::uint8_t>(12), {0, 9})) ==
        "1x2x3 pixels, 10 classes");
}

TEST_CASE("a model takes data of its sizes, and else says its own and theirs") {
  const auto grey = [] { return images(2, 3, std::vector<std::uint8_t>(12), {0, 9}); };
  CHECK(refusal("linear:2-1", table()).empty());
  CHECK(refusal("mlp:6-10", grey()).empty());
  CHECK(refusal("linear:6-1", grey()).empty());  // Labels are values, too.
  CHECK(refusal("transformer:context=100", text()).empty());
  const auto expect = [](const std::string& said, const std::string& words) {
    CAPTURE(said);
    CHECK(said.find(words) != std::string::npos);
  };
  expect(refusal("linear:3-1", table()), "takes 3 values an example, but \"csv:table.csv\" has 2");
  expect(refusal("linear:2-2", table()), "takes 2 targets an example, but \"csv:table.csv\" has 1");
  expect(refusal("logistic:2-2", table()), "targets that are not integers from 0");
  expect(refusal("mlp:6-9", grey()), "takes labels from 0 to 8, but \"images\" has labels to 9");
  expect(refusal("cnn:1x28x28-10", grey()),
         "images of 1x28x28, but \"images\" has examples of 1x2x3");
  expect(refusal("cnn:1x28x28-10", text()), "takes images or numbers, but \"text:books\" has text");
  expect(refusal("transformer", table()), "takes text, but");
  expect(refusal("linear:2-1,scale=none", table()), "has one in example 1, value 1");
}

TEST_CASE("a client without data fits every model") {
  CHECK(check_fit(parse_model("linear:2-1").value(), "linear:2-1", LocalData()).has_value());
}

TEST_CASE("summaries are of the training examples, without missing values") {
  const LocalData data = local(table(), 1);
  const auto told = summarise(parse_model("linear:2-1").value(), data);
  CHECK(told == std::vector<ColumnSummary>{{2, 2, 2}, {1, 10, 0}, {2, 150, 5000}});
  CHECK(summarise(parse_model("linear:2-1,scale=none").value(), data).empty());
  const auto pixels = summarise(parse_model("logistic:2-2").value(),
                                local(images(1, 2, {0, 255, 255, 255}, {0, 1})));
  CHECK(pixels == std::vector<ColumnSummary>{{2, 0.5, 0.5}, {2, 1, 0}});
}

TEST_CASE("summaries are of the values with their offsets") {
  DataSet far = table();
  far.input_offsets = {1.7e12, 0};
  far.target_offsets = {-1e9};
  const auto told = summarise(parse_model("linear:2-1").value(), local(std::move(far), 1));
  CHECK(told == std::vector<ColumnSummary>{{2, 1.7e12 + 2, 2}, {1, 10, 0}, {2, -1e9 + 150, 5000}});
}

TEST_CASE("values that fp32 can't scale are refused, with their column and what to do") {
  const auto refused = [](std::vector<float> inputs, bool has_names, std::string_view model) {
    DataSet set = table();
    set.inputs = Storage(std::move(inputs));
    if (has_names) set.input_names = {"mass", "age"};
    set.target_names = {"price"};
    const auto checked = check_values(model, local(std::move(set)));
    return checked ? "" : checked.error().message();
  };
  const std::vector<float> large = {1e20F, 1, -1e20F, 2, 3e20F, 3};
  CHECK(
      refused(large, true, "linear:2-1") ==
      "csv:table.csv: column \"mass\": its values deviate by 1.63e+20 from 1e+20, and a model "
      "can scale deviations from 1.1e-19 to 1.8e19: divide it by a number that all members share");
  CHECK(refused(large, true, "linear:2-1,scale=none").empty());
  const std::vector<float> small = {1, 1e-20F, 2, 3e-20F, 3, 5e-20F};
  const std::string said = refused(small, false, "linear:2-1");
  CAPTURE(said);
  CHECK(said.find("value 2 of each example: its values deviate by 1.63e-20") != std::string::npos);
  CHECK(said.find("multiply it by") != std::string::npos);
  // A constant is no such value, and neither is what the model does not scale.
  CHECK(refused({1, 0, 2, 0, 3, 0}, false, "linear:2-1").empty());
  CHECK(refused({1, 0, 2, 0, 3, 0}, false, "linear:3-1").find("takes 3 values") !=
        std::string::npos);
  DataSet target = table();
  target.targets = {1e-30F, 2e-30F, 3e-30F};
  target.target_names = {"price"};
  const auto checked = check_values("linear:2-1", local(std::move(target)));
  REQUIRE(checked.has_error());
  CHECK(checked.error().message().find("column \"price\"") != std::string::npos);
}

TEST_CASE("a language model sees the windows of pieces as examples") {
  CHECK(windows_in(1025, 1024) == 1);
  CHECK(windows_in(1025, 256) == 4);
  CHECK(windows_in(1025, 100) == 11);  // The last one has 24 tokens.
  CHECK(windows_in(131'073, 131'072) == 1);
  CHECK(windows_in(2, 100) == 1);
  const DataSet set = text();
  const std::vector<std::uint32_t> both = {0, 1};
  CHECK(examples_in(parse_model("transformer:context=100").value(), set, both) == 11 + 3);
  CHECK(examples_in(parse_model("mlp:1025-2").value(), set, both) == 2);
}

TEST_CASE("a language model knows all tokens of its data, and a piece has its context") {
  CHECK(refusal("transformer:vocab=300", text()).empty());
  CHECK(refusal("transformer:vocab=200", text()) ==
        "model \"transformer:vocab=200\" takes tokens from 0 to 199, but \"text:books\" has bytes, "
        "which are tokens from 0 to 255");
  DataSet tokens = text();
  tokens.token_bytes = 2;
  tokens.vocabulary = 50'257;
  tokens.inputs = Storage(std::vector<std::uint16_t>(1325, 50'256));
  CHECK(data_shape_text(tokens) == "text, tokens to 50256");
  CHECK(refusal("transformer:vocab=50257", tokens).empty());
  CHECK(refusal("transformer:vocab=50256", tokens) ==
        "model \"transformer:vocab=50256\" takes tokens from 0 to 50255, but \"text:books\" has "
        "tokens to 50256");
  CHECK(refusal("transformer:context=1024", text()).empty());
  CHECK(refusal("transformer:context=8192", text()) ==
        "model \"transformer:context=8192\" takes contexts of 8192 tokens, but \"text:books\" has "
        "pieces of 1024: add piece=8192 to it");
  DataSet longer = text();
  longer.shape = {8193};
  CHECK(refusal("transformer:context=8192", longer).empty());
}

}  // namespace fl::test
