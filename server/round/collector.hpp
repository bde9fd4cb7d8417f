// SPDX-License-Identifier: Apache-2.0
// Collects the updates of the open round: asks clients in place of those that fail, and decides
// when the round has what it needs. On the engine's strand; the main loop alone calls it.
#pragma once

#include "server/round/masked_round.hpp"
#include "server/round/offers.hpp"

namespace fl::server {

class Collector {
 public:
  struct Parts {
    RunControl& control;
    Tasks& tasks;
    Evaluations& evaluations;
    RunEnd& end;
    Offers& offers;
    TaskDecisions& decisions;
    MaskedRound* masked;  // Null: the run is not masked.
  };
  explicit Collector(const Parts& parts) : parts_(parts) {}

  /// Returns when the open round may close, and is_closing; when it is left, because the run has an
  /// early end; or when the run is to stop. Errors: those of the store and of MaskedRound::run().
  Awaitable<Result<void>> collect();

 private:
  void note_deadline();
  Awaitable<Result<void>> open_masked();

  Parts parts_;
};

}  // namespace fl::server
