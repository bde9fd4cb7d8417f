// SPDX-License-Identifier: Apache-2.0
// The facts that a rank tells and measures for `fl-client site doctor`.
#pragma once

#include "client/site/doctor.hpp"
#include "client/site/rank/ranks.hpp"
#include "client/site/site_options.hpp"

#include <string>

namespace fl::site {

/// `device` is the value of --device.
[[nodiscard]] RankFacts facts_of(const SitePlace& place, const std::string& device);

/// Measures the links; a collective, in which all ranks get the same figures. Throws RankFailure.
[[nodiscard]] SiteMeasurement measure_site(Ranks& ranks);

}  // namespace fl::site
