// SPDX-License-Identifier: Apache-2.0
// Metrics by name: which names and values are right, and how several clients' values make one.
#include "shared/params/metric.hpp"

#include "shared/base/limits.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

using namespace fl;

namespace {

constexpr double undefined = std::numeric_limits<double>::quiet_NaN();

struct Counts {
  double tp, fp, fn;
  [[nodiscard]] double weight() const { return 2 * tp + fp + fn; }
  [[nodiscard]] double f1() const { return 2 * tp / weight(); }
};

}  // namespace

TEST_CASE("F1 of all clients is exact if each weighs its counts, and not if it weighs examples") {
  const std::vector<Counts> clients{{90, 10, 0}, {1, 30, 7}, {0, 0, 5}, {44, 3, 2}};
  Counts all{};
  std::vector<Weighted> by_counts;
  std::vector<Weighted> by_examples;
  for (const Counts& of : clients) {
    all = {all.tp + of.tp, all.fp + of.fp, all.fn + of.fn};
    by_counts.push_back({of.f1(), of.weight()});
    by_examples.push_back({of.f1(), 100});
  }
  CHECK(combine(Combine::mean, by_counts).value() == doctest::Approx(all.f1()).epsilon(1e-14));
  CHECK(std::abs(combine(Combine::mean, by_examples).value() - all.f1()) > 0.1);
}

TEST_CASE("the perplexity of all clients is that of their mean loss") {
  const std::vector<double> losses{1.5, 3.25, 0.5};
  const std::vector<double> tokens{1000, 10, 290};
  std::vector<Weighted> values;
  double sum = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    values.push_back({std::exp(losses[i]), tokens[i]});
    sum += losses[i] * tokens[i];
  }
  const double exact = std::exp(sum / std::accumulate(tokens.begin(), tokens.end(), 0.0));
  CHECK(combine(Combine::log_mean, values).value() == doctest::Approx(exact).epsilon(1e-14));
  CHECK(combine(Combine::mean, values).value() > exact + 0.1);
}

TEST_CASE("a value that is not defined does not count, and nothing makes nothing") {
  const double infinite = std::numeric_limits<double>::infinity();
  for (const Combine how : {Combine::mean, Combine::log_mean, Combine::none}) {
    CAPTURE(to_text(how));
    CHECK(combine(how, std::vector<Weighted>{{undefined, 5}, {0.25, 3}, {infinite, 1}}).value() ==
          doctest::Approx(0.25));
    CHECK(!combine(how, std::vector<Weighted>{{undefined, 5}}));
    CHECK(!combine(how, {}));
    CHECK((combine_of(to_text(how)) == how));
  }
  CHECK(!combine(Combine::log_mean, std::vector<Weighted>{{0, 5}, {-1, 2}}));
  CHECK(combine(Combine::none, std::vector<Weighted>{{0.5, 1}, {0.8, 2}}).value() ==
        doctest::Approx(0.7));
  CHECK(!combine_of("sum"));
}

TEST_CASE("a metric's name is any printable text, and some names are reserved") {
  for (const char* const good : {"f1", "F1 (macro)", "top5", "f1/class-3", "iou_0.5", "ownership",
                                 "p% = \"a\" <b>", "Größe", "точность"}) {
    CAPTURE(std::string(good));
    CHECK(check_metric_name(good));
  }
  for (const std::string& bad :
       {std::string(), std::string(" f1"), std::string("f1 "), std::string("a\n"),
        std::string("\x1b[2J"), std::string("a\xff"), std::string("\u202e1f"), std::string("loss"),
        std::string("own_f1"), std::string(limits::metric_name_bytes_max + 1, 'a')}) {
    CAPTURE(bad);
    const auto checked = check_metric_name(bad);
    REQUIRE(checked.has_error());
    CHECK(checked.error().code() == Errc::invalid_input);
    CHECK(checked.error().message().find('\n') == std::string::npos);
  }
  CHECK(check_metric_name(std::string(limits::metric_name_bytes_max, 'a')));
}

