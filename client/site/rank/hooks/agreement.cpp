// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/hooks/agreement.hpp"

#include "client/site/rank/hooks/loops.hpp"
#include "kernels/kernels.hpp"

namespace fl::site {

namespace {

bool are_finite(const torch::Tensor& values) {
  if (is_plain(values)) return all_finite(span_of(values));
  const bool is_half = values.scalar_type() == torch::kFloat16;
  if (values.is_cpu() && values.is_contiguous() &&
      (is_half || values.scalar_type() == torch::kBFloat16)) {
    const std::uint16_t exponent = is_half ? 0x7c00 : 0x7f80;
    return none_has_exponent({static_cast<const std::uint16_t*>(values.const_data_ptr()),
                              static_cast<std::size_t>(values.numel())},
                             exponent);
  }
  return values.isfinite().all().item<bool>();
}

bool on_all(bool mine, Ranks& ranks) { return ranks.sum(mine ? 0 : 1) == 0; }

}  // namespace

void divide_and_sum(torch::Tensor& values, Ranks& ranks) {
  values.div_(ranks.size());
  ranks.sum(values);
}

bool all_ranks_finite(const torch::Tensor& values, Ranks& ranks) {
  return on_all(are_finite(values), ranks);
}

bool all_ranks_finite(const torch::Tensor& values, const torch::Tensor& residual, Ranks& ranks) {
  return on_all(is_plain(values) && is_plain(residual)
                    ? sums_are_finite(span_of(values), span_of(residual))
                    : are_finite(values + residual),
                ranks);
}

torch::Tensor gather(const torch::Tensor& own, Ranks& ranks) {
  std::vector<std::int64_t> shape = own.sizes().vec();
  shape.insert(shape.begin(), ranks.size());
  torch::Tensor all = torch::empty(shape, own.options());
  ranks.all_gather(all, own);
  return all;
}

std::vector<std::int64_t> gather(std::int64_t own, Ranks& ranks) {
  const torch::Tensor all =
      gather(torch::tensor({own}, torch::kInt64).to(ranks.device()), ranks).flatten().cpu();
  const std::int64_t* first = all.const_data_ptr<std::int64_t>();
  return {first, first + all.numel()};
}

}  // namespace fl::site
