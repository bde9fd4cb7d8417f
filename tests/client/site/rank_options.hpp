// SPDX-License-Identifier: Apache-2.0
// How a rank of a test reaches the hub of its site.
#pragma once

#include "client/site/hub.hpp"
#include "client/site/rank_link.hpp"

namespace fl::test {

using namespace fl::site;

/// The secret of a test's site.
inline constexpr const char* site_secret = "secret";

inline RankLink::Options rank_options(const SiteHub& hub, int rank, int size, Duration silence,
                                      TimePoint until) {
  RankLink::Options options;
  options.host = "127.0.0.1";
  options.port = hub.port();
  options.secret = site_secret;
  options.rank = rank;
  options.size = size;
  options.silence = silence;
  options.until = until;
  return options;
}

}  // namespace fl::test
