// SPDX-License-Identifier: Apache-2.0
// Units: a module as a chain of layers or blocks, which are computed one after the other. Between
// them activations can be dropped and computed again (Chen et al., "Training Deep Nets with
// Sublinear Memory Cost", 2016), and parameters can come and go (Zhao et al., "PyTorch FSDP", VLDB
// 2023, section 3). Only the files of fl_client_learn_torch and of the site's ranks include this
// header, because it brings libtorch's headers.
#pragma once

#include "client/learn/precision.hpp"
#include "client/learn/torch/torch_models.hpp"

#include <torch/nn/modules/container/any.h>
#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace fl {

/// A layer or block with parameters, and the functions and statistics behind it.
struct Unit {
  std::vector<torch::nn::AnyModule> parts;  // In their order.
  std::vector<torch::Tensor> parameters;    // The module's own, in the layout's order.
  std::vector<NumberFormat> formats;        // In which a mixed pass reads each of them.
  std::vector<torch::Tensor> statistics;    // Changed by a forward pass in training.
  std::int64_t begin = 0;                   // Where its parameters begin in the model's vector.
  std::int64_t count = 0;
  std::size_t experts_from = 0;          // From this parameter on they are those of experts.
  bool is_shared = false;                // A later unit uses its parameters, too.
  std::optional<std::size_t> uses = {};  // The earlier unit whose parameters this one uses, too.
};

/// Where the parameters of the units come from and go to. Functions may throw.
class UnitKeeper {
 public:
  virtual ~UnitKeeper() = default;
  /// A forward pass needs the unit's parameters now.
  virtual void before_forward(std::size_t unit) = 0;
  /// The unit's outputs are there.
  virtual void after_forward(std::size_t unit) = 0;
  /// A backward pass needs the unit's parameters now. The thread of that pass, which on a GPU is
  /// another one.
  virtual void before_backward(std::size_t unit) = 0;
};

/// One thread, and the thread of a backward pass while that lasts. Graphs refer to the object, so
/// it must outlive their backward pass.
class Units {
 public:
  /// `spec`: of the module's model.
  Units(const Module& module, const ModelSpec& spec);
  Units(const Units&) = delete;
  Units& operator=(const Units&) = delete;

  [[nodiscard]] const std::vector<Unit>& units() const { return units_; }
  /// The parameters of some units, in their order.
  [[nodiscard]] std::vector<torch::Tensor> parameters_of(
      const std::vector<std::size_t>& units) const;
  /// From now on a training keeps the inputs of the units only, and computes what lies within again
  /// in the backward pass: with the same bits, also of a mixed pass and of BatchNorms' statistics.
  /// The last unit, which the backward pass needs at once, and those with shared parameters keep
  /// their activations.
  void recompute(bool recomputes) { recomputes_ = recomputes; }
  /// `keeper` may be null; it must outlive the passes.
  void keep_with(UnitKeeper* keeper) { keeper_ = keeper; }

  /// The module's outputs.
  [[nodiscard]] torch::Tensor forward(const torch::Tensor& inputs);
  /// The outputs of some units, which follow each other.
  [[nodiscard]] torch::Tensor forward(const torch::Tensor& inputs,
                                      const std::vector<std::size_t>& units);

 private:
  class Recomputed;
  class Announced;
  [[nodiscard]] torch::Tensor compute(std::size_t unit, const torch::Tensor& inputs);
  [[nodiscard]] bool is_recomputed(std::size_t unit) const;
  void before_backward(std::size_t unit) const;

  std::vector<Unit> units_;
  UnitKeeper* keeper_ = nullptr;
  bool recomputes_ = false;
  torch::Tensor anchor_;  // It requires a gradient, where a unit's inputs may not.
};

}  // namespace fl
