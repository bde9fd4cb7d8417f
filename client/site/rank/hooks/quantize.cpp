// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/hooks/agreement.hpp"
#include "client/site/rank/hooks/hooks.hpp"

#include <limits>

namespace fl {

namespace {

constexpr double code_max = 255;

class Quantize final : public GradientHook {
 public:
  /// 0: one row for the bucket.
  explicit Quantize(std::int64_t channel) : channel_(channel) {}

  void reduce(Bucket& bucket, Ranks& ranks) override {
    if (!all_finite(bucket.gradient, ranks)) return divide_and_sum(bucket.gradient, ranks);
    const std::int64_t length = bucket.gradient.numel();
    const std::int64_t columns = channel_ > 0 ? channel_ : std::max<std::int64_t>(length, 1);
    const std::int64_t rows = (length + columns - 1) / columns;
    torch::Tensor padded = torch::zeros({rows, columns}, bucket.gradient.options());
    padded.flatten().narrow(0, 0, length).copy_(bucket.gradient);

    const torch::Tensor range = range_of(padded);  // [2, rows, 1]: scales and zero points.
    const torch::Tensor codes =
        torch::clamp(torch::round(padded / range[0]) + range[1], 0, code_max)
            .to(torch::kUInt8)
            .flatten()
            .narrow(0, 0, length)
            .contiguous();
    const torch::Tensor all_codes = gather(codes, ranks);
    const torch::Tensor ranges = gather(range, ranks);
    torch::Tensor sum = torch::zeros_like(padded);
    for (int rank = 0; rank < ranks.size(); ++rank) {
      padded.flatten().narrow(0, 0, length).copy_(all_codes[rank]);
      sum += ranges[rank][0] * (padded - ranges[rank][1]);
    }
    bucket.gradient.copy_(sum.flatten().narrow(0, 0, length) / ranks.size());
  }

 private:
  /// As PyTorch's MinMaxObserver and PerChannelMinMaxObserver have it for quint8.
  static torch::Tensor range_of(const torch::Tensor& rows) {
    const torch::Tensor least = rows.amin(1, true).clamp_max(0);
    const torch::Tensor most = rows.amax(1, true).clamp_min(0);
    const torch::Tensor scale =
        ((most - least) / code_max).clamp_min(std::numeric_limits<float>::epsilon());
    const torch::Tensor zero = torch::clamp(-torch::round(least / scale), 0, code_max);
    return torch::stack({scale, zero});
  }

  std::int64_t channel_;
};

}  // namespace

std::unique_ptr<GradientHook> make_quantize(SpecOptions& options) {
  (void)options.word("bits", {"8"});
  return std::make_unique<Quantize>(options.count("channel", 0, 0));
}

}  // namespace fl
