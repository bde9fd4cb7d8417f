// SPDX-License-Identifier: Apache-2.0
#include "client/learn/torch/loss_scale.hpp"

#include <doctest/doctest.h>

namespace {

void note_good(fl::LossScale& scale, int steps) {
  for (int step = 0; step < steps; ++step) scale.note(false);
}

}  // namespace

TEST_CASE("an overflow halves the scale, and 2000 steps in a row without one double it") {
  fl::LossScale scale;
  CHECK(scale.factor() == 65536);
  scale.note(true);
  CHECK(scale.factor() == 32768);
  note_good(scale, 1999);
  CHECK(scale.factor() == 32768);
  note_good(scale, 1);
  CHECK(scale.factor() == 65536);
  note_good(scale, 1999);
  scale.note(true);  // The count of steps starts again.
  note_good(scale, 1999);
  CHECK(scale.factor() == 32768);
  note_good(scale, 1);
  CHECK(scale.factor() == 65536);
}

TEST_CASE("a scale is spent when no gradient fits, however small the scale") {
  fl::LossScale scale;
  for (int halvings = 0; halvings < 32; ++halvings) scale.note(true);
  CHECK_FALSE(scale.is_spent());
  scale.note(true);
  CHECK(scale.is_spent());
}
