// SPDX-License-Identifier: Apache-2.0
// Facts of earlier rounds that the next round needs. On the engine's strand.
#pragma once

#include "server/history/rounds.hpp"

#include <vector>

namespace fl::server {

struct PastRounds {
  std::vector<double> losses;  // Training loss of each recorded round, the first round's first.
  Rounds::Before totals;       // The population, the last norms and the clients' examples.
  Round recorded_here = 0;     // The number of rounds that this process recorded.
  double seconds_here = 0;     // The time that these rounds took together.
};

}  // namespace fl::server
