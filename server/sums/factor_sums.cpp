// SPDX-License-Identifier: Apache-2.0
#include "server/sums/factor_sums.hpp"

#include <algorithm>
#include <vector>

namespace fl::server {

std::optional<std::uint64_t> FactorSums::key_of(std::uint32_t tensor) const {
  if (!shared_seed_) return std::nullopt;
  return codec::shared_key(*shared_seed_, tensor);
}

FactorSums::Sums& FactorSums::sums_of(std::uint32_t tensor, const codec::MatrixShape& shape,
                                      std::uint32_t rank) {
  Sums& sums = tensors_[tensor];
  if (rank <= sums.rank) return sums;
  sums.rank = rank;
  sums.shape = shape;
  sums.left.resize(rank * shape.rows);
  return sums;
}

std::span<const float> FactorSums::right_of(std::uint32_t tensor, const Sums& sums) const {
  const MutexLock lock(mutex_);
  auto& right = rights_[tensor];
  if (right.size() != sums.rank * sums.shape.cols)
    right = codec::drawn_right(*key_of(tensor), sums.rank, sums.shape.cols);
  return right;
}

Scan FactorSums::add(const codec::Block& block, const codec::FactorRows& rows, Adding& adding) {
  const codec::MatrixShape shape =
      codec::matrix_of(layout_.tensors()[block.tensor], rows.rank, 1).value();
  // A row that began in the block before was added with that block.
  const std::uint64_t skipped = block.first % shape.cols > 0 ? 1 : 0;
  const std::uint64_t first = rows.first + skipped;
  const std::uint64_t count = rows.count - skipped;
  Scan all{.max_abs = 0, .sum_squares = 0, .first_bad = block.elements};
  const MutexLock lock(mutex_);
  Sums& sums = sums_of(block.tensor, shape, rows.rank);
  for (std::uint32_t k = 0; k < rows.rank; ++k) {
    const auto column = rows.values.subspan(k * rows.count + skipped, count);
    const Scan scan = kernels().scan(column.data(), count);
    all.sum_squares += scan.sum_squares;
    adding.add(sums.range, scan.max_abs, column, sums.left.data() + k * shape.rows + first);
  }
  return all;
}

bool FactorSums::begin_again(std::uint64_t total_weight) {
  bool has_begun = false;
  for (auto& [tensor, sums] : tensors_) {
    if (sums.rank == 0 || !sums.range.begin_again(total_weight)) continue;
    std::ranges::fill(sums.left, 0);
    has_begun = true;
  }
  return has_begun;
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
    const double factor = mean_factor_of(divisor, sums.range);
    values.resize(sums.rank * count);
    for (std::uint64_t k = 0; k < sums.rank; ++k) {
      kernels().scale_fixed(sums.left.data() + k * sums.shape.rows + row, count, factor,
                            values.data() + k * count);
    }
    codec::add_product({.rank = sums.rank, .first = row, .count = count, .values = values},
                       right_of(number, sums), cols, begin - tensor.offset,
                       out.subspan(begin - first, end - begin));
  }
}

void FactorSums::reset(std::optional<std::uint64_t> shared_seed) {
  shared_seed_ = shared_seed;
  const MutexLock lock(mutex_);
  rights_.clear();
  std::erase_if(tensors_, [](const auto& entry) { return entry.second.rank == 0; });
  for (auto& [number, sums] : tensors_) {
    sums.rank = 0;
    sums.left.clear();
    sums.range.reset();
  }
}

}  // namespace fl::server
