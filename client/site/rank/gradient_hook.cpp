// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/gradient_hook.hpp"

#include <algorithm>
#include <functional>
#include <numeric>

namespace fl::site {

std::int64_t Bucket::Part::elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::string Bucket::key() const {
  std::string text;
  for (const Part& part : parts) text += (text.empty() ? "" : ",") + std::to_string(part.parameter);
  return text;
}

torch::Tensor Bucket::view(const Part& part) const {
  return gradient.narrow(0, part.offset, part.elements()).view(part.shape);
}

HookState state_with_step(std::int64_t step) {
  return {{"step", torch::tensor({step}, torch::kInt64)}};
}

std::int64_t step_in(const HookState& state) {
  std::int64_t step = 0;
  for (const auto& [name, values] : state)
    if (name == "step") step = values.item<std::int64_t>();
  return step;
}

torch::Tensor& Residuals::of(const Bucket& bucket) {
  const auto options = bucket.gradient.options().device(device_.value_or(bucket.gradient.device()));
  for (Entry& entry : entries_)
    if (entry.parts == bucket.parts && entry.values.device() == options.device())
      return entry.values;
  Entry entry{.parts = bucket.parts, .values = torch::zeros({bucket.gradient.numel()}, options)};
  for (const Bucket::Part& part : bucket.parts) {
    const torch::Tensor before = take(part);
    if (before.defined()) entry.values.narrow(0, part.offset, part.elements()).copy_(before);
  }
  return entries_.emplace_back(std::move(entry)).values;
}

/// Removes and returns what is kept of a parameter that was in another bucket; undefined if nothing
/// is kept.
torch::Tensor Residuals::take(const Bucket::Part& part) {
  for (Entry& entry : entries_) {
    const auto found = std::ranges::find(entry.parts, part.parameter, &Bucket::Part::parameter);
    if (found == entry.parts.end() || found->elements() != part.elements()) continue;
    torch::Tensor values = entry.values.narrow(0, found->offset, part.elements());
    entry.parts.erase(found);
    if (entry.parts.empty()) entries_.erase(entries_.begin() + (&entry - entries_.data()));
    return values;
  }
  return {};
}

void Residuals::save(HookState& state) const {
  for (const Entry& entry : entries_)
    for (const Bucket::Part& part : entry.parts)
      state.emplace_back(prefix_ + std::to_string(part.parameter),
                         entry.values.narrow(0, part.offset, part.elements()).cpu().clone());
}

void Residuals::load(const HookState& state) {
  entries_.clear();
  for (const auto& [name, values] : state) {
    if (!name.starts_with(prefix_)) continue;
    const Bucket::Part part{.parameter = std::stoll(name.substr(prefix_.size())),
                            .shape = {values.numel()}};
    entries_.push_back({.parts = {part}, .values = values.flatten().clone()});
  }
}

}  // namespace fl::site
