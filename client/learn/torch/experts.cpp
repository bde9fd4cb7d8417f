// SPDX-License-Identifier: Apache-2.0
#include "client/learn/torch/experts.hpp"

#include "client/learn/torch/divided_layers.hpp"
#include "client/learn/torch/passage.hpp"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace fl {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// While an object exists within a MixedPass, operations use fp32.
class FullPass : LayerFormat {
 public:
  explicit FullPass(const torch::Tensor& given)
      : scope_(*this, given), input(scope_.input(given)) {}

 private:
  Scope scope_;

 public:
  const torch::Tensor input;
};

/// Passes `outputs` on. In the backward pass `loss` gets the gradient `weight`, as though it were a
/// term of the loss that is derived; so it may be made again with a unit that is recomputed.
class AddedLoss : public torch::autograd::Function<AddedLoss> {
 public:
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& outputs,
                               const torch::Tensor& loss, double weight) {
    context->saved_data["weight"] = weight;
    context->saved_data["zero"] = torch::zeros({}, loss.options());
    return outputs.view_as(outputs);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const torch::Tensor zero = context->saved_data["zero"].toTensor();
    return {gradients[0], zero + context->saved_data["weight"].toDouble(), torch::Tensor()};
  }
};

/// ExpertGroup::exchange_rows(), and their gradients the way back.
struct Sent : torch::autograd::Function<Sent> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& rows,
                               ExpertGroup* group, const std::vector<std::int64_t>& to,
                               const std::vector<std::int64_t>& from) {
    keep_group(*context, *group);
    context->saved_data["to"] = to;
    context->saved_data["from"] = from;
    return group->exchange_rows(rows, to, from);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    torch::Tensor back = kept_group<ExpertGroup>(*context).exchange_rows(
        gradients[0], context->saved_data["from"].toIntVector(),
        context->saved_data["to"].toIntVector());
    return {std::move(back), torch::Tensor(), torch::Tensor(), torch::Tensor()};
  }
};

/// How many of the experts a rank has.
std::int64_t experts_of(const ModelSpec& spec, const PassGroups& groups) {
  const std::int64_t ranks = groups.experts == nullptr ? 1 : groups.experts->division().ranks;
  return spec.experts.count / ranks;
}

/// How many tokens an expert takes; no more than all.
std::int64_t capacity_of(const ModelSpec::Experts& experts, std::int64_t tokens) {
  if (experts.capacity == 0) return tokens;
  const double fair =
      static_cast<double>(tokens * experts.top) / static_cast<double>(experts.count);
  return std::min(tokens, static_cast<std::int64_t>(std::ceil(experts.capacity * fair)));
}

}  // namespace

Routing::Routing(const ModelSpec::Experts& experts, std::int64_t layers)
    : experts_(experts),
      measured_(torch::zeros({layers, 2, experts.count}, torch::dtype(torch::kFloat64))) {}

std::vector<MetricValue> Routing::metrics() const {
  const torch::Tensor got = measured_.select(1, 0);
  const double tokens = got.sum().item<double>();
  if (tokens == 0) return {};
  const torch::Tensor busiest = std::get<0>(got.max(1)) / got.mean(1);
  std::vector<MetricValue> metrics{
      {.name = "expert_load", .value = busiest.mean().item<double>(), .weight = tokens}};
  if (experts_.capacity > 0) {
    metrics.push_back({.name = "dropped_tokens",
                       .value = measured_.select(1, 1).sum().item<double>() / tokens,
                       .weight = tokens});
  }
  return metrics;
}

ExpertsLayer::ExpertsLayer(std::int64_t experts, std::int64_t inputs, std::int64_t outputs)
    : weight(register_parameter("weight", torch::zeros({1}).expand({experts, outputs, inputs}))),
      bias(register_parameter("bias", torch::zeros({1}).expand({experts, outputs}))) {}

MixtureImpl::MixtureImpl(const ModelSpec& spec, std::int64_t layer,
                         std::shared_ptr<Routing> routing, const PassGroups& groups)
    : router_(register_module(
          "router", std::make_shared<torch::nn::LinearImpl>(
                        torch::nn::LinearOptions(spec.width, spec.experts.count).bias(false)))),
      fc1_(register_module("fc1",
                           std::make_shared<ExpertsLayer>(experts_of(spec, groups), spec.width,
                                                          divided(4 * spec.width, groups.tensor)))),
      fc2_(register_module("fc2", std::make_shared<ExpertsLayer>(
                                      experts_of(spec, groups),
                                      divided(4 * spec.width, groups.tensor), spec.width))),
      layer_(layer),
      experts_(spec.experts),
      routing_(std::move(routing)),
      group_(groups.tensor),
      others_(groups.experts) {}

