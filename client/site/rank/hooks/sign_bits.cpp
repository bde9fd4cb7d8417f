// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/hooks/sign_bits.hpp"

#include "client/site/rank/hooks/agreement.hpp"
#include "client/site/rank/hooks/loops.hpp"
#include "kernels/kernels.hpp"

#include <vector>

namespace fl::site {

namespace {

torch::Tensor weights_on(torch::Device device) {
  return torch::tensor({1, 2, 4, 8, 16, 32, 64, 128}, torch::kUInt8).to(device);
}

/// Returns `count` floats, each 1 or -1.
torch::Tensor unpacked(const torch::Tensor& bytes, std::int64_t count) {
  const torch::Tensor bits = bytes.unsqueeze(1).bitwise_and(weights_on(bytes.device())).eq(0);
  return bits.flatten().narrow(0, 0, count).to(torch::kFloat32).mul_(2).sub_(1);
}

}  // namespace

SignCode sign_code_of(const torch::Tensor& values) {
  const std::int64_t n = values.numel();
  const std::int64_t bytes = (n + 7) / 8;
  if (is_plain(values)) {
    SignCode code{.bits = torch::empty({bytes}, torch::kUInt8), .scale = torch::zeros({1})};
    const double sum =
        kernels().pack_signs(values.const_data_ptr<float>(), static_cast<std::size_t>(n),
                             code.bits.mutable_data_ptr<std::uint8_t>());
    if (n > 0) code.scale.fill_(sum / static_cast<double>(n));
    return code;
  }
  torch::Tensor signs = torch::zeros({bytes * 8}, values.options().dtype(torch::kUInt8));
  signs.narrow(0, 0, n).copy_(values.lt(0));
  torch::Tensor scale = torch::zeros({1}, values.options().dtype(torch::kFloat32));
  if (n > 0) scale.copy_(values.abs().mean());
  return {
      .bits = (signs.view({bytes, 8}) * weights_on(values.device())).sum(1, false, torch::kUInt8),
      .scale = scale};
}

void mean_of_sign_codes(const torch::Tensor& bits, const torch::Tensor& scales,
                        torch::Tensor mean) {
  const std::int64_t ranks = bits.size(0);
  if (is_plain(mean)) {
    std::vector<SignedRow> rows;
    for (std::int64_t rank = 0; rank < ranks; ++rank)
      rows.push_back(
          {.bits = bits[rank].const_data_ptr<std::uint8_t>(), .scale = scales[rank].item<float>()});
    return mean_of_signs(rows, span_of(mean));
  }
  mean.zero_();
  const std::int64_t bytes = (mean.numel() + 7) / 8;
  for (std::int64_t rank = 0; rank < ranks; ++rank)
    mean += unpacked(bits[rank].narrow(0, 0, bytes), mean.numel()).mul_(scales[rank]);
  mean.div_(ranks);
}

void subtract_sign_code(const SignCode& code, torch::Tensor values) {
  if (is_plain(values)) {
    return subtract_signs(
        {.bits = code.bits.const_data_ptr<std::uint8_t>(), .scale = code.scale.item<float>()},
        span_of(values));
  }
  values -= unpacked(code.bits, values.numel()).mul_(code.scale);
}

}  // namespace fl::site
