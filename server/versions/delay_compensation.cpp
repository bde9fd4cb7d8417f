// SPDX-License-Identifier: Apache-2.0
#include "server/versions/delay_compensation.hpp"

#include <algorithm>
#include <vector>

namespace fl::server {

Result<void> DelayCompensation::operator()(std::uint64_t first, std::span<float> update) const {
  if (first >= parameters_) return {};
  update = update.first(
      static_cast<std::size_t>(std::min<std::uint64_t>(update.size(), parameters_ - first)));
  std::vector<float> then(update.size());
  std::vector<float> now(update.size());
  FL_CHECK(read_values(*then_, first, then));
  FL_CHECK(read_values(*now_, first, now));
  for (std::size_t i = 0; i < update.size(); ++i) {
    const double u = update[i];
    const double moved = static_cast<double>(now[i]) - static_cast<double>(then[i]);
    update[i] = static_cast<float>(u - factor_ * u * u * moved);
  }
  return {};
}

}  // namespace fl::server