/// The router's choice for the tokens of a pass.
struct MixtureImpl::Choice {
  torch::Tensor logits;     // fp32 [tokens, experts].
  torch::Tensor shares;     // Their softmax.
  torch::Tensor weights;    // fp32 [tokens, top], which add up to 1 if top > 1.
  torch::Tensor expert;     // int64 [tokens * top]; `count` for a token that does not count.
  torch::Tensor counted;    // bool [tokens].
  std::int64_t tokens = 0;  // Those that count.
  torch::Tensor counts;     // int64 [experts]: the choices of each expert.
};

MixtureImpl::Choice MixtureImpl::choose(const torch::Tensor& tokens) const {
  const FullPass full(tokens);  // Zoph 2022, section 3.2: routers are unstable in 16 bits.
  Choice choice;
  choice.logits = router_->forward(full.input);
  choice.shares = torch::softmax(choice.logits, 1);
  // Where shares are equal, the first expert is taken on every device.
  const auto [sorted, order] = choice.shares.sort(/*stable=*/true, 1, /*descending=*/true);
  choice.weights = sorted.narrow(1, 0, experts_.top);
  if (experts_.top > 1) choice.weights = choice.weights / choice.weights.sum(1, true);
  choice.expert = order.narrow(1, 0, experts_.top).flatten();
  choice.counted = routing_->pass_.counted;
  choice.tokens = tokens.size(0);
  if (choice.counted.defined()) {
    choice.tokens = choice.counted.sum().item<std::int64_t>();
    const torch::Tensor left_out = choice.counted.logical_not().repeat_interleave(experts_.top);
    choice.expert = choice.expert.masked_fill(left_out, experts_.count);
  } else {
    choice.counted = torch::ones({tokens.size(0)}, choice.expert.options().dtype(torch::kBool));
  }
  choice.counts =
      torch::bincount(choice.expert, {}, experts_.count + 1).narrow(0, 0, experts_.count);
  return choice;
}

/// The places in choice.expert of those that are computed, the first expert's first. An expert
/// takes so many at most, those of the first tokens, so that no token of a text depends on later
/// ones.
torch::Tensor MixtureImpl::kept(const Choice& choice, std::int64_t limit) const {
  const auto [grouped, order] = choice.expert.sort(/*stable=*/true, 0, /*descending=*/false);
  const std::int64_t all = choice.tokens * experts_.top;
  if (limit >= choice.tokens) return order.narrow(0, 0, all);
  const torch::Tensor begins = choice.counts.cumsum(0) - choice.counts;
  const torch::Tensor place =
      torch::arange(all, order.options()) - begins.index_select(0, grouped.narrow(0, 0, all));
  return order.narrow(0, 0, all).masked_select(place < limit);
}

/// Notes how unlike the loads of an evaluation are. `most`: an expert's tokens in training.
void MixtureImpl::measure(const Choice& choice, std::int64_t most) const {
  torch::Tensor measured = routing_->measured_.select(0, layer_);
  const torch::Tensor over = torch::clamp_min(choice.counts - most, 0);
  measured.add_(torch::stack({choice.counts, over}).to(measured.device(), torch::kFloat64));
}

/// The auxiliary loss E sum f P and the z-loss, over the tokens of all ranks of the pass. Undefined
/// if there are none here.
torch::Tensor MixtureImpl::added_losses(const Choice& choice) const {
  if (experts_.aux == 0 && experts_.z == 0) return {};
  torch::Tensor all = torch::zeros({experts_.count + 1}, torch::dtype(torch::kFloat64));
  all.narrow(0, 0, experts_.count).copy_(choice.counts);
  all[experts_.count] = static_cast<double>(choice.tokens * experts_.top);
  if (routing_->pass_.sum) routing_->pass_.sum(all);
  if (choice.tokens == 0) return {};
  const torch::Tensor part = (all.narrow(0, 0, experts_.count) / all[experts_.count])
                                 .to(choice.shares.device(), torch::kFloat32);
  const torch::Tensor mask =
      choice.counted.to(torch::kFloat32) / static_cast<double>(choice.tokens);
  const torch::Tensor share = (choice.shares * mask.unsqueeze(1)).sum(0);
  const torch::Tensor sizes = (choice.logits.logsumexp(1).square() * mask).sum();
  return (part * share).sum() * (experts_.aux * static_cast<double>(experts_.count)) +
         sizes * experts_.z;
}

