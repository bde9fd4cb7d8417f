// What the next round is made with of the rounds before it. On the engine's strand.
#pragma once

#include "server/history/store.hpp"

#include <vector>

namespace fl {

struct PastRounds {
  std::vector<double> losses;  // Training loss of each recorded round, the first round's first.
  Store::RoundsBefore before;  // Population, largest norm and the clients' examples.
  Round recorded_here = 0;     // Rounds that this process recorded,
  double seconds_here = 0;     // and how long they took together.
};

}  // namespace fl
