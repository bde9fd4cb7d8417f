// SPDX-License-Identifier: Apache-2.0
#include "server/round/offer_terms.hpp"

#include "shared/wire/train_messages.hpp"

#include <algorithm>
#include <vector>

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

Result<secure::Public> digest_of_values(const ModelVersion& version, const Layout& layout) {
  FL_TRY([[maybe_unused]] const auto open, version.file.open());
  secure::ValuesDigest digest;
  std::vector<float> values(std::min<std::uint64_t>(layout.elements(), 1 << 18));
  for (std::uint64_t first = 0; first < layout.elements(); first += values.size()) {
    const std::span part(values.data(),
                         std::min<std::uint64_t>(values.size(), layout.elements() - first));
    FL_CHECK(read_values(version, first, part));
    digest.update(std::as_bytes(part));
  }
  return digest.finish();
}

}  // namespace fl::server
