// SPDX-License-Identifier: Apache-2.0
// Settings of local training for tests of messages. Pure functions; any thread.
#pragma once

#include "shared/algorithm/train_fields.hpp"

#include <doctest/doctest.h>

namespace fl::test {

/// Settings of which each differs from its default and from the others.
inline TrainSettings unusual_settings() {
  const TrainSettings settings{
      .round = 7,
      .local_epochs = 3,
      .local_steps = 21,
      .local_seconds = 1.5,
      .batch_size = 9,
      .accumulate = 4,
      .optimizer = {.kind = LocalOptimizer::Kind::adamw, .beta1 = 0.75, .epsilon = 1e-3},
      .lr = 0.125,
      .momentum = 0.875,
      .weight_decay = 0.0625,
      .clip_norm = 2.5,
      .proximal_mu = 0.5,
      .deadline_s = 0.29,
      .seed = ~std::uint64_t{0},
  };
  for_each_train_field([&](const auto& row) {
    CAPTURE(row.name);
    CHECK(settings.*row.member != TrainSettings{}.*row.member);
  });
  return settings;
}

}  // namespace fl::test
