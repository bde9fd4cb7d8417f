// SPDX-License-Identifier: Apache-2.0
// The contents of the messages between a client and its trainer program
// (docs/design/trainer-protocol.md). Pure functions; any thread.
#pragma once

#include "client/learn/trainer.hpp"
#include "shared/base/json.hpp"
#include "shared/params/metric.hpp"
#include "shared/params/safetensors.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace fl {

inline constexpr int trainer_protocol = 1;
/// A tensor without elements whose name ends with the digest of what the trainer never changes. It
/// makes the layout another one where that differs.
inline constexpr std::string_view frozen_prefix = "frozen.";

/// How many examples a client has.
struct ExampleCounts {
  std::uint64_t train = 0;
  std::uint64_t holdout = 0;
  bool operator==(const ExampleCounts&) const = default;
};

/// A trainer program's first message.
struct TrainerHello {
  Layout layout;  // Parameters, then statistics, both sorted by name.
  /// The tensors of the program's files: the layout without the tensor that names what is frozen.
  /// The tensor that is left out has no elements, so values are at the same places in both.
  Layout files;
  std::vector<ElementType> types;  // For each tensor of `files`.
  std::vector<std::string> left;   // Names of tensors of whole numbers, which do not travel.
  ExampleCounts examples;
  std::vector<MetricKind> metrics;
  Trainer::Abilities abilities;
  bool plays_clients = false;  // Requests may say which client they are for.
};

/// Errors: invalid_input, with the member that is wrong.
[[nodiscard]] Result<TrainerHello> parse_hello(const nlohmann::json& message);

/// The answer to "client". Errors: invalid_input.
[[nodiscard]] Result<ExampleCounts> parse_client_answer(const nlohmann::json& message);

[[nodiscard]] nlohmann::json settings_json(const TrainSettings& settings);

/// The answer to "train" of a client with so many examples; report.seconds stays 0. Errors:
/// invalid_input.
struct TrainAnswer {
  TrainReport report;
  bool is_update = false;  // The file has an update, or else whole weights.
};
[[nodiscard]] Result<TrainAnswer> parse_train_answer(const nlohmann::json& message,
                                                     std::uint64_t train_examples);
/// The answer to "evaluate" of a client with so many examples. Errors: invalid_input.
[[nodiscard]] Result<EvalReport> parse_eval_answer(const nlohmann::json& message,
                                                   std::uint64_t holdout_examples,
                                                   std::span<const MetricKind> metrics);

}  // namespace fl
