// SPDX-License-Identifier: Apache-2.0
// ModelSpec: what --model says about a built-in model. All sizes stand in the text, so server and
// clients know the same model before anybody has seen data:
//
//   linear:IN-OUT                   linear regression
//   logistic:IN-OUT                 multinomial logistic regression
//   mlp:IN-H1-...-OUT               dense layers with ReLU between them
//   cnn:CxHxW-OUT                   the CNN of the FedAvg paper, for any image
//   resnetN:CxHxW-OUT               ResNet of N = 6n+2 layers for small images, with BatchNorm
//   transformer[:layers=4,width=256,heads=4,context=256,vocab=256]
//                                   GPT-like, predicts the next token: a byte, or a number < vocab
//     ,experts=8[,top=2,capacity=none,aux=0.01,z=0.001]     with experts for its dense layers
//   synthetic:N                     one tensor of N values, for tests
//   lenet, cnn, resnet8, resnet20, mlp, logistic           for 28x28 grey images and 10 classes
//
// Behind a comma may follow: loss=cross-entropy|mse|mae (mlp, cnn and resnetN; mse if OUT is 1),
// and scale=none (see `scales`). Pure functions; any thread.
#pragma once

#include "shared/base/error.hpp"

#include <cstdint>
#include <string_view>
#include <vector>

namespace fl {

struct ModelSpec {
  enum class Family { synthetic, mlp, lenet, cnn, resnet, transformer };
  enum class Task {
    none,            // synthetic:N; it has no data.
    classification,  // Outputs are logits of classes.
    regression,      // Outputs are values.
    language,        // Outputs are logits of the next token.
  };
  enum class Loss { cross_entropy, mse, mae };

  Family family = Family::synthetic;
  Task task = Task::none;
  Loss loss = Loss::cross_entropy;
  /// The shape of one example. An mlp has one number: it takes examples of any shape with that many
  /// values. A transformer has its context, in tokens. synthetic:N has N.
  std::vector<std::int64_t> input = {};
  std::int64_t outputs = 0;
  /// The model knows mean and variance of each input value and of each target (regression) over all
  /// clients' data, and works on values with mean 0 and variance 1. A missing value is the mean.
  bool scales_inputs = false;
  bool scales_targets = false;

  std::vector<std::int64_t> hidden = {};  // mlp: the widths of its hidden layers.
  std::int64_t blocks = 0;                // resnet: n of N = 6n + 2, the blocks of each stage.
  std::int64_t layers = 0;                // transformer:
  std::int64_t width = 0;                 //   a multiple of heads.
  std::int64_t heads = 0;

  /// A transformer with experts (client/learn/torch/experts.hpp).
  struct Experts {
    std::int64_t count = 0;  // 0: dense layers.
    std::int64_t top = 0;    // Those that a token goes to.
    double capacity = 0;  // An expert's most tokens in a pass, by the mean of all; 0: any number.
    double aux = 0;       // The factor of the auxiliary loss, which evens out the experts.
    double z = 0;         // The factor of the z-loss, which keeps the router's logits small.
  };
  Experts experts = {};

  /// The number of values whose mean and variance the model knows: inputs, then targets.
  [[nodiscard]] std::uint64_t scaled_inputs() const;
  [[nodiscard]] std::uint64_t scaled_targets() const;
  [[nodiscard]] bool is_scaled() const { return scaled_inputs() + scaled_targets() > 0; }
};

inline constexpr std::int64_t model_size_max = 1 << 24;  // The largest number in a spec.
inline constexpr std::int64_t model_layers_max = 1000;
inline constexpr std::int64_t model_experts_max = 1024;
inline constexpr std::int64_t transformer_context_max = 131'072;  // In tokens.
inline constexpr std::uint64_t scaled_values_max =
    4096;  // Each member sends three numbers for each of these values.

/// Errors: invalid_input, which names the part that is wrong or lists the models.
[[nodiscard]] Result<ModelSpec> parse_model(std::string_view model);

/// What --data of fl-client may be for such a model, with names in capitals to fill in; "" for a
/// model without data.
[[nodiscard]] std::string_view example_data(const ModelSpec& spec);

}  // namespace fl
