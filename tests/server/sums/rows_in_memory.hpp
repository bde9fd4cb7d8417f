// SPDX-License-Identifier: Apache-2.0
// Updates in memory, for the tests of robust rules.
#pragma once

#include "server/sums/robust_mean.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace fl::test {

using namespace fl::server;

class RowsInMemory final : public UpdateRows {
 public:
  explicit RowsInMemory(std::vector<std::vector<float>> rows) : rows_(std::move(rows)) {}

  std::size_t count() const override { return rows_.size(); }
  Result<void> read(std::uint64_t first, std::size_t elements, Lanes&,
                    std::span<float> out) override {
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      std::ranges::copy(std::span(rows_[row]).subspan(first, elements), &out[row * elements]);
    }
    return {};
  }

 private:
  std::vector<std::vector<float>> rows_;
};

/// Applies the rule to `updates`. `parameters`: how many elements from the front are parameters.
inline std::vector<float> aggregate(const AggregateRule& rule,
                                    std::vector<std::vector<float>> updates,
                                    std::uint64_t parameters, const std::vector<float>& center = {},
                                    int threads = 1) {
  std::vector<float> out(updates.at(0).size());
  RowsInMemory rows(std::move(updates));
  ReadValues read_center;
  if (!center.empty()) {
    read_center = [&center](std::uint64_t first, std::span<float> to) -> Result<void> {
      std::ranges::copy(std::span(center).subspan(first, to.size()), to.begin());
      return {};
    };
  }
  RobustMean mean(rule, rows, parameters, threads, std::move(read_center));
  mean.prepare().value();
  mean.read(0, out).value();
  return out;
}

}  // namespace fl::test
