// SPDX-License-Identifier: Apache-2.0
// The local work of one round, as the server's offer asks for it. Only the seed differs between
// clients. Plain values and pure functions; any thread.
#pragma once

#include "shared/base/error.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace fl {

/// The optimizer that a client trains with.
struct LocalOptimizer {
  enum class Kind {
    sgd,       // With Polyak's momentum (TrainSettings::momentum), as in PyTorch.
    nesterov,  // SGD with Nesterov's momentum, as in PyTorch.
    adam,      // Kingma and Ba 2015, algorithm 1. Weight decay is added to the gradient.
    adamw,     // Loshchilov and Hutter 2019, algorithm 2. Weight decay shrinks the weights.
  };
  Kind kind = Kind::sgd;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;

  [[nodiscard]] bool is_sgd() const { return kind == Kind::sgd || kind == Kind::nesterov; }
  bool operator==(const LocalOptimizer&) const = default;
};

struct OptimizerRow {
  LocalOptimizer::Kind kind;
  std::string_view name;
  std::string_view usage;    // For help.
  bool has_moments = false;  // It takes the options beta1, beta2 and epsilon.
};
/// All optimizers, in the order in which help shows them.
[[nodiscard]] std::span<const OptimizerRow> optimizer_rows();

[[nodiscard]] std::string_view to_string(LocalOptimizer::Kind kind);

/// Parses "NAME" or, of one with moments, "NAME:beta1=B,beta2=B,epsilon=E"; "" means sgd. Returns
/// invalid_input for anything else.
[[nodiscard]] Result<LocalOptimizer> parse_optimizer(std::string_view spec);
/// The shortest spec that parses to this optimizer: options with their defaults are left out.
[[nodiscard]] std::string optimizer_spec(const LocalOptimizer& optimizer);

/// A new member needs a row in shared/algorithm/train_fields.hpp, which makes the messages.
struct TrainSettings {
  std::uint32_t round = 0;
  std::uint32_t local_epochs = 1;  // Passes over the data. 0: as many as local_seconds allows.
  std::uint32_t local_steps = 0;   // Above 0: this many mini-batch steps replace the epochs.
  double local_seconds = 0;       // Above 0: only the first step may start after this many seconds.
  std::uint32_t batch_size = 64;  // In examples.
  std::uint32_t accumulate = 1;   // A step uses the mean gradient of this many mini-batches.
  LocalOptimizer optimizer = {};  // The optimizer's state starts afresh in every round.
  double lr = 0.01;
  double momentum = 0.0;
  double weight_decay = 0.0;
  /// Above 0: a step's gradient of the loss is shortened to this length where it is longer, before
  /// weight decay, proximal term and correction are added. Its length is that of all parameters
  /// together, as in PyTorch's clip_grad_norm_: it becomes clip_norm / (length + 1e-6) times
  /// itself.
  double clip_norm = 0.0;
  double proximal_mu = 0.0;  // FedProx: mu/2 ||w - w_global||^2 is added to the loss.
  double deadline_s = 0;     // Seconds until the round's deadline; 0: none or not known.
  /// The seed of this client in this round. Shuffles and dropout derive from it.
  std::uint64_t seed = 0;

  bool operator==(const TrainSettings&) const = default;
};

inline constexpr double local_seconds_max = 1e6;

/// The most mini-batch steps that the settings allow a client which takes `epoch_steps` of them for
/// one pass over its data. If only the time ends the work, it counts limits::steps_per_s_max for
/// each second of local_seconds; then 0 < local_seconds <= local_seconds_max.
[[nodiscard]] std::uint64_t steps_max(const TrainSettings& settings, std::uint64_t epoch_steps);

/// ||a||_1 of FedNova (Wang 2020, section 4.1): how far `steps` steps of SGD go along a constant
/// gradient, in units of lr times that gradient. Without momentum and proximal term this is
/// `steps`. With momentum rho it is steps/(1-rho) - rho(1-rho^steps)/(1-rho)^2. The proximal term
/// shortens it. Weight decay counts as part of the gradient. Requires settings.optimizer.is_sgd().
[[nodiscard]] double effective_steps(const TrainSettings& settings, std::uint64_t steps);

}  // namespace fl
