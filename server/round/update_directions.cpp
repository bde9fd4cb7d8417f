// SPDX-License-Identifier: Apache-2.0
#include "server/round/update_directions.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

namespace fl {

Result<DirectionSums> direction_sums(PayloadReader& update, const AdjustUpdate& adjust, File& mean,
                                     std::uint64_t parameters) {
  DirectionSums sums;
  std::vector<float> ours;
  std::vector<float> theirs;
  for (std::uint64_t index = 0; index < update.blocks(); ++index) {
    const Block block = update.block(index);
    if (block.flat >= parameters) break;
    ours.resize(block.elements);
    theirs.resize(block.elements);
    FL_CHECK(update.decode(index, ours));
    if (adjust) FL_CHECK(adjust(block.flat, ours));
    FL_CHECK(
        mean.read_exactly(block.flat * sizeof(float), std::as_writable_bytes(std::span(theirs))));
    for (std::size_t i = 0; i < ours.size(); ++i) {
      const double one = ours[i];
      const double other = theirs[i];
      sums.product += one * other;
      sums.update_squares += one * one;
      sums.mean_squares += other * other;
    }
  }
  return sums;
}

void UpdateDirections::add(const TaskRecord& task, const DirectionSums& sums) {
  UpdateDirection update;
  update.task = task.id;
  update.client = task.client;
  update.norm = std::sqrt(sums.update_squares);
  const double norms = update.norm * std::sqrt(sums.mean_squares);
  if (norms > 0) update.cosine = std::clamp(sums.product / norms, -1.0, 1.0);
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

}  // namespace fl
