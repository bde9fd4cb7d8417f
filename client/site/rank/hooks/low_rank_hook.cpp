// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/hooks/low_rank_hook.hpp"

#include "client/site/rank/hooks/agreement.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/linalg_qr.h>

namespace fl::site {

LowRankHookSettings low_rank_settings(SpecOptions& options, bool has_rate) {
  LowRankHookSettings settings;
  settings.rank = options.count("rank", 1, 1);
  // PyTorch's hook can't begin earlier either.
  settings.start = options.count("start", 1000, 2);
  if (has_rate) settings.rate = options.number("rate", 2, 0, 1e9);
  settings.epsilon = options.number("epsilon", 1e-8, 0, 1);
  return settings;
}

std::uint64_t StartSeeds::next() {
  ++drawn_;
  while (true) {
    const std::uint64_t number = numbers_() & 0x3fff'ffff;
    if (number < 1'000'000'000) return number;
  }
}

void StartSeeds::skip_to(std::int64_t drawn) {
  *this = {};
  while (drawn_ < drawn) (void)next();
}

void LowRankHook::reduce(Bucket& bucket, Ranks& ranks) {
  if (step_ < settings_.start || !compress(bucket, ranks)) divide_and_sum(bucket.gradient, ranks);
  if (bucket.is_last) ++step_;
}

bool LowRankHook::compress(Bucket& bucket, Ranks& ranks) {
  torch::Tensor& residual = residuals_.of(bucket);
  const torch::Tensor values = bucket.gradient + residual;
  if (!all_ranks_finite(values, ranks)) return false;
  bucket.gradient.copy_(values);
  approximate(bucket, ranks);
  torch::sub_out(residual, values, bucket.gradient);
  return true;
}

at::Generator LowRankHook::next_generator() {
  return at::detail::createCPUGenerator(seeds_.next());
}

void LowRankHook::orthogonalize(torch::Tensor& matrices) const {
  const std::int64_t columns = matrices.size(2);
  const bool is_16_bits = matrices.element_size() == 2;
  if (columns > 2 && !is_16_bits) {
    torch::Tensor r = torch::empty({matrices.size(0), columns, columns}, matrices.options());
    at::linalg_qr_out(matrices, r, matrices);
    return;
  }
  for (std::int64_t i = 0; i < columns; ++i) {  // The Gram-Schmidt process.
    torch::Tensor column = matrices.narrow(2, i, 1);
    torch::Tensor norm = torch::norm(column, 2, {1}, true);
    if (settings_.epsilon > 0) norm = norm + settings_.epsilon;
    column.div_(norm);
    if (i + 1 == columns) break;
    torch::Tensor rest = matrices.narrow(2, i + 1, columns - i - 1);
    rest.sub_(torch::sum(column * rest, {1}, true) * column);
  }
}

HookState LowRankHook::save() const {
  HookState state = state_with_step(step_);
  state.emplace_back("drawn", torch::tensor({seeds_.drawn()}, torch::kInt64));
  for (const auto& [key, q] : factors_) state.emplace_back("q/" + key, q.cpu().clone());
  residuals_.save(state);
  return state;
}

void LowRankHook::load(const HookState& state) {
  step_ = step_in(state);
  factors_.clear();
  seeds_.skip_to(0);
  for (const auto& [name, values] : state) {
    if (name == "drawn") seeds_.skip_to(values.item<std::int64_t>());
    if (name.starts_with("q/")) factors_[name.substr(2)] = values.clone();
  }
  residuals_.load(state);
}

torch::Tensor random_factor(at::IntArrayRef sizes, const at::Generator& generator,
                            const torch::TensorOptions& options) {
  return torch::randn(sizes, generator, options.device(torch::kCPU));
}

}  // namespace fl::site
