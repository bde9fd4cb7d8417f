// SPDX-License-Identifier: Apache-2.0
// Number formats of ranks that train together: they leave out, repeat and fall back in the same
// steps, whatever each has computed.
#include "tests/client/site/trained_ranks.hpp"  // libtorch before doctest: both have CHECK.

#include <doctest/doctest.h>
#include <string>

namespace fl::test {
namespace {

void check_alike(const std::vector<Trained>& ranks) {
  for (const Trained& rank : ranks) {
    CHECK(rank.update == ranks[0].update);
    CHECK(rank.report.steps == ranks[0].report.steps);
    CHECK(rank.report.fall_backs.fp32_steps == ranks[0].report.fall_backs.fp32_steps);
    CHECK(rank.report.fall_backs.overflows == ranks[0].report.fall_backs.overflows);
    CHECK(rank.report.fall_backs.odd_norms == ranks[0].report.fall_backs.odd_norms);
  }
}

/// Weights so large that gradients overflow fp16 at the first loss scales.
Training overflowing(const std::string& precision, std::uint32_t steps) {
  Training training;
  training.model = "mlp";
  training.precision = precision;
  training.settings = {.local_steps = steps, .batch_size = 1, .lr = 1e-4, .seed = 9};
  training.weights_times = 6;
  return training;
}

}  // namespace

TEST_CASE("an adaptive step that overflows is that of fp32, on any number of ranks") {
  for (const int size : {1, 2, 4}) {
    CAPTURE(size);
    const auto whole = train_ranks(size, overflowing("fp32", 1));
    const auto adaptive = train_ranks(size, overflowing("adaptive:fp16", 1));
    check_alike(adaptive);
    CHECK(adaptive[0].report.fall_backs.overflows == 1);
    CHECK(adaptive[0].report.fall_backs.fp32_steps == 1);
    CHECK(adaptive[0].update == whole[0].update);
    // Without it the step is left out, and the next batch takes its place.
    CHECK(train_ranks(size, overflowing("fp16", 1))[0].update != whole[0].update);
  }
}

TEST_CASE("adaptive ranks leave no step out, and fall back alike in each run") {
  for (const int size : {1, 2, 4}) {
    CAPTURE(size);
    const Training training = overflowing("adaptive:fp16", 40);
    const auto ranks = train_ranks(size, training);
    check_alike(ranks);
    const FallBacks& fall_backs = ranks[0].report.fall_backs;
    CHECK(ranks[0].report.steps == 40);
    CHECK(fall_backs.overflows > 0);
    CHECK(fall_backs.fp32_steps >= fall_backs.overflows);
    CHECK(fall_backs.fp32_steps < 40);
    const auto again = train_ranks(size, training);
    CHECK(again[0].update == ranks[0].update);
    CHECK(again[0].report.fall_backs.fp32_steps == fall_backs.fp32_steps);
  }
}

TEST_CASE("ranks whose gradients are their own leave out and repeat the same steps") {
  for (const std::string precision : {"fp16", "adaptive:fp16"}) {
    for (const int size : {2, 4}) {
      CAPTURE(precision);
      CAPTURE(size);
      Training training = overflowing(precision, 12);
      training.hook = "post-local-sgd:3,start=0";
      const auto ranks = train_ranks(size, training);
      check_alike(ranks);
      CHECK(ranks[0].report.steps == 12);
      CHECK(train_ranks(size, training)[0].update == ranks[0].update);
    }
  }
}

TEST_CASE("passes in bf16 go with top-k in bf16: the bytes are those of theory") {
  constexpr std::int64_t elements = 44'426;
  constexpr std::int64_t kept = 4'443;  // A tenth, with 4 bytes of place and 2 of value for each.
  for (const int size : {1, 2, 4}) {
    CAPTURE(size);
    Training training;
    training.precision = "bf16";
    training.hook = "bf16+topk:0.1";
    const auto ranks = train_ranks(size, training);
    check_alike(ranks);
    CHECK(train_ranks(size, training)[0].update == ranks[0].update);
    CHECK(ranks[0].update.size() == elements);
    const auto agreed = static_cast<std::uint64_t>(16 * (size - 1) / size);
    const auto step = static_cast<std::uint64_t>((size - 1) * 6 * kept) + agreed;
    CHECK(ranks[0].report.steps == 6);
    CHECK(ranks[0].gradient_bytes == 6 * step);
    // Top-k of one rank is not what all gradients would make, but near it.
    training.hook = "allreduce";
    const auto whole = train_ranks(size, training);
    CHECK(ranks[0].update != whole[0].update);
  }
}

TEST_CASE("layers have formats of their own on all ranks") {
  Training training;
  const auto of = [&](const std::string& precision) {
    training.precision = precision;
    const auto ranks = train_ranks(2, training);
    check_alike(ranks);
    return ranks[0].update;
  };
  const auto whole = of("fp32");
  const auto low = of("bf16");
  const auto mixed = of("bf16,fc*=fp32");
  CHECK(mixed != whole);
  CHECK(mixed != low);
  CHECK(of("bf16,fc*=fp32") == mixed);
  CHECK(of("fp32,conv*=bf16") == mixed);
}

}  // namespace fl::test
