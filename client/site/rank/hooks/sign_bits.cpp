// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/hooks/sign_bits.hpp"

namespace fl {

namespace {

torch::Tensor weights_on(torch::Device device) {
  return torch::tensor({1, 2, 4, 8, 16, 32, 64, 128}, torch::kUInt8).to(device);
}

}  // namespace

torch::Tensor pack_signs(const torch::Tensor& values) {
  const std::int64_t bytes = (values.numel() + 7) / 8;
  torch::Tensor bits = torch::zeros({bytes * 8}, values.options().dtype(torch::kUInt8));
  bits.narrow(0, 0, values.numel()).copy_(values.ge(0));
  return (bits.view({bytes, 8}) * weights_on(values.device())).sum(1, false, torch::kUInt8);
}

torch::Tensor unpack_signs(const torch::Tensor& bytes, std::int64_t count) {
  const torch::Tensor bits = bytes.unsqueeze(1).bitwise_and(weights_on(bytes.device())).ne(0);
  return bits.flatten().narrow(0, 0, count).to(torch::kFloat32).mul_(2).sub_(1);
}

}  // namespace fl
