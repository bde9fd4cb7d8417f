// SPDX-License-Identifier: Apache-2.0
// Mixture of experts: in place of a block's two dense layers there are several pairs, the experts,
// and a router sends each token to few of them. Shazeer et al., "Outrageously Large Neural
// Networks", ICLR 2017, section 2; capacity and the auxiliary loss: Fedus et al., "Switch
// Transformers", JMLR 2022, section 2.2; the z-loss: Zoph et al., "ST-MoE", 2022, section 3. Only
// the files of fl_client_learn_torch and its tests include this header, because it brings
// libtorch's headers.
#pragma once

#include "client/learn/torch/layer.hpp"
#include "client/learn/torch/pass_group.hpp"
#include "shared/params/metric.hpp"
#include "shared/params/model_spec.hpp"

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace fl {

/// The facts of a pass that all blocks of a model need, and the blocks' measurements. One thread,
/// and that of the backward pass while it lasts.
class Routing {
 public:
  Routing(const ModelSpec::Experts& experts, std::int64_t layers);

  /// Adds up a tensor of fp64 over the ranks that take a pass together. May throw.
  using Sum = std::function<void(torch::Tensor&)>;
  struct Pass {
    torch::Tensor counted = {};  // bool [n * length]: tokens with a target. Undefined: all.
    double weight = 1;  // By which the mean loss of these tokens counts, with the loss scale.
    Sum sum = {};       // Empty: this process takes the pass alone.
  };
  /// Call before each pass, which is with all tokens otherwise.
  void begin(Pass pass) { pass_ = std::move(pass); }

  /// The measurements of evaluations since the last call of clear(): for each layer the tokens that
  /// each expert got, and those that it would have dropped. fp64 [layers, 2, experts].
  [[nodiscard]] torch::Tensor& measured() { return measured_; }
  void clear() { measured_.zero_(); }
  /// The metrics of builtin_metrics() that follow from that: the busiest expert's tokens by the
  /// mean of all, and the part that would be dropped, as means over the layers.
  [[nodiscard]] std::vector<MetricValue> metrics() const;

 private:
  friend class MixtureImpl;
  const ModelSpec::Experts experts_;
  Pass pass_;
  torch::Tensor measured_;
};

/// One of the two dense layers of all experts of a block.
struct ExpertsLayer : torch::nn::Module {
  ExpertsLayer(std::int64_t experts, std::int64_t inputs, std::int64_t outputs);
  torch::Tensor weight;  // fp32 [experts, outputs, inputs].
  torch::Tensor bias;    // fp32 [experts, outputs].
};

class MixtureImpl : public torch::nn::Module, public LayerFormat {
 public:
  /// `layer` counts the blocks of the model from 0. `groups`: the ranks that have each expert
  /// together, and those that have other ones.
  MixtureImpl(const ModelSpec& spec, std::int64_t layer, std::shared_ptr<Routing> routing,
              const PassGroups& groups = {});

  /// x: [n, length, width]. Each token becomes the weighted sum of what its experts make of it.
  /// Those that a full expert can't take count as 0, in training only. The gradient has those of
  /// the auxiliary losses as well.
  torch::Tensor forward(const torch::Tensor& x);
  [[nodiscard]] const std::shared_ptr<Routing>& routing() const { return routing_; }

 private:
  struct Choice;
  [[nodiscard]] Choice choose(const torch::Tensor& tokens) const;
  [[nodiscard]] torch::Tensor kept(const Choice& choice, std::int64_t limit) const;
  void measure(const Choice& choice, std::int64_t most) const;
  [[nodiscard]] torch::Tensor added_losses(const Choice& choice) const;
  [[nodiscard]] torch::Tensor mix(const torch::Tensor& x);
  [[nodiscard]] torch::Tensor compute(const torch::Tensor& rows, const torch::Tensor& counts);
  [[nodiscard]] torch::Tensor compute_together(ExpertGroup& group, const torch::Tensor& rows,
                                               const torch::Tensor& counts);

  std::shared_ptr<torch::nn::LinearImpl> router_;
  std::shared_ptr<ExpertsLayer> fc1_;
  std::shared_ptr<ExpertsLayer> fc2_;
  const std::int64_t layer_;
  const ModelSpec::Experts experts_;
  const std::shared_ptr<Routing> routing_;
  TensorGroup* const group_;
  ExpertGroup* const others_;
};

/// The routing of a module's blocks; null if it has no experts.
[[nodiscard]] std::shared_ptr<Routing> routing_of(const torch::nn::Module& module);

}  // namespace fl
