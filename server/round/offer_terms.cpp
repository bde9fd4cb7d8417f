// SPDX-License-Identifier: Apache-2.0
#include "server/round/offer_terms.hpp"

#include "shared/wire/train_messages.hpp"

namespace fl::server {

wire::Offer common_offer(const RunPlan& plan, const ModelVersion& base,
                         std::span<const double> losses) {
  const Round round = round_from(base.record.version);  // In which its tasks are first offered.
  wire::Offer offer;
  offer.set_version(base.record.version);
  offer.set_version_digest(base.record.digest.raw());
  write_train_settings(plan.work_of(round, losses), offer);
  offer.set_shared_seed(plan.shared_seed_of(round));
  offer.set_lane_steps(base.record.lane_steps);
  return offer;
}

}  // namespace fl::server
