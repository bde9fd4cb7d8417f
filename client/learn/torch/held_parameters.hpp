// SPDX-License-Identifier: Apache-2.0
// HeldParameters: a module's parameters as far as this process has them while it trains. That is
// all of them, or a part where ranks share the model (client/site/rank/shards). Only the files of
// fl_client_learn_torch and of the site's ranks include this header, because it brings libtorch's
// headers.
#pragma once

#include "client/learn/piece.hpp"
#include "client/learn/torch/pass_group.hpp"
#include "client/learn/torch/torch_models.hpp"
#include "client/learn/torch/torch_task.hpp"

#include <torch/types.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace fl {

/// One thread. The module must outlive it, and its tensors are views into what is held here.
class HeldParameters {
 public:
  HeldParameters() = default;
  HeldParameters(const HeldParameters&) = delete;
  HeldParameters& operator=(const HeldParameters&) = delete;
  virtual ~HeldParameters() = default;

  /// Call before each piece of work (training, evaluation, gradient): where ranks share the model,
  /// their number may have changed. Afterwards load() the weights.
  virtual void prepare() {}
  /// Takes the values of a model, of which it reads what is held here. `model`: fp32 values in the
  /// layout's order, perhaps of a mapped file.
  void load(std::span<const float> model);
  /// Call after a step's last backward pass: adds up what ranks that have layers together, or the
  /// ends of a pipeline, know of a tensor's gradient. Throws SyncFailure, and is a collective,
  /// where there are such tensors.
  void join_gradient();
  /// Returns after that: the length of the gradient of the whole model, infinite or NaN if one of
  /// its values is. Throws SyncFailure, and is a collective, where ranks have parts.
  [[nodiscard]] virtual double gradient_norm();

  /// The parameters that this process has, and their gradient: fp32 [n]. backward() adds to the
  /// gradient.
  [[nodiscard]] const torch::Tensor& weights() const { return weights_; }
  [[nodiscard]] const torch::Tensor& gradient() const { return gradient_; }
  /// The module's parameters that a pass of this process may use, in the layout's order.
  [[nodiscard]] const std::vector<torch::Tensor>& trained() const { return trained_; }
  /// The elements of weights() and gradient() that this process's optimizer steps.
  [[nodiscard]] torch::Tensor stepped(const torch::Tensor& held) const {
    return held.narrow(0, stepped_begin_, stepped_count_);
  }
  /// Where these lie in the model's vector.
  [[nodiscard]] std::vector<Piece> stepped_pieces() const { return stepped_of(pieces_); }
  /// Those of them that this process writes: what several ranks have, one of them does.
  [[nodiscard]] std::vector<Piece> written_pieces() const { return stepped_of(owned_); }

  /// All statistics, which a forward pass in training changes: fp32 [layout.elements() - P].
  [[nodiscard]] const torch::Tensor& statistics() const { return statistics_; }
  [[nodiscard]] const TargetScale& target() const { return target_; }
  /// All weights and statistics, fp32 [layout.elements()]; undefined where ranks have parts.
  [[nodiscard]] virtual torch::Tensor whole_model() const { return {}; }
  /// The number of a model's parameters, P.
  [[nodiscard]] std::int64_t parameters() const { return parameters_; }

 protected:
  /// Called when weights() have values of another model.
  virtual void loaded() {}
  /// Makes the module's statistics views into `statistics`, fp32 of their number.
  void hold_statistics(const Module& module, const Layout& layout, torch::Tensor statistics);
  /// Takes views of what is held; weights and gradient have the same number of elements. `pieces`:
  /// of the model's vector, or of that of a part (hold_part()).
  void hold(torch::Tensor weights, torch::Tensor gradient, std::vector<Piece> pieces);
  /// From now on this process has such a part of the layers, and these groups the others.
  void hold_part(LayersPart part, const PassGroups& groups);
  void train(std::vector<torch::Tensor> parameters) { trained_ = std::move(parameters); }
  /// The square of the length of the gradient that is held and owned here.
  [[nodiscard]] double owned_squares() const;
  /// From now on this process's optimizer steps these elements only.
  void step_only(std::int64_t begin, std::int64_t count);

 private:
  void place();
  [[nodiscard]] std::vector<Piece> stepped_of(const std::vector<Piece>& pieces) const {
    return narrowed(pieces, stepped_begin_, stepped_count_);
  }

  torch::Tensor weights_;
  torch::Tensor gradient_;
  std::vector<torch::Tensor> trained_;
  std::vector<Piece> local_;   // Where weights_ lie in the vector that hold() was told of.
  bool has_part_ = false;      // Else this process has whole layers, and all of them.
  PassGroups groups_;          // With a part: the ranks that have the others.
  LayersPart part_;            // The part of the layers that this process has.
  std::vector<Piece> pieces_;  // Where weights_ lie in the model's vector.
  std::vector<Piece> owned_;   // Those of them that no rank before this one of a group has.
  std::vector<Piece> summed_;  // Those whose gradients join_gradient() adds up.
  std::vector<Piece> tied_;    // Those to whose gradients it adds the other end's.
  std::int64_t stepped_begin_ = 0;
  std::int64_t stepped_count_ = 0;
  torch::Tensor statistics_;
  std::int64_t parameters_ = 0;
  TargetScale target_;                    // Views into statistics_, if the model scales targets.
  std::vector<torch::Tensor> variances_;  // Views into statistics_, one for each running_var.
};

/// These stretches of a model's vector as a tensor on `device`, fp32 [elements], to be read. On the
/// CPU a single one is no copy, but lies where the model does.
[[nodiscard]] torch::Tensor read_pieces(std::span<const float> model,
                                        const std::vector<Piece>& pieces, std::int64_t elements,
                                        torch::Device device);
/// Copies `values` into these stretches of a model's vector.
void write_pieces(const torch::Tensor& values, const std::vector<Piece>& pieces,
                  std::span<float> model);

/// All parameters of a module and their gradients as flat vectors in the order of the layout. So an
/// optimizer step is a few operations on whole vectors, and loading a whole model is one copy.
class WholeParameters : public HeldParameters {
 public:
  /// Moves the module to `device` and makes its tensors views into one flat tensor: `shared`, the
  /// model of another object, or a new one if `shared` is undefined. `takes_all`: else it has no
  /// parameters until take_parameters().
  WholeParameters(const Module& module, const Layout& layout, torch::Device device,
                  torch::Tensor shared = {}, bool takes_all = true);

  [[nodiscard]] torch::Tensor whole_model() const override {
    return model_.size(0) == elements_ ? model_ : torch::Tensor();
  }

 protected:
  /// Takes these parameters alone, on the device, with new memory.
  void take_parameters(const std::vector<torch::Tensor>& parameters);

 private:
  void take(const torch::Tensor& values, const std::vector<torch::Tensor>& parameters);

  torch::Tensor model_;
  std::int64_t elements_;  // All that the layout has.
};

}  // namespace fl
