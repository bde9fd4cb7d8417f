// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/sums/factor_sums.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

namespace fl {

std::optional<std::uint64_t> FactorSums::key_of(std::uint32_t tensor) const {
  if (!shared_seed_) return std::nullopt;
  return shared_key(*shared_seed_, tensor);
}

int FactorSums::widened_log2(std::uint64_t cols) const {
  const int root_log2 = (static_cast<int>(std::bit_width(cols)) + 1) / 2;
  return std::min(root_log2, fixed_.fraction_bits);
}

FactorSums::Sums& FactorSums::sums_of(std::uint32_t tensor, const MatrixShape& shape,
                                      std::uint32_t rank) {
  Sums& sums = tensors_[tensor];
  if (rank <= sums.rank) return sums;
  sums.rank = rank;
  sums.shape = shape;
  sums.left.resize(rank * shape.rows);
  return sums;
}

std::span<const float> FactorSums::right_of(std::uint32_t tensor, const Sums& sums) const {
  const std::lock_guard lock(mutex_);
  auto& right = rights_[tensor];
  if (right.size() != sums.rank * sums.shape.cols)
    right = drawn_right(*key_of(tensor), sums.rank, sums.shape.cols);
  return right;
}

Result<Scan> FactorSums::add(const Block& block, const FactorRows& rows, std::int64_t weight) {
  const MatrixShape shape = matrix_of(layout_.tensors()[block.tensor], rows.rank, 1).value();
  const int widened = widened_log2(shape.cols);
  const int range_log2 = fixed_.range_log2 + widened;
  // A row that began in the block before was added with that block.
  const std::uint64_t skipped = block.first % shape.cols > 0 ? 1 : 0;
  const std::uint64_t first = rows.first + skipped;
  const std::uint64_t count = rows.count - skipped;
  Scan all{.max_abs = 0, .sum_squares = 0, .first_bad = block.elements};
  const auto column = [&](std::uint32_t k) {
    return rows.values.subspan(k * rows.count + skipped, count);
  };
  for (std::uint32_t k = 0; k < rows.rank; ++k) {
    const auto values = column(k);
    const Scan scan = kernels().scan(values.data(), count);
    all.sum_squares += scan.sum_squares;
    if (scan.max_abs < std::ldexp(1.0, range_log2)) continue;
    const std::size_t i = first_beyond(values, range_log2);
    const std::uint64_t at = block.flat - block.first + (first + i) * shape.cols;
    return Error(Errc::too_large,
                 fmt::format("the factor of the row at {} has {}, values must stay below {}",
                             layout_.describe(at), values[i], std::ldexp(1.0, range_log2)));
  }
  const std::lock_guard lock(mutex_);
  Sums& sums = sums_of(block.tensor, shape, rows.rank);
  for (std::uint32_t k = 0; k < rows.rank; ++k) {
    kernels().add_fixed(sums.left.data() + k * shape.rows + first, column(k).data(), count,
                        fixed_.fraction_bits - widened, weight);
  }
  return all;
}

void FactorSums::add_mean(std::uint64_t first, double divisor, std::span<float> out) const {
  std::vector<float> values;
  for (const auto& [number, sums] : tensors_) {
    const Layout::Tensor& tensor = layout_.tensors()[number];
    const std::uint64_t begin = std::max(first, tensor.offset);
    const std::uint64_t end = std::min(first + out.size(), tensor.offset + tensor.elements);
    if (sums.rank == 0 || begin >= end) continue;
    const std::uint64_t cols = sums.shape.cols;
    const std::uint64_t row = (begin - tensor.offset) / cols;
    const std::uint64_t count = (end - 1 - tensor.offset) / cols + 1 - row;
    const double factor = std::ldexp(1.0 / divisor, widened_log2(cols) - fixed_.fraction_bits);
    values.resize(sums.rank * count);
    for (std::uint64_t k = 0; k < sums.rank; ++k) {
      kernels().scale_fixed(sums.left.data() + k * sums.shape.rows + row, count, factor,
                            values.data() + k * count);
    }
    add_product({.rank = sums.rank, .first = row, .count = count, .values = values},
                right_of(number, sums), cols, begin - tensor.offset,
                out.subspan(begin - first, end - begin));
  }
}

void FactorSums::reset(const FixedPoint& fixed, std::optional<std::uint64_t> shared_seed) {
  fixed_ = fixed;
  shared_seed_ = shared_seed;
  rights_.clear();
  std::erase_if(tensors_, [](const auto& entry) { return entry.second.rank == 0; });
  for (auto& [number, sums] : tensors_) {
    sums.rank = 0;
    sums.left.clear();
  }
}

}  // namespace fl
