// SPDX-License-Identifier: Apache-2.0
#include "client/learn/process/trainer_messages.hpp"

#include "shared/algorithm/train_fields.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/printable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

namespace fl {

namespace {

using nlohmann::json;

// Types of whole numbers and booleans in safetensors files.
constexpr std::array<std::string_view, 9> whole_types{"I64", "I32", "I16", "I8",  "U64",
                                                      "U32", "U16", "U8",  "BOOL"};
constexpr std::size_t digest_digits_max = 128;

/// The error for a message in which `member` is wrong.
Error wrong(std::string_view member, std::string_view what) {
  return {Errc::invalid_input, fmt::format("the trainer's '{}' {}", member, what)};
}

const json* find(const json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

Result<std::string> text(const json& object, const char* name, std::string_view otherwise) {
  const json* const value = find(object, name);
  if (value == nullptr) return std::string(otherwise);
  if (!value->is_string()) return wrong(name, "is not a text");
  return value->get<std::string>();
}

/// A whole number of at least 0.
Result<std::uint64_t> count(const json& object, const char* name,
                            std::optional<std::uint64_t> otherwise) {
  const json* const value = find(object, name);
  if (value == nullptr && otherwise) return *otherwise;
  if (value == nullptr) return wrong(name, "is missing");
  const auto number = number_in<std::uint64_t>(*value);
  if (!number)
    return wrong(
        name, fmt::format("is {}: it must be {}", short_json(*value), numbers_of<std::uint64_t>()));
  return *number;
}

/// A number; "NaN" and "Infinity" as texts or null are numbers too, because JSON has none of them.
Result<double> number(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return wrong(name, "is missing");
  if (const auto value = number_in<double>(*found)) return *value;
  if (found->is_null()) return std::numeric_limits<double>::quiet_NaN();
  return wrong(name, "is not a number");
}

/// How many predictions a loss is the mean over; none if the message does not say.
Result<std::optional<double>> predictions_of(const json& message) {
  if (find(message, "predictions") == nullptr) return std::optional<double>();
  FL_TRY(const double told, number(message, "predictions"));
  FL_CHECK(check_predictions(told));
  return std::optional(told);
}

struct HelloTensor {
  TensorSpec spec;
  std::optional<ElementType> type;  // None for whole numbers.
};

Result<HelloTensor> parse_tensor(const json& value) {
  HelloTensor tensor;
  FL_TRY(tensor.spec.name, text(value, "name", ""));
  if (tensor.spec.name.empty()) return wrong("tensors", "has one without a name");
  const auto bad = [&](const std::string& what) {
    return wrong("tensors", fmt::format("has '{}' {}", tensor.spec.name, what));
  };
  const json* const shape = find(value, "shape");
  if (shape == nullptr || !shape->is_array()) return bad("without a shape");
  for (const json& size : *shape) {
    const auto number = number_in<std::uint64_t>(size);
    if (!number || *number > limits::parameters_max)
      return bad(fmt::format("with a size of {}", short_json(size)));
    tensor.spec.shape.push_back(static_cast<std::int64_t>(*number));
  }
  FL_TRY(const std::string type, text(value, "dtype", "F32"));
  tensor.type = parse_element_type(type);
  if (!tensor.type && std::ranges::find(whole_types, type) == whole_types.end()) {
    return bad(
        fmt::format("of dtype {}: F32, F16, BF16 and F64 can be trained; give a complex "
                    "tensor as a real one with a last dimension of 2",
                    type.substr(0, 40)));
  }
  return tensor;
}

Result<void> take_tensors(const json& message, TrainerHello& hello) {
  const json* const told = find(message, "tensors");
  if (told == nullptr || !told->is_array() || told->empty())
    return wrong("tensors", "is not a list of tensors");
  std::vector<HelloTensor> tensors;
  for (const json& value : *told) {
    FL_TRY(HelloTensor tensor, parse_tensor(value));
    if (tensor.type) {
      tensors.push_back(std::move(tensor));
    } else {
      hello.left.push_back(tensor.spec.name);
    }
  }
  FL_TRY(const std::string frozen, text(message, "frozen", ""));
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (frozen.size() > digest_digits_max || !std::ranges::all_of(frozen, is_digit))
    return wrong("frozen", "is not a digest of hexadecimal digits (0-9, a-f)");
  // The server orders the tensors of a file so (take_tensors() in server/run/settings.cpp).
  const auto place = [](const TensorSpec& spec) {
    return std::pair(is_statistic(spec.name), spec.name);
  };
  std::ranges::sort(tensors, {}, [&](const HelloTensor& tensor) { return place(tensor.spec); });
  std::vector<TensorSpec> specs;
  for (const auto& tensor : tensors) {
    specs.push_back(tensor.spec);
    hello.types.push_back(*tensor.type);
  }
  const auto make = [&](Layout& layout) -> Result<void> {
    auto made = Layout::make(specs);
    if (!made) return made.error().at("the trainer's 'tensors'");
    layout = std::move(*made);
    return {};
  };
  FL_CHECK(make(hello.files));
  if (!frozen.empty()) specs.push_back({std::string(frozen_prefix) + frozen, {0}});
  std::ranges::sort(specs, {}, place);
  FL_CHECK(make(hello.layout));
  if (hello.layout.elements() == 0) return wrong("tensors", "has no elements to train");
  return {};
}

Result<MetricKind> parse_metric(const json& value) {
  MetricKind kind;
  FL_TRY(kind.name, value.is_string() ? value.get<std::string>() : text(value, "name", ""));
  // The name of a known metric says what the program leaves out.
  if (find_known_metric(kind.name) != nullptr) kind = known_metric(kind.name);
  FL_TRY(const std::string better,
         text(value, "better", kind.lower_is_better ? "lower" : "higher"));
  FL_TRY(const std::string combined, text(value, "combine", to_text(kind.combine)));
  const auto how = combine_of(combined);
  const bool is_right = how && (better == "higher" || better == "lower");
  if (!is_right) {
    return wrong("metrics", fmt::format("has '{}' that is not as it must be: better is 'higher' or "
                                        "'lower', combine is 'mean', 'log_mean' or 'none'",
                                        printable(kind.name, limits::metric_name_bytes_max)));
  }
  kind.lower_is_better = better == "lower";
  kind.combine = *how;
  return kind;
}

Result<void> take_abilities(const json& message, Trainer::Abilities& abilities) {
  abilities = {};
  const json* const told = find(message, "supports");
  if (told == nullptr) return {};
  if (!told->is_array()) return wrong("supports", "is not a list");
  for (const json& word : *told) {
    if (word == "optimizer") abilities.optimizer = true;
    if (word == "proximal") abilities.proximal = true;
    if (word == "correction") abilities.correction = true;
    if (word == "gradient") abilities.gradient = true;
    if (word == "initial") abilities.initial = true;
    if (word == "clip_norm") abilities.clip_norm = true;
  }
  return {};
}

json value_json(double value) { return value; }
json value_json(std::uint32_t value) { return value; }
json value_json(std::uint64_t value) { return value; }
json value_json(const LocalOptimizer& optimizer) {
  if (optimizer.is_sgd()) return {{"name", to_string(optimizer.kind)}};
  return {{"name", to_string(optimizer.kind)},
          {"beta1", optimizer.beta1},
          {"beta2", optimizer.beta2},
          {"epsilon", optimizer.epsilon}};
}

Result<MetricValue> parse_metric_value(const std::string& name, const json& value) {
  MetricValue metric{.name = name, .value = 0, .weight = 0};
  const json with_value = value.is_object() ? value : json{{"value", value}};
  auto read = number(with_value, "value");
  if (!read) return read.error().at(fmt::format("metric '{}'", name));
  metric.value = *read;
  if (with_value.contains("weight")) {
    auto weight = number(with_value, "weight");
    if (!weight) return weight.error().at(fmt::format("metric '{}'", name));
    metric.weight = *weight;
    // A client without such examples has no value: 0/0.
    if (metric.weight == 0) metric.value = std::numeric_limits<double>::quiet_NaN();
  }
  return metric;
}

Result<ExampleCounts> parse_counts(const json& message, bool may_lack_train) {
  ExampleCounts counts;
  const auto otherwise = may_lack_train ? std::optional<std::uint64_t>(0) : std::nullopt;
  FL_TRY(counts.train, count(message, "train_examples", otherwise));
  FL_TRY(counts.holdout, count(message, "holdout_examples", 0));
  return counts;
}

}  // namespace

Result<TrainerHello> parse_hello(const json& message) {
  const json* const protocol = find(message, "protocol");
  if (protocol == nullptr || *protocol != trainer_protocol) {
    return Error(
        Errc::invalid_input,
        fmt::format("the trainer speaks protocol {}, this client speaks {}",
                    protocol != nullptr ? short_json(*protocol) : "(none)", trainer_protocol));
  }
  TrainerHello hello;
  FL_CHECK(take_tensors(message, hello));
  if (const json* const clients = find(message, "clients")) {
    if (!clients->is_boolean()) return wrong("clients", "is neither true nor false");
    hello.plays_clients = clients->get<bool>();
  }
  FL_TRY(hello.examples, parse_counts(message, hello.plays_clients));
  if (const json* const metrics = find(message, "metrics")) {
    if (!metrics->is_array()) return wrong("metrics", "is not a list");
    for (const json& value : *metrics) {
      FL_TRY(hello.metrics.emplace_back(), parse_metric(value));
    }
  }
  if (auto right = check_metrics(hello.metrics); !right)
    return right.error().at("the trainer's 'metrics'");
  FL_CHECK(take_abilities(message, hello.abilities));
  return hello;
}

Result<ExampleCounts> parse_client_answer(const json& message) {
  return parse_counts(message, false);
}

json settings_json(const TrainSettings& settings) {
  json object = json::object();
  for_each_train_field([&](const auto& row) {
    if (*row.in_program != '\0') object[row.in_program] = value_json(settings.*row.member);
  });
  return object;
}

Result<TrainAnswer> parse_train_answer(const json& message, std::uint64_t train_examples) {
  TrainAnswer answer;
  FL_TRY(const std::string wrote, text(message, "wrote", "weights"));
  if (wrote != "weights" && wrote != "update")
    return wrong("wrote", "is neither 'weights' nor 'update'");
  answer.is_update = wrote == "update";
  FL_TRY(answer.report.examples, count(message, "examples", train_examples));
  if (answer.report.examples == 0 || answer.report.examples > train_examples) {
    return wrong("examples", fmt::format("is {}: it must be from 1 to the client's {}",
                                         answer.report.examples, train_examples));
  }
  FL_TRY(answer.report.steps, count(message, "steps", 1));
  if (answer.report.steps == 0) return wrong("steps", "is 0: it must be at least 1");
  FL_TRY(answer.report.predictions, predictions_of(message));
  FL_TRY(answer.report.loss, number(message, "loss"));
  return answer;
}

Result<EvalReport> parse_eval_answer(const json& message, std::uint64_t holdout_examples,
                                     std::span<const MetricKind> kinds) {
  EvalReport report;
  FL_TRY(report.examples, count(message, "examples", holdout_examples));
  if (report.examples > holdout_examples) {
    return wrong("examples", fmt::format("is {}: there are {} held-out examples", report.examples,
                                         holdout_examples));
  }
  if (report.examples == 0) return report;
  FL_TRY(report.predictions, predictions_of(message));
  FL_TRY(report.loss, number(message, "loss"));
  const json* const metrics = find(message, "metrics");
  if (metrics == nullptr) return report;
  if (!metrics->is_object()) return wrong("metrics", "is not an object");
  for (const auto& [name, value] : metrics->items()) {
    FL_TRY(MetricValue metric, parse_metric_value(name, value));
    FL_CHECK(check_metric_value(metric, kinds));
    report.metrics.push_back(std::move(metric));
  }
  return report;
}

}  // namespace fl
