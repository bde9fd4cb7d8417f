// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/hooks/low_rank.hpp"

#include <ATen/ops/linalg_qr.h>

namespace fl {

LowRankSettings low_rank_settings(SpecOptions& options, bool has_rate) {
  LowRankSettings settings;
  settings.rank = options.count("rank", 1, 1);
  // c10d's Reducer forms its buckets anew after the first step.
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

void orthogonalize(torch::Tensor& matrices, double epsilon) {
  const std::int64_t columns = matrices.size(2);
  const bool is_16_bits = matrices.element_size() == 2;
  if (columns > 2 && !is_16_bits) {
    torch::Tensor r = torch::empty({matrices.size(0), columns, columns}, matrices.options());
    at::linalg_qr_out(matrices, r, matrices);
    return;
  }
  for (std::int64_t i = 0; i < columns; ++i) {  // Gram and Schmidt's way.
    torch::Tensor column = matrices.narrow(2, i, 1);
    torch::Tensor norm = torch::norm(column, 2, {1}, true);
    if (epsilon > 0) norm = norm + epsilon;
    column.div_(norm);
    if (i + 1 == columns) break;
    torch::Tensor rest = matrices.narrow(2, i + 1, columns - i - 1);
    rest.sub_(torch::sum(column * rest, {1}, true) * column);
  }
}

HookState LowRankState::save() const {
  HookState state = {{"step", torch::tensor({step}, torch::kInt64)},
                     {"drawn", torch::tensor({seeds.drawn()}, torch::kInt64)}};
  for (const auto& [key, q] : factors) state.emplace_back("q/" + key, q.cpu().clone());
  residuals.save(state);
  return state;
}

void LowRankState::load(const HookState& state) {
  step = 0;
  factors.clear();
  seeds.skip_to(0);
  for (const auto& [name, values] : state) {
    if (name == "step") step = values.item<std::int64_t>();
    if (name == "drawn") seeds.skip_to(values.item<std::int64_t>());
    if (name.starts_with("q/")) factors[name.substr(2)] = values.clone();
  }
  residuals.load(state);
}

}  // namespace fl
