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

/// Takes views into a flat vector, one behind the other.
class Views {
 public:
  explicit Views(const torch::Tensor& flat) : flat_(flat) {}
  torch::Tensor next(torch::IntArrayRef shape) {
    const std::int64_t count = c10::multiply_integers(shape);
    return flat_.narrow(0, std::exchange(at_, at_ + count), count).view(shape);
  }

 private:
  const torch::Tensor& flat_;
  std::int64_t at_ = 0;
};

std::int64_t elements_of(std::span<const NamedTensor> tensors) {
  std::int64_t sum = 0;
  for (const auto& [name, values] : tensors) sum += values.numel();
  return sum;
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
  Views views(statistics_);
  for (std::size_t t = first; t < tensors.size(); ++t) {
    const Layout::Tensor& tensor = layout.tensors()[t];
    const torch::Tensor view = views.next(tensor.shape);
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
  local_ = std::move(pieces);
  place();
  step_only(0, weights_.size(0));
}

void HeldParameters::hold_part(LayersPart part, const PassGroups& groups) {
  part_ = std::move(part);
  groups_ = groups;
  has_part_ = true;
  place();
}

/// Finds out where in the model lies what is held.
void HeldParameters::place() {
  pieces_ = has_part_ ? within(part_.pieces, local_) : local_;
  owned_ = has_part_ ? within(part_.owned, local_) : local_;
  summed_ = within(part_.summed, local_);
  tied_ = within(part_.tied, local_);
}

void HeldParameters::step_only(std::int64_t begin, std::int64_t count) {
  FL_ASSERT(begin >= 0 && count >= 0 && begin + count <= weights_.size(0));
  stepped_begin_ = begin;
  stepped_count_ = count;
}

void HeldParameters::load(std::span<const float> model) {
  const torch::NoGradGuard no_grad;
  copy_pieces(model, pieces_, weights_);
  statistics_.copy_(tensor_of(model.subspan(static_cast<std::size_t>(parameters_))));
  // Stale updates and rounding may have made a variance near 0 negative.
  for (torch::Tensor& variance : variances_) variance.clamp_min_(0);
  loaded();
}

void HeldParameters::join_gradient() {
  const torch::NoGradGuard no_grad;
  const auto add_up = [this](const std::vector<Piece>& pieces, const auto& sum) {
    if (pieces.empty()) return;
    std::vector<torch::Tensor> own;
    for (const Piece& piece : pieces) own.push_back(gradient_.narrow(0, piece.at, piece.count));
    torch::Tensor sums = torch::cat(own);
    sum(sums);
    Views views(sums);
    for (torch::Tensor& values : own) values.copy_(views.next(values.sizes()));
  };
  add_up(summed_, [this](torch::Tensor& sums) { groups_.tensor->sum(sums); });
  add_up(tied_, [this](torch::Tensor& sums) { groups_.pipeline->sum_of_ends(sums); });
}

double HeldParameters::owned_squares() const {
  const auto squares = [](const torch::Tensor& values) {
    if (!values.is_cpu()) return std::pow(values.norm(2, torch::kFloat64).item<double>(), 2);
    const Scan scan =
        kernels().scan(values.const_data_ptr<float>(), static_cast<std::size_t>(values.numel()));
    const bool is_finite = std::cmp_equal(scan.first_bad, values.numel());
    return is_finite ? scan.sum_squares : std::numeric_limits<double>::infinity();
  };
  if (!has_part_) return squares(gradient_);
  double sum = 0;
  for (std::size_t first = 0; first < owned_.size();) {
    std::size_t last = first + 1;  // Most pieces are neighbours.
    while (last < owned_.size() && owned_[last - 1].at + owned_[last - 1].count == owned_[last].at)
      ++last;
    const std::int64_t end = owned_[last - 1].at + owned_[last - 1].count;
    sum += squares(gradient_.narrow(0, owned_[first].at, end - owned_[first].at));
    first = last;
  }
  return sum;
}

double HeldParameters::gradient_norm() {
  if (!has_part_) return std::sqrt(owned_squares());
  torch::Tensor squares = torch::full({1}, owned_squares(), torch::dtype(torch::kFloat64));
  if (groups_.tensor != nullptr) groups_.tensor->sum(squares);
  if (groups_.pipeline != nullptr) groups_.pipeline->sum(squares);
  return std::sqrt(squares.item<double>());
}

WholeParameters::WholeParameters(const Module& module, const Layout& layout, torch::Device device,
                                 torch::Tensor shared, bool takes_all)
    : model_(std::move(shared)), elements_(static_cast<std::int64_t>(layout.elements())) {
  const std::vector<torch::Tensor> parameters = module->parameters();
  const std::vector<NamedTensor> tensors = tensors_of(module);
  const std::int64_t all = elements_of(std::span(tensors).first(parameters.size()));
  const std::int64_t end = takes_all ? all : 0;
  if (!model_.defined())
    model_ = torch::zeros({elements_of(tensors) - all + end},
                          torch::dtype(torch::kFloat32).device(device));
  module->to(device);
  hold_statistics(module, layout, model_.narrow(0, end, model_.size(0) - end));
  if (takes_all)
    take(model_.narrow(0, 0, end), parameters);
  else
    take_parameters({});
}

void WholeParameters::take_parameters(const std::vector<torch::Tensor>& parameters) {
  std::int64_t elements = 0;
  for (const torch::Tensor& parameter : parameters) elements += parameter.numel();
  take(torch::zeros({elements}, statistics().options()), parameters);
}

void WholeParameters::take(const torch::Tensor& values,
                           const std::vector<torch::Tensor>& parameters) {
  hold(values, torch::zeros_like(values), {{0, values.size(0), 0}});
  Views weights_views(weights());
  Views gradient_views(gradient());
  for (const torch::Tensor& parameter : parameters) {
    const auto shape = parameter.sizes().vec();
    parameter.set_data(weights_views.next(shape));
    // If a tensor has a gradient already, backward() adds to it in place.
    parameter.mutable_grad() = gradient_views.next(shape);
  }
  train(parameters);
}

}  // namespace fl