TEST_CASE("what a trainer declares must be few, of different names, and of the known direction") {
  std::vector<MetricKind> kinds;
  for (std::size_t i = 0; i < limits::metrics_max; ++i)
    kinds.push_back({.name = "m" + std::to_string(i)});
  CHECK(check_metrics(kinds));
  CHECK(check_metrics({}));
  kinds.push_back({.name = "more"});
  CHECK(check_metrics(kinds).error().message() == "17 metrics are declared, and the limit is 16");
  const auto refused = [](std::vector<MetricKind> declared) {
    const auto checked = check_metrics(declared);
    return checked ? std::string() : checked.error().message();
  };
  CHECK(refused({{.name = "a"}, {.name = "b"}, {.name = "a"}}) == "metric a is declared twice");
  CHECK(refused({{.name = "accuracy", .lower_is_better = true}}) ==
        "of metric accuracy higher values are better, not lower ones");
  CHECK(refused({{.name = "auroc", .combine = Combine::mean}}) ==
        "the values of metric auroc can't be combined by 'mean': choose none");
  CHECK(refused({{.name = "f1", .combine = Combine::none}}).empty());
  CHECK(refused({{.name = "mine", .lower_is_better = true, .combine = Combine::log_mean}}).empty());
  CHECK(refused({{.name = "Mine"}, {.name = "mine"}}).empty());
  CHECK(refused({{.name = "MAE"}}) == "of metric MAE lower values are better, not higher ones");
}

TEST_CASE("each known metric can be declared, and its name is there once") {
  std::set<std::string_view> names;
  for (const KnownMetric& known : known_metrics()) {
    CAPTURE(known.name);
    CHECK(names.insert(known.name).second);
    if (known.name == loss_name) continue;
    CHECK(check_metrics(std::vector{known_metric(known.name)}));
  }
  CHECK(find_known_metric("loss")->lower_is_better);
  CHECK(find_known_metric("auroc")->combine == Combine::none);
  CHECK(find_known_metric("nonesuch") == nullptr);
  CHECK(find_known_metric("RMSE") == find_known_metric("rmse"));
  CHECK(known_metric("RMSE").name == "RMSE");
  CHECK(metric_text("Accuracy", 0.5) == "50.00%");
}

TEST_CASE("a value must be of a declared metric, and within its range") {
  const std::vector<MetricKind> kinds{known_metric("accuracy"), known_metric("perplexity"),
                                      MetricKind{.name = "mine"}};
  const auto is_right = [&](const char* name, double value, double weight = 0) {
    return check_metric_value({name, value, weight}, kinds).has_value();
  };
  CHECK(is_right("accuracy", 0));
  CHECK(is_right("accuracy", 1, 7));
  CHECK(is_right("accuracy", undefined));
  CHECK(is_right("mine", -1e300, limits::metric_weight_max));
  CHECK(!is_right("accuracy", 1.01));
  CHECK(!is_right("accuracy", -0.01));
  CHECK(is_right("perplexity", 1e9));
  CHECK(!is_right("perplexity", 0));
  CHECK(!is_right("f1", 0.5));
  CHECK(!is_right("", 0.5));
  CHECK(!is_right("mine", 0.5, -1));
  CHECK(!is_right("mine", 0.5, undefined));
  CHECK(!is_right("mine", 0.5, limits::metric_weight_max * 2));
}

TEST_CASE("only fractions are shown in percent") {
  CHECK(metric_text("accuracy", 0.861) == "86.10%");
  CHECK(metric_text("own_accuracy", 0.861) == "86.10%");
  CHECK(metric_text("perplexity", 21.3) == "21.3");
  CHECK(metric_text("mine", 0.5) == "0.5");
  CHECK(metric_text("loss", 0.34567) == "0.3457");
}
