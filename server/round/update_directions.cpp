// SPDX-License-Identifier: Apache-2.0
#include "server/round/update_directions.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

namespace fl::server {

namespace {

/// Adds in four lanes: additions that wait for each other take twice as long.
void add_products(std::span<const float> ours, std::span<const float> theirs, DirectionSums& sums) {
  constexpr std::size_t lanes = 4;
  double products[lanes] = {};
  double our_squares[lanes] = {};
  double their_squares[lanes] = {};
  const auto add = [&](std::size_t i, std::size_t lane) {
    const double one = ours[i];
    const double other = theirs[i];
    products[lane] += one * other;
    our_squares[lane] += one * one;
    their_squares[lane] += other * other;
  };
  std::size_t i = 0;
  for (; i + lanes <= ours.size(); i += lanes) {
    for (std::size_t lane = 0; lane < lanes; ++lane) add(i + lane, lane);
  }
  for (; i < ours.size(); ++i) add(i, 0);
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    sums.product += products[lane];
    sums.update_squares += our_squares[lane];
    sums.mean_squares += their_squares[lane];
  }
}

}  // namespace

std::optional<double> DirectionSums::cosine() const {
  const double norms = std::sqrt(update_squares) * std::sqrt(mean_squares);
  if (!(norms > 0)) return std::nullopt;
  return std::clamp(product / norms, -1.0, 1.0);
}

Result<DirectionSums> direction_sums(codec::PayloadReader& update, const AdjustUpdate& adjust,
                                     const ReadValues& mean, std::span<const ElementRange> ranges) {
  DirectionSums sums;
  std::vector<float> ours;
  std::vector<float> theirs;
  for (std::uint64_t index = 0; index < update.blocks() && !ranges.empty(); ++index) {
    const codec::Block block = update.block(index);
    const std::uint64_t end = block.flat + block.elements;
    if (end <= ranges.front().begin) continue;
    ours.resize(block.elements);
    FL_CHECK(update.decode(index, ours));
    if (adjust) FL_CHECK(adjust(block.flat, ours));
    while (!ranges.empty() && ranges.front().begin < end) {
      const std::uint64_t from = std::max(ranges.front().begin, block.flat);
      const std::uint64_t to = std::min(ranges.front().end, end);
      theirs.resize(to - from);
      FL_CHECK(mean(from, theirs));
      add_products(std::span(ours).subspan(from - block.flat, to - from), theirs, sums);
      if (ranges.front().end > end) break;
      ranges = ranges.subspan(1);
    }
  }
  return sums;
}

void UpdateDirections::add(const TaskRecord& task, const DirectionSums& sums) {
  UpdateDirection update;
  update.task = task.id;
  update.client = task.client;
  update.norm = std::sqrt(sums.update_squares);
  update.cosine = sums.cosine();
  updates_.push_back(std::move(update));
}

std::vector<UpdateDirection> UpdateDirections::finish() {
  std::vector<double> norms;
  for (const UpdateDirection& update : updates_) norms.push_back(update.norm);
  std::ranges::sort(norms);
  const double median = norms.empty() ? 0 : norms[norms.size() / 2];
  for (UpdateDirection& update : updates_) {
    if (median > 0) update.relative_norm = update.norm / median;
  }
  return std::move(updates_);
}

}  // namespace fl::server
