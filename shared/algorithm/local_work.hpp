// One round's local work: what the server's offer asks, the same for every client but for the seed.
#pragma once

#include "shared/base/error.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace fl {

/// How a client steps along its gradients.
struct LocalOptimizer {
  enum class Kind {
    sgd,       // With TrainSettings::momentum: Polyak's, as PyTorch has it.
    nesterov,  // SGD with Nesterov's momentum, as PyTorch has it.
    adam,      // Kingma and Ba 2015, algorithm 1; weight decay is added to the gradient.
    adamw,     // Loshchilov and Hutter 2019, algorithm 2: weight decay is of the weights.
  };
  Kind kind = Kind::sgd;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;

  [[nodiscard]] bool is_sgd() const { return kind == Kind::sgd || kind == Kind::nesterov; }
};

/// "sgd", "nesterov", "adam[:beta1=B,beta2=B,epsilon=E]", "adamw[:…]"; "" is sgd.
[[nodiscard]] Result<LocalOptimizer> parse_optimizer(std::string_view spec);

struct TrainSettings {
  std::uint32_t round = 0;
  std::uint32_t local_epochs = 1;  // 0: as many as fit into local_seconds.
  std::uint32_t local_steps = 0;   // When not 0: this many mini-batch steps instead of epochs.
  double local_seconds = 0;        // When not 0: one step, and then no other after so many seconds.
  std::uint32_t batch_size = 64;
  std::uint32_t accumulate = 1;   // A step is of the mean gradient of so many mini-batches.
  LocalOptimizer optimizer = {};  // Its state is new every round.
  double lr = 0.01;
  double momentum = 0.0;
  double weight_decay = 0.0;
  double proximal_mu = 0.0;  // FedProx: mu/2 ||w - w_global||^2 added to the loss.
  std::uint64_t seed = 0;    // Of this client in this round; shuffles and dropout derive from it.
};

inline constexpr double local_seconds_max = 1e6;

/// The most mini-batch steps that the settings allow whoever takes `epoch_steps` of them to go once
/// through its data. Where time alone ends the work: limits::steps_per_s_max in each second.
[[nodiscard]] std::uint64_t steps_max(const TrainSettings& settings, std::uint64_t epoch_steps);

/// ||a||_1 of FedNova (Wang 2020, section 4.1): how far `steps` steps of SGD go along a gradient
/// that stays the same, in units of lr times that gradient. Without momentum and proximal term it
/// is `steps`; with momentum rho steps/(1-rho) - rho(1-rho^steps)/(1-rho)^2; the proximal term
/// shortens it. Weight decay counts as part of the gradient. Needs settings.optimizer.is_sgd().
[[nodiscard]] double effective_steps(const TrainSettings& settings, std::uint64_t steps);

}  // namespace fl
