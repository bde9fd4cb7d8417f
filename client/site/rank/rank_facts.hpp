// SPDX-License-Identifier: Apache-2.0
// What a rank says and measures for `fl-client site doctor`.
#pragma once

#include "client/site/doctor.hpp"
#include "client/site/rank/ranks.hpp"
#include "client/site/site_options.hpp"

namespace fl {

[[nodiscard]] RankFacts facts_of(const SitePlace& place);

/// A collective; all ranks get the same figures. Throws RankFailure.
[[nodiscard]] SiteMeasurement measure_site(Ranks& ranks);

}  // namespace fl
