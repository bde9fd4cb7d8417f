// SPDX-License-Identifier: Apache-2.0
#include "server/sums/robust_mean.hpp"

#include "server/sums/sorted_rows.hpp"

#include <algorithm>

namespace fl::server {

namespace {

constexpr std::size_t block_elements = 2048;
/// The number of columns that a thread works on at a time.
constexpr std::size_t column_run = 256;

}  // namespace

RobustMean::RobustMean(const AggregateRule& rule, UpdateRows& rows, std::uint64_t parameters,
                       int threads, ReadValues center)
    : rule_(rule),
      rows_(rows),
      parameters_(parameters),
      lanes_(threads, rows.count()),
      center_(std::move(center)) {
  FL_ASSERT(rows.count() > 0);
}

Result<void> RobustMean::prepare() {
  if (!rule_.needs_distances()) return {};
  const std::size_t vectors = rows_.count() + (rule_.has_center() ? 1 : 0);
  SquareMatrix distances(vectors);
  for (std::uint64_t first = 0; first < parameters_;) {
    const auto elements =
        static_cast<std::size_t>(std::min<std::uint64_t>(block_elements, parameters_ - first));
    FL_CHECK(read_rows(first, elements));
    add_distances(std::span(block_).first(vectors * elements), vectors, lanes_, scratch_,
                  distances);
    first += elements;
  }
  if (rule_.is_by_coordinate()) {
    near_ = nearest_neighbours(distances, rows_.count(), rule_.mix_f_of(rows_.count()));
  } else {
    weights_ = combination(rule_, distances);
  }
  return {};
}

Result<void> RobustMean::read(std::uint64_t first, std::span<float> out) {
  while (!out.empty()) {
    const std::size_t elements = std::min(block_elements, out.size());
    FL_CHECK(read_rows(first, elements));
    if (rule_.is_by_coordinate()) {
      if (rule_.mixes) mix();
      take_middle(out.first(elements));
    } else {
      combine(out.first(elements));
    }
    out = out.subspan(elements);
    first += elements;
  }
  return {};
}

/// Fills block_ with the updates' values and, behind them, the center's.
Result<void> RobustMean::read_rows(std::uint64_t first, std::size_t elements) {
  const std::size_t n = rows_.count();
  block_.assign((n + (rule_.has_center() ? 1 : 0)) * elements, 0.0F);
  FL_CHECK(rows_.read(first, elements, lanes_, std::span(block_).first(n * elements)));
  if (!rule_.has_center() || !center_) return {};
  return center_(first, std::span(block_).subspan(n * elements));
}

/// out = the sum of weight * row, in the order of the rows.
void RobustMean::combine(std::span<float> out) {
  scratch_.assign(out.size(), 0.0);
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] == 0) continue;
    const float* const values = row(i, out.size());
    for (std::size_t c = 0; c < out.size(); ++c)
      scratch_[c] += weights_[i] * static_cast<double>(values[c]);
  }
  for (std::size_t c = 0; c < out.size(); ++c) out[c] = static_cast<float>(scratch_[c]);
}

/// Replaces each row of block_ by the mean of its neighbours, added up in their order.
void RobustMean::mix() {
  const std::size_t elements = block_.size() / near_.size();
  mixed_.resize(block_.size());
  lanes_.for_each_run(near_.size(), 1, [&](std::size_t, std::size_t begin, std::size_t end) {
    std::vector<double> sums(elements);
    for (std::size_t i = begin; i < end; ++i) {
      std::ranges::fill(sums, 0.0);
      for (const std::size_t j : near_[i]) {
        const float* const values = row(j, elements);
        for (std::size_t c = 0; c < elements; ++c) sums[c] += static_cast<double>(values[c]);
      }
      const auto count = static_cast<double>(near_[i].size());
      for (std::size_t c = 0; c < elements; ++c)
        mixed_[i * elements + c] = static_cast<float>(sums[c] / count);
    }
  });
  block_.swap(mixed_);
}

void RobustMean::take_middle(std::span<float> out) {
  const std::size_t n = rows_.count();
  const std::size_t drop = rule_.by_coordinate->dropped_of(n);
  lanes_.for_each_run(out.size(), column_run, [&](std::size_t, std::size_t begin, std::size_t end) {
    const Columns at{block_, n, out.size(), begin, end};
    sort_columns(at);
    middle_means(at, drop, out);
  });
}

}  // namespace fl::server
