// SPDX-License-Identifier: Apache-2.0
#include "client/learn/torch/held_parameters.hpp"

#include "kernels/kernels.hpp"
#include "shared/base/error.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace fl {

namespace {

torch::Tensor tensor_of(std::span<const float> values) {
  // Only read.
  return torch::from_blob(const_cast<float*>(values.data()),
                          {static_cast<std::int64_t>(values.size())}, torch::kFloat32);
}

std::span<const float> stretch_of(std::span<const float> model, const Piece& piece) {
  return model.subspan(static_cast<std::size_t>(piece.begin),
                       static_cast<std::size_t>(piece.count));
}

void copy_pieces(std::span<const float> model, const std::vector<Piece>& pieces,
                 const torch::Tensor& part) {
  for (const Piece& piece : pieces)
    part.narrow(0, piece.at, piece.count).copy_(tensor_of(stretch_of(model, piece)));
}

torch::Tensor view_into(const torch::Tensor& flat, const Layout::Tensor& tensor,
                        std::int64_t first) {
  return flat
      .narrow(0, static_cast<std::int64_t>(tensor.offset) - first,
              static_cast<std::int64_t>(tensor.elements))
      .view(tensor.shape);
}

}  // namespace

torch::Tensor read_pieces(std::span<const float> model, const std::vector<Piece>& pieces,
                          std::int64_t elements, torch::Device device) {
  if (device.is_cpu() && pieces.size() == 1 && pieces[0].count == elements)
    return tensor_of(stretch_of(model, pieces[0]));
  torch::Tensor values = torch::zeros({elements}, torch::dtype(torch::kFloat32).device(device));
  copy_pieces(model, pieces, values);
  return values;
}

void write_pieces(const torch::Tensor& values, const std::vector<Piece>& pieces,
                  std::span<float> model) {
  for (const Piece& piece : pieces)
    tensor_of(stretch_of(model, piece)).copy_(values.narrow(0, piece.at, piece.count));
}

void HeldParameters::hold_statistics(const Module& module, const Layout& layout,
                                     torch::Tensor statistics) {
  const std::vector<NamedTensor> tensors = tensors_of(module);
  FL_ASSERT(tensors.size() == layout.tensors().size());
  const auto first = module->parameters().size();
  statistics_ = std::move(statistics);
  parameters_ = static_cast<std::int64_t>(layout.elements()) - statistics_.size(0);
  for (std::size_t t = first; t < tensors.size(); ++t) {
    const Layout::Tensor& tensor = layout.tensors()[t];
    const torch::Tensor view = view_into(statistics_, tensor, parameters_);
    tensors[t].second.set_data(view);
    if (tensor.name.ends_with("running_var")) variances_.push_back(view);
    if (tensor.name == "target.running_mean") target_.mean = view;
    if (tensor.name == "target.running_var") target_.variance = view;
  }
}

void HeldParameters::hold(torch::Tensor weights, torch::Tensor gradient,
                          std::vector<Piece> pieces) {
  weights_ = std::move(weights);
  gradient_ = std::move(gradient);
  pieces_ = std::move(pieces);
  step_only(0, weights_.size(0));
}

void HeldParameters::step_only(std::int64_t begin, std::int64_t count) {
  FL_ASSERT(begin >= 0 && count >= 0 && begin + count <= weights_.size(0));
  stepped_begin_ = begin;
  stepped_count_ = count;
}

std::vector<Piece> HeldParameters::stepped_pieces() const {
  std::vector<Piece> stepped;
  for (const Piece& piece : pieces_) {
    const std::int64_t begin = std::max(piece.at, stepped_begin_);
    const std::int64_t end = std::min(piece.at + piece.count, stepped_begin_ + stepped_count_);
    if (begin < end)
      stepped.push_back({piece.begin + begin - piece.at, end - begin, begin - stepped_begin_});
  }
  return stepped;
}

void HeldParameters::load(std::span<const float> model) {
  const torch::NoGradGuard no_grad;
  copy_pieces(model, pieces_, weights_);
  statistics_.copy_(tensor_of(model.subspan(static_cast<std::size_t>(parameters_))));
  // Stale updates and rounding may have made a variance near 0 negative.
  for (torch::Tensor& variance : variances_) variance.clamp_min_(0);
  loaded();
}

double HeldParameters::gradient_norm() {
  if (!gradient_.is_cpu()) return gradient_.norm(2, torch::kFloat64).item<double>();
  const Scan scan = kernels().scan(gradient_.const_data_ptr<float>(),
                                   static_cast<std::size_t>(gradient_.numel()));
  const bool is_finite = std::cmp_equal(scan.first_bad, gradient_.numel());
  return is_finite ? std::sqrt(scan.sum_squares) : std::numeric_limits<double>::infinity();
}

WholeParameters::WholeParameters(const Module& module, const Layout& layout, torch::Device device,
                                 torch::Tensor shared)
    : model_(std::move(shared)) {
  const auto options = torch::TensorOptions().dtype(torch::kFloat32).device(device);
  if (!model_.defined())
    model_ = torch::zeros({static_cast<std::int64_t>(layout.elements())}, options);
  module->to(device);
  const std::vector<torch::Tensor> parameters = module->parameters();
  std::int64_t end = 0;
  for (const torch::Tensor& parameter : parameters) end += parameter.numel();
  hold_statistics(module, layout, model_.narrow(0, end, model_.size(0) - end));
  hold(model_.narrow(0, 0, end), torch::zeros({end}, options), {{0, end, 0}});
  for (std::size_t t = 0; t < parameters.size(); ++t) {
    const Layout::Tensor& tensor = layout.tensors()[t];
    parameters[t].set_data(view_into(weights(), tensor, 0));
    // If a tensor has a gradient already, backward() adds to it in place.
    parameters[t].mutable_grad() = view_into(gradient(), tensor, 0);
  }
}

}  // namespace fl
