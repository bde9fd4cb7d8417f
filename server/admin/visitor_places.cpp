// SPDX-License-Identifier: Apache-2.0
#include "server/admin/visitor_places.hpp"

namespace fl::server {

std::unique_ptr<VisitorPlaces::Place> VisitorPlaces::take(const PlaceHolder& holder) {
  {
    const MutexLock lock(mutex_);
    const auto found = of_.find(holder.who);
    const std::size_t its = found == of_.end() ? 0 : found->second;
    if (all_ >= limits_.all || its >= limits_.of_one) return nullptr;
    if (!holder.is_operator && viewers_ >= limits_.viewers) return nullptr;
    if (!holder.is_known && open_ >= limits_.open) return nullptr;
    ++all_;
    if (!holder.is_operator) ++viewers_;
    if (!holder.is_known) ++open_;
    of_[holder.who] = its + 1;
  }
  return std::make_unique<Place>(shared_from_this(), holder);
}

void VisitorPlaces::give_back(const PlaceHolder& holder) {
  const MutexLock lock(mutex_);
  --all_;
  if (!holder.is_operator) --viewers_;
  if (!holder.is_known) --open_;
  const auto found = of_.find(holder.who);
  if (--found->second == 0) of_.erase(found);
}

}  // namespace fl::server
