// SPDX-License-Identifier: Apache-2.0
// Layers that run in a number format of their own. C++ modules of libtorch have no hooks around
// forward(), so a layer is a class around libtorch's. Only the files of fl_client_learn_torch and
// its tests include this header, because it brings libtorch's headers.
#pragma once

#include "client/learn/precision.hpp"

#include <torch/nn/module.h>
#include <torch/types.h>

#include <memory>
#include <optional>
#include <utility>

namespace fl {

[[nodiscard]] torch::ScalarType scalar_type_of(NumberFormat format);

/// While an object exists, this thread's operations use `format` where that pays, like
/// torch.autocast in Python, and layers theirs.
class MixedPass {
 public:
  MixedPass(torch::Device device, NumberFormat format);
  ~MixedPass();
  MixedPass(const MixedPass&) = delete;
  MixedPass& operator=(const MixedPass&) = delete;
  /// The format of this thread's pass, if it is in one.
  [[nodiscard]] static std::optional<NumberFormat> current();

 private:
  at::DeviceType device_;
};

class LayerFormat {
 public:
  void set_format(NumberFormat format) { format_ = format; }
  [[nodiscard]] NumberFormat format() const { return format_; }

 protected:
  LayerFormat() = default;
  LayerFormat(const LayerFormat&) = default;
  LayerFormat& operator=(const LayerFormat&) = default;
  virtual ~LayerFormat() = default;

  /// While an object exists within a MixedPass, operations use the layer's format.
  class Scope {
   public:
    Scope(const LayerFormat& layer, const torch::Tensor& input);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    /// The input as the layer is to see it: in fp32, if that is the layer's format.
    [[nodiscard]] torch::Tensor input(const torch::Tensor& given) const;

   private:
    bool is_active_;
    at::DeviceType device_;
    bool was_enabled_ = false;
    torch::ScalarType type_before_{};
    bool is_full_ = false;
  };

 private:
  NumberFormat format_ = NumberFormat::fp32;
};

/// A module of libtorch with one input, as a layer.
template <class Module>
struct LayerImpl : Module, LayerFormat {
  using Module::Module;
  torch::Tensor forward(const torch::Tensor& x) {
    const Scope scope(*this, x);
    return Module::forward(scope.input(x));
  }
  torch::Tensor operator()(const torch::Tensor& x) { return forward(x); }
};
template <class Module>
using Layer = std::shared_ptr<LayerImpl<Module>>;

/// Gives back the memory of a module's parameters and of their gradients: they are 0 from now on,
/// and all elements of one lie at one place; they have no gradients.
void drop_values(const torch::nn::Module& module);

/// A layer whose parameters get their memory later, so that a module that is larger than the memory
/// can be made.
template <class Module, class... Options>
[[nodiscard]] Layer<Module> make_layer(Options&&... options) {
  auto layer = std::make_shared<LayerImpl<Module>>(std::forward<Options>(options)...);
  drop_values(*layer);
  return layer;
}

/// The names of a module's layers, in its order.
[[nodiscard]] std::vector<std::string> layers_of(const torch::nn::Module& module);
/// The format in which a MixedPass reads each parameter of a module, in the order of its
/// parameters(): that of the layer, where libtorch rounds the layer's parameters to it before it
/// uses them, and else fp32.
[[nodiscard]] std::vector<NumberFormat> parameter_formats(const torch::nn::Module& module);
/// Gives each layer its format. Errors: those of PrecisionPlan::check_layers().
[[nodiscard]] Result<void> set_formats(torch::nn::Module& module, const PrecisionPlan& plan);

}  // namespace fl
