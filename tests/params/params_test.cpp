// SPDX-License-Identifier: Apache-2.0
// Layouts and the table of built-in models.
#include "shared/params/layout.hpp"

#include "shared/base/limits.hpp"
#include "shared/params/model_table.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>

using namespace fl;

TEST_CASE("a layout has the right count, offsets and names of elements") {
  const Layout layout =
      Layout::make({{"a", {2, 3}}, {"empty", {0, 7}}, {"s", {}}, {"b", {4}}}).value();
  CHECK(layout.elements() == 11);
  CHECK(layout.bytes() == 44);
  CHECK(layout.tensors()[2].offset == 6);
  CHECK(layout.tensors()[2].elements == 1);
  CHECK(layout.describe(0) == "a[0]");
  CHECK(layout.describe(5) == "a[5]");
  CHECK(layout.describe(6) == "s[0]");
  CHECK(layout.describe(10) == "b[3]");
}

TEST_CASE("layouts with other names, shapes or order have other digests") {
  const auto digest = [](const std::vector<TensorSpec>& specs) {
    return Layout::make(specs).value().digest();
  };
  const Digest one = digest({{"a", {2, 3}}, {"b", {4}}});
  CHECK(one == digest({{"a", {2, 3}}, {"b", {4}}}));
  CHECK(one != digest({{"a", {3, 2}}, {"b", {4}}}));
  CHECK(one != digest({{"b", {4}}, {"a", {2, 3}}}));
  CHECK(one != digest({{"a", {2, 3}}, {"c", {4}}}));
  CHECK(one != digest({{"a", {2, 3}}, {"b", {4, 1}}}));
  CHECK(digest({}) != digest({{"a", {}}}));
}

TEST_CASE("invalid layouts are refused") {
  const auto code = [](const std::vector<TensorSpec>& specs) {
    const auto layout = Layout::make(specs);
    REQUIRE_FALSE(layout.has_value());
    return layout.error().code();
  };
  const std::int64_t most = static_cast<std::int64_t>(limits::parameters_max);
  CHECK(code({{"", {1}}}) == Errc::invalid_input);
  CHECK(code({{"a", {1}}, {"a", {1}}}) == Errc::invalid_input);
  CHECK(code({{"a", {-1}}}) == Errc::invalid_input);
  CHECK(code({{"a\xff", {1}}}) == Errc::invalid_input);
  CHECK(code({{std::string("a\0b", 3), {1}}}) == Errc::invalid_input);
  CHECK(code({{"\xed\xa0\x80", {1}}}) == Errc::invalid_input);  // A lone surrogate.
  CHECK(code({{"__metadata__", {1}}}) == Errc::invalid_input);
  CHECK(code({{std::string(513, 'a'), {1}}}) == Errc::too_large);
  CHECK(code({{"a", {most + 1}}}) == Errc::too_large);
  CHECK(code({{"a", {1ll << 32, 1ll << 32}}}) == Errc::too_large);
  CHECK(code({{"a", {1ll << 62, 4}}}) == Errc::too_large);
  CHECK(code({{"a", {most}}, {"b", {1}}}) == Errc::too_large);
  CHECK(code({{"a", std::vector<std::int64_t>(17, 1)}}) == Errc::too_large);
  CHECK(code(std::vector<TensorSpec>(limits::tensors_max + 1, {"a", {1}})) == Errc::too_large);
  CHECK(Layout::make({{"a", {most}}}).has_value());
}

