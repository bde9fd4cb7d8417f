// SPDX-License-Identifier: Apache-2.0
// Built-in models in files, and what they predict as a table.
#include "client/learn/builtin_file.hpp"

#include "client/learn/predictions.hpp"
#include "shared/params/model_table.hpp"
#include "shared/params/safetensors.hpp"
#include "tests/support/mem_files.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace fl::test {
namespace {

struct ModelFile {
  MemFiles files;

  ModelFile() { files.make_folder("/out").value(); }
  void write(const std::vector<TensorSpec>& specs, const std::vector<float>& values,
             const Metadata& metadata) {
    const Layout layout = Layout::make(specs).value();
    replace_safetensors(files, "/out/model", layout, values, metadata).value();
  }
  Result<BuiltinModel> read(std::string_view given = "") {
    return read_builtin_model(files, "/out/model", given);
  }
  void expect(std::string_view given, const std::vector<std::string>& words) {
    const auto model = read(given);
    REQUIRE(model.has_error());
    CAPTURE(model.error().message());
    CHECK(model.error().code() == Errc::invalid_input);
    CHECK(model.error().message().starts_with("/out/model: "));
    for (const std::string& word : words)
      CHECK(model.error().message().find(word) != std::string::npos);
  }
};

const std::vector<TensorSpec> dense{{"fc.weight", {2, 3}}, {"fc.bias", {2}}};
const std::vector<float> eight{1, 2, 3, 4, 5, 6, 7, 8};
constexpr const char* dense_model = "logistic:3-2,scale=none";

DataSet rows(std::uint32_t n, std::int64_t columns) {
  return {.kind = DataSet::Kind::values,
          .shape = {columns},
          .inputs = Storage(std::vector<float>(n * static_cast<std::size_t>(columns))),
          .source = "rows"};
}

BuiltinModel model_of(const std::string& text) {
  return {.model = text,
          .spec = parse_model(text).value(),
          .layout = builtin_layout(text).value(),
          .weights = builtin_initial_weights(text, 1).value()};
}

}  // namespace

TEST_CASE("a file of a server says which model it holds") {
  ModelFile file;
  file.write(dense, eight, {{"model", dense_model}, {"run", "abc"}});
  const BuiltinModel model = file.read().value();
  CHECK(model.model == dense_model);
  CHECK(model.spec.outputs == 2);
  CHECK(model.weights == eight);
  CHECK(model.tensor("fc.bias").size() == 2);
  CHECK(model.tensor("fc.bias")[1] == 8);
  CHECK(model.tensor("target.running_mean").empty());
  CHECK(file.read(dense_model).has_value());
  file.expect("logistic:3-2", {dense_model, "--spec says \"logistic:3-2\"", "leave out --spec"});
  CHECK(read_builtin_model(file.files, "/out/other").error().code() == Errc::not_found);
}

TEST_CASE("the order of a file's tensors and what a method keeps beside them make no difference") {
  ModelFile file;
  file.write({{"control.fc.bias", {2}}, {"fc.bias", {2}}, {"fc.weight", {2, 3}}},
             {-1, -1, 7, 8, 1, 2, 3, 4, 5, 6}, {{"model", dense_model}});
  CHECK(file.read().value().weights == eight);
}

TEST_CASE("for a file that names no built-in model the user names it") {
  ModelFile file;
  file.write(dense, eight, {});
  file.expect("", {"does not say which model", "--spec SPEC", "lenet"});
  CHECK(file.read(dense_model).value().weights == eight);
  file.write(dense, eight, {{"model", "custom:mine"}});
  file.expect("", {"custom:mine", "tributary_fl.load(FILE, module)"});
  CHECK(file.read(dense_model).has_value());
  file.write(dense, eight, {{"model", "resnet50"}});
  file.expect("", {"resnet50"});
}

TEST_CASE("tensors that are not the model's are named, with what is expected") {
  ModelFile file;
  const Metadata metadata{{"model", "logistic:3-4,scale=none"}};
  file.write(dense, eight, metadata);
  file.expect("", {"fc.weight has shape [2, 3], expected [4, 3]", "fc.bias has shape [2]",
                   "fl-server export", "--spec SPEC"});
  file.write({{"fc.weight", {4, 3}}, {"head.bias", {4}}}, std::vector<float>(16), metadata);
  file.expect("", {"fc.bias is missing", "head.bias is not in the model", "personal"});
  // A model of 17 GB takes no memory before its file is known to hold it.
  file.write(dense, eight, {{"model", "mlp:65536-65536-2,scale=none"}});
  file.expect("", {"fc1.weight is missing"});
}

TEST_CASE("a model with values that are not finite predicts nothing") {
  ModelFile file;
  auto values = eight;
  values[7] = std::numeric_limits<float>::infinity();
  file.write(dense, values, {{"model", dense_model}});
  file.expect("", {"fc.bias[1] is inf"});
}

TEST_CASE("a table of classes has the likeliest one and the probability of each") {
  const BuiltinModel model = model_of("logistic:3-3");
  DataSet set = rows(2, 3);
  set.class_names = {"no", "yes, or \"maybe\""};
  PredictionTable table(model, set);
  CHECK(table.header() == "row,class,p_no,\"p_yes, or \"\"maybe\"\"\",p_2\n");
  const float third = std::log(0.25F);
  CHECK(table.lines_of(std::vector<float>{third, std::log(0.5F), third}) ==
        "1,\"yes, or \"\"maybe\"\"\",0.25,0.5,0.25\n");
  // Logits of any size.
  CHECK(table.lines_of(std::vector<float>{-3e38F, -3e38F, 3e38F}) == "2,2,0,0,1\n");
  CHECK(table.rows() == 2);
}

TEST_CASE("a table of files has their names in place of numbers") {
  const BuiltinModel model = model_of("logistic:3-2");
  DataSet set = rows(2, 3);
  set.example_names = {"a/b.png", "c,d.png"};
  set.example_heading = "file";
  PredictionTable table(model, set);
  CHECK(table.header() == "file,class,p_0,p_1\n");
  CHECK(table.lines_of(std::vector<float>{0, 0, -200, 0}) ==
        "a/b.png,0,0.5,0.5\n\"c,d.png\",1,0,1\n");
}

TEST_CASE("a table of values has them in the targets' own unit") {
  BuiltinModel model = model_of("linear:3-2");
  const std::vector<ColumnSummary> summaries{
      {1, 0, 1}, {1, 0, 1}, {1, 0, 1}, {4, 1.7e9, 4 * 100.0}, {1, 5, 0}};
  write_scaling(model.model, summaries, model.weights);
  DataSet set = rows(2, 3);
  PredictionTable table(model, set);
  CHECK(table.header() == "row,value_1,value_2\n");
  CHECK(table.lines_of(std::vector<float>{1.5, 0.25}) == "1,1700000015,5.25\n");
  set.target_names = {"time", "price"};
  CHECK(PredictionTable(model, set).header() == "row,time,price\n");

  const BuiltinModel plain = model_of("linear:3-1,scale=none");
  PredictionTable unscaled(plain, set);
  CHECK(unscaled.header() == "row,value\n");
  CHECK(unscaled.lines_of(std::vector<float>{0.1F}) == "1,0.1\n");
}

TEST_CASE("what predicts nothing is refused before data are looked at") {
  const auto refusal = [](const std::string& model) {
    const auto done =
        predict({}, model_of(model), {}, [](std::span<const float>) { return success(); });
    return done ? "" : done.error().message();
  };
  CHECK(refusal("synthetic:5").find("predicts nothing of examples") != std::string::npos);
}

}  // namespace fl::test
