// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/hooks/agreement.hpp"
#include "client/site/rank/hooks/hooks.hpp"
#include "client/site/rank/hooks/loops.hpp"

#include <algorithm>
#include <limits>

namespace fl::site {

namespace {

constexpr double code_max = 255;

class Quantize final : public GradientHook {
 public:
  /// 0 means one row for the bucket.
  explicit Quantize(std::int64_t channel) : channel_(channel) {}

  void reduce(Bucket& bucket, Ranks& ranks) override {
    if (!all_ranks_finite(bucket.gradient, ranks)) return divide_and_sum(bucket.gradient, ranks);
    if (is_plain(bucket.gradient))
      reduce_plain(bucket.gradient, ranks);
    else
      reduce_on_device(bucket.gradient, ranks);
  }

 private:
  [[nodiscard]] std::int64_t columns_of(std::int64_t length) const {
    return channel_ > 0 ? channel_ : std::max<std::int64_t>(length, 1);
  }

  void reduce_plain(torch::Tensor& gradient, Ranks& ranks) const {
    const std::span<float> values = span_of(gradient);
    const auto columns = static_cast<std::size_t>(columns_of(gradient.numel()));
    const std::size_t rows = (values.size() + columns - 1) / columns;
    const auto row_of = [&](std::size_t row) {
      const std::size_t begin = row * columns;
      return values.subspan(begin, std::min(columns, values.size() - begin));
    };
    torch::Tensor codes = torch::empty({gradient.numel()}, torch::kUInt8);
    torch::Tensor ranges = torch::empty({static_cast<std::int64_t>(rows), 2});
    auto* const code = codes.mutable_data_ptr<std::uint8_t>();
    auto* const range = ranges.mutable_data_ptr<float>();
    for (std::size_t row = 0; row < rows; ++row) {
      const CodeRange found = code_range_of(row_of(row));
      range[2 * row] = found.scale;
      range[2 * row + 1] = found.zero;
      to_codes(row_of(row), found, code + row * columns);
    }
    const torch::Tensor all_codes = gather(codes, ranks);
    const torch::Tensor all_ranges = gather(ranges, ranks);
    std::vector<CodedRow> of_ranks(static_cast<std::size_t>(ranks.size()));
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
        const float* const told = all_ranges.const_data_ptr<float>() + 2 * (rank * rows + row);
        of_ranks[rank] = {.codes = all_codes.const_data_ptr<std::uint8_t>() + rank * values.size() +
                                   row * columns,
                          .range = {.scale = told[0], .zero = told[1]}};
      }
      mean_of_codes(of_ranks, row_of(row));
    }
  }

  /// Quantizes by operations of libtorch, for tensors that are not plain.
  void reduce_on_device(torch::Tensor& gradient, Ranks& ranks) const {
    const std::int64_t length = gradient.numel();
    const std::int64_t columns = columns_of(length);
    const std::int64_t rows = (length + columns - 1) / columns;
    torch::Tensor padded = torch::zeros({rows, columns}, gradient.options());
    padded.flatten().narrow(0, 0, length).copy_(gradient);

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
    gradient.copy_(sum.flatten().narrow(0, 0, length) / ranks.size());
  }

  /// Chooses ranges as PyTorch's MinMaxObserver and PerChannelMinMaxObserver do for quint8.
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

}  // namespace fl::site