/// rows: [kept choices, width], those of the first expert first. counts: int64 [experts], the
/// choices of each expert that this rank has.
torch::Tensor MixtureImpl::compute(const torch::Tensor& rows, const torch::Tensor& counts) {
  const Scope scope(*this, rows);
  const torch::Tensor all = scope.input(rows);
  const torch::Tensor given = group_ == nullptr ? all : copy_to_ranks(*group_, all);
  const torch::Tensor host = counts.cpu();
  const auto weights1 = fc1_->weight.unbind(0);
  const auto weights2 = fc2_->weight.unbind(0);
  const auto biases1 = fc1_->bias.unbind(0);
  const auto biases2 = fc2_->bias.unbind(0);
  std::vector<torch::Tensor> made;
  std::int64_t at = 0;
  // Also of experts without a token: then their gradients are 0, and not missing.
  for (std::size_t expert = 0; expert < weights1.size(); ++expert) {
    const std::int64_t count = host[static_cast<std::int64_t>(expert)].item<std::int64_t>();
    const torch::Tensor inner =
        torch::gelu(torch::linear(given.narrow(0, at, count), weights1[expert], biases1[expert]));
    const torch::Tensor bias = group_ == nullptr ? biases2[expert] : torch::Tensor();
    made.push_back(torch::linear(inner, weights2[expert], bias));
    at += count;
  }
  if (group_ == nullptr) return torch::cat(made);
  return sum_of_ranks(*group_, torch::cat(made)) +
         fc2_->bias.repeat_interleave(counts, 0).to(made[0].scalar_type());
}

/// As compute(), where each rank has some experts: all ranks' rows go to those that have theirs,
/// and what these make of them comes back. An expert has the rows of the first rank first, and so
/// the bits of one that has all tokens. Ranks without a row take part as well.
torch::Tensor MixtureImpl::compute_together(ExpertGroup& group, const torch::Tensor& rows,
                                            const torch::Tensor& counts) {
  const torch::Tensor sent = counts.cpu().view({group.division().ranks, -1});
  const auto one_each = std::vector<std::int64_t>(static_cast<std::size_t>(sent.size(0)), 1);
  const torch::Tensor came = group.exchange_rows(sent, one_each, one_each);  // By rank, by expert.
  const std::vector<std::int64_t> to = numbers_of(sent.sum(1));
  const std::vector<std::int64_t> from = numbers_of(came.sum(1));
  const torch::Tensor expert =
      torch::arange(came.size(1)).repeat({came.size(0)}).repeat_interleave(came.flatten());
  const torch::Tensor by_expert =
      std::get<1>(expert.sort(/*stable=*/true, 0, /*descending=*/false)).to(rows.device());
  // In 16 bits, if the layer rounds its inputs to these.
  const bool is_low = MixedPass::current() && format() != NumberFormat::fp32;
  const torch::Tensor given = is_low ? rows.to(scalar_type_of(format())) : rows;
  const torch::Tensor here = Sent::apply(given, &group, to, from);
  const torch::Tensor made =
      compute(here.index_select(0, by_expert), came.sum(0).to(rows.device()));
  const torch::Tensor by_rank =
      torch::zeros(made.sizes(), made.options()).index_copy(0, by_expert, made);
  return Sent::apply(by_rank, &group, from, to);
}

torch::Tensor MixtureImpl::forward(const torch::Tensor& x) {
  if (group_ == nullptr || !group_->division().divides_tokens) return mix(x);
  return own_tokens(*group_, mix(all_tokens(*group_, x)));
}

torch::Tensor MixtureImpl::mix(const torch::Tensor& x) {
  const torch::Tensor tokens = x.flatten(0, 1);
  const std::int64_t top = experts_.top;
  const Choice choice = choose(tokens);
  const torch::Tensor loss = is_training() ? added_losses(choice) : torch::Tensor();
  const std::int64_t most = capacity_of(experts_, choice.tokens);
  if (!is_training()) measure(choice, most);
  const std::int64_t limit = is_training() ? most : choice.tokens;
  const torch::Tensor order = kept(choice, limit);
  const torch::Tensor rows = tokens.index_select(0, order.div(top, "floor"));
  const torch::Tensor counts = choice.counts.clamp_max(limit);
  const torch::Tensor made =
      others_ == nullptr ? compute(rows, counts) : compute_together(*others_, rows, counts);
  const torch::Tensor all = torch::zeros({tokens.size(0) * top, tokens.size(1)}, made.options())
                                .index_copy(0, order, made)
                                .view({tokens.size(0), top, tokens.size(1)});
  torch::Tensor sum = (all * choice.weights.unsqueeze(2)).sum(1).view(x.sizes());
  if (loss.defined()) sum = AddedLoss::apply(sum, loss, routing_->pass_.weight);
  return sum;
}

std::shared_ptr<Routing> routing_of(const torch::nn::Module& module) {
  for (const auto& part : module.modules())
    if (const auto* const mixture = dynamic_cast<const MixtureImpl*>(part.get()))
      return mixture->routing();
  return nullptr;
}

}  // namespace fl