TEST_CASE("a client's list of tensors, however strange, is described in a short text") {
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 1000; ++i) specs.push_back({fmt::format("t{}", i), {2, 3}});
  const Layout run = Layout::make(specs).value();
  CHECK(
      describe_differences(run, std::vector<TensorSpec>(specs.begin(), specs.begin() + 2), true) ==
      "the client has no t2; the client has no t3; the client has no t4; and 995 more");
  specs[0].shape = {3, 2};
  specs[1].shape.assign(100'000, -1);
  specs[2].name = std::string(100'000, 'x');
  const std::string text = describe_differences(run, specs, false);
  CHECK(
      text.starts_with("t0 has shape [2, 3] in the run and [3, 2] at the client; t1 has shape "
                       "[2, 3] in the run and 100000 dimensions at the client; the run has no "
                       "xxx"));
  CHECK(text.size() < 300);
}

TEST_CASE("a name is any text that PyTorch and safetensors take") {
  for (const char* name : {"lead I.weight", "blood\tpressure\n2", "Größe.重み", "a=b;c*", "\x7f"}) {
    CAPTURE(name);
    const Layout layout = Layout::make({{name, {1}}}).value();
    CHECK(layout.tensors()[0].name == name);
  }
}

TEST_CASE("names that a wrapper has changed are told as such") {
  const std::vector<TensorSpec> plain = {{"b", {3}}, {"a.b", {2}}};
  const std::vector<TensorSpec> wrapped = {{"_orig_mod.b", {3}}, {"_orig_mod.a.b", {2}}};
  const auto why = [](const std::vector<TensorSpec>& run, const std::vector<TensorSpec>& told) {
    return describe_differences(Layout::make(run).value(), told, true);
  };
  CHECK(why(plain, wrapped).starts_with("all names of the client begin with _orig_mod.,"));
  CHECK(why(wrapped, plain).starts_with("all names of the run begin with _orig_mod.,"));
  for (const auto& other :
       std::vector<std::vector<TensorSpec>>{{{"_orig_mod.b", {3}}},
                                            {{"_orig_mod.b", {3}}, {"module.a.b", {2}}},
                                            {{"xb", {3}}, {"xa.b", {2}}},
                                            {{"b", {3}}, {"a.c", {2}}}}) {
    CHECK(why(plain, other).starts_with("the client has no "));
  }
}

TEST_CASE("built-in models have as many parameters as in their papers") {
  const auto elements = [](std::string_view model) {
    return builtin_layout(model).value().elements();
  };
  CHECK(elements("lenet") == 44'426);
  CHECK(elements("cnn") == 1'663'370);
  CHECK(elements("mlp") == 199'210);
  CHECK(elements("logistic") == 7'850);
  // Parameters plus statistics: 2 for each of 240 and 688 channels.
  CHECK(elements("resnet8") == 75'002 + 480);
  CHECK(elements("resnet20") == 269'434 + 1376);
  CHECK(elements("synthetic:1000") == 1000);
  CHECK(builtin_layout("lenet").value().tensors()[9].name == "fc3.bias");
  for (const char* wrong : {"synthetic:", "synthetic:0", "synthetic:-1", "synthetic:1x",
                            "synthetic:99999999999999999999", "resnet", ""}) {
    const auto layout = builtin_layout(wrong);
    REQUIRE_FALSE(layout.has_value());
    CHECK(layout.error().code() == Errc::invalid_input);
  }
  for (const ModelRow& row : builtin_models()) {
    CHECK(builtin_layout("resnet").error().message().find(row.name) != std::string::npos);
  }
}

TEST_CASE("initial weights are uniform in +-1/sqrt(fan_in), differ by seed, and never change") {
  const auto weights = builtin_initial_weights("lenet", 1).value();
  const Layout layout = builtin_layout("lenet").value();
  const double fan_in[] = {25, 150, 256, 120, 84};
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    const auto& tensor = layout.tensors()[t];
    const double bound = 1 / std::sqrt(fan_in[t / 2]);
    double sum = 0;
    double squares = 0;
    for (std::uint64_t i = tensor.offset; i < tensor.offset + tensor.elements; ++i) {
      CHECK(std::fabs(weights[i]) <= bound * (1 + 1e-7));
      sum += weights[i] / bound;
      squares += weights[i] / bound * weights[i] / bound;
    }
    // A uniform variable on [-1, 1] has variance 1/3; its square has variance 4/45.
    const auto n = static_cast<double>(tensor.elements);
    CHECK(std::fabs(sum / n) < 5 * std::sqrt(1 / 3.0 / n));
    CHECK(std::fabs(squares / n - 1 / 3.0) < 5 * std::sqrt(4 / 45.0 / n));
  }
  CHECK(weights != builtin_initial_weights("lenet", 2).value());
  CHECK(Digest::of(std::as_bytes(std::span(weights))).hex() == "b6c69a0eb1b255968df011f59c8a7114");
  CHECK(builtin_initial_weights("synthetic:5", 9).value() == std::vector<float>(5));
  CHECK_FALSE(builtin_initial_weights("resnet", 1).has_value());
}

TEST_CASE("a new BatchNorm is the identity, and statistics come last in the layout") {
  const Layout layout = builtin_layout("resnet8").value();
  const auto values = builtin_initial_weights("resnet8", 1).value();
  bool has_statistics = false;
  std::size_t statistics = 0;
  for (const auto& tensor : layout.tensors()) {
    CAPTURE(tensor.name);
    const auto part = std::span(values).subspan(tensor.offset, tensor.elements);
    const auto all_are = [&](float value) {
      return std::ranges::all_of(part, [=](float v) { return v == value; });
    };
    const bool is_norm = tensor.name.find("bn") != std::string::npos;
    if (tensor.name.ends_with("running_var")) CHECK(all_are(1));
    if (tensor.name.ends_with("running_mean")) CHECK(all_are(0));
    if (is_norm && tensor.name.ends_with(".weight")) CHECK(all_are(1));
    if (is_norm && tensor.name.ends_with(".bias")) CHECK(all_are(0));
    if (!is_norm) CHECK_FALSE(all_are(part[0]));
    if (is_statistic(tensor.name)) ++statistics;
    CHECK((is_statistic(tensor.name) || !has_statistics));
    has_statistics = has_statistics || is_statistic(tensor.name);
  }
  CHECK(statistics == 14);
}
