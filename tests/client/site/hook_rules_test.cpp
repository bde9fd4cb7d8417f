// SPDX-License-Identifier: Apache-2.0
// Single hooks: what they compute, and how their specs read.
#include "client/site/rank/hooks/low_rank_hook.hpp"
#include "client/site/rank/hooks/parse_hook.hpp"
#include "tests/client/site/made_up_buckets.hpp"
#include "tests/client/site/rank_threads.hpp"  // libtorch before doctest: both have CHECK.

#include <doctest/doctest.h>
#include <atomic>
#include <set>
#include <string>

namespace fl::test {

using namespace fl::site;
namespace {

std::string error_of(std::string_view spec) {
  const auto parsed = parse_hook(spec);
  return parsed ? "none" : parsed.error().message();
}

const std::vector<Shapes> one_vector = {{{0, {1000}}}};

}  // namespace

TEST_CASE("specs name hooks, and errors say what there is") {
  for (const HookRow& row : hook_rows()) {
    CAPTURE(row.name);
    CHECK(row.usage.starts_with(row.name));
    const bool needs_argument = !row.argument.empty();
    const std::string spec = std::string(row.name) + (needs_argument ? ":1" : "");
    const std::string shown = row.name == "quantize" ? "quantize:8"
                              : row.name == "qsgd"   ? "qsgd:4"
                              : row.name == "codec"  ? "codec:none"
                                                     : spec;
    CHECK(error_of(shown) == "none");
    CHECK(&parse_hook(shown)->row == &row);
    CHECK((error_of("bf16+" + shown) == "none") == row.takes_16_bits);
    CHECK(error_of(shown + (needs_argument ? "," : ":") + "nosuch=1").find("nosuch") !=
          std::string::npos);
  }
  CHECK(error_of("powersgd:4,start=10") == "none");
  CHECK(error_of("powersgd:rank=4,start=10") == "none");
  CHECK(error_of("powersgd:0") != "none");
  CHECK(error_of("powersgd:4,start=1") != "none");
  CHECK(error_of("topk:1.5") != "none");
  CHECK(error_of("quantize:4") != "none");
  CHECK(error_of("qsgd:9") != "none");
  CHECK(error_of("codec:topk:0.01+qsgd:4+ef") == "none");
  CHECK(error_of("codec:nosuch").find("nosuch") != std::string::npos);
  CHECK(error_of("codec:delta+qsgd:4").find("delta+") != std::string::npos);
  CHECK(error_of("bf16+codec:none").find("16 bits") != std::string::npos);
  CHECK(error_of("") != "none");
  CHECK(error_of("nosuch").find("powersgd:RANK") != std::string::npos);
}

TEST_CASE("the start seeds are those of numpy's RandomState(0).randint(10**9)") {
  StartSeeds seeds;
  CHECK(seeds.next() == 209'652'396);
  CHECK(seeds.next() == 398'764'591);
  CHECK(seeds.next() == 924'231'285);
  StartSeeds later;
  later.skip_to(3);
  CHECK(later.next() == seeds.next());
}

TEST_CASE("topk sends the largest values of each rank, and randk the same places of all") {
  std::atomic<int> right = 0;
  on_ranks(2, [&](Ranks& ranks) {
    const auto topk = std::move(parse_hook("topk:0.002")->hook);
    Bucket bucket = made_up_bucket(one_vector, 0, 0, ranks.rank());
    bucket.gradient[10 + ranks.rank()] = 100;
    bucket.gradient[500] = -50;
    topk->reduce(bucket, ranks);
    torch::Tensor expected = torch::zeros({1000});
    expected[10] = expected[11] = 50;
    expected[500] = -50;
    right += bucket.gradient.equal(expected);

    const auto randk = std::move(parse_hook("randk:0.25")->hook);
    std::set<std::int64_t> places;
    for (int step = 0; step < 3; ++step) {
      Bucket other = made_up_bucket(one_vector, 0, step, ranks.rank());
      other.gradient.fill_(1 + ranks.rank());
      randk->reduce(other, ranks);
      const torch::Tensor sent = other.gradient.nonzero().flatten();
      right += sent.numel() == 250;
      for (std::int64_t i = 0; i < sent.numel(); ++i) places.insert(sent[i].item<std::int64_t>());
    }
    right += places.size() > 500 && places.size() < 650;  // Others in each step: 578 expected.
  });
  CHECK(right == 2 * 5);
}

TEST_CASE("qsgd is unbiased") {
  std::atomic<int> right = 0;
  on_ranks(2, [&](Ranks& ranks) {
    const auto hook = std::move(parse_hook("qsgd:2")->hook);
    torch::Tensor sum = torch::zeros({1000});
    const int steps = 150;
    for (int step = 0; step < steps; ++step) {
      Bucket bucket = made_up_bucket(one_vector, 0, 0, 0);
      hook->reduce(bucket, ranks);
      sum += bucket.gradient;
    }
    const torch::Tensor error = sum / steps - made_up_bucket(one_vector, 0, 0, 0).gradient;
    right += error.mean().abs().item<double>() < 0.15;
    right += error.norm().item<double>() <
             0.5 * made_up_bucket(one_vector, 0, 0, 0).gradient.norm().item<double>();
  });
  CHECK(right == 4);
}

TEST_CASE("onebit-adam is Adam in its warm-up, and goes on to the minimum after it") {
  std::atomic<int> right = 0;
  on_ranks(3, [&](Ranks& ranks) {
    // Each rank pulls towards its own centre; the mean of the centres is the minimum.
    const torch::Tensor centre = made_up_values(1000, 0, ranks.rank(), 0);
    torch::Tensor mean = centre.clone();
    ranks.sum(mean.div_(3));
    const auto hook = std::move(parse_hook("onebit-adam:20")->hook);
    torch::Tensor weights = torch::zeros({1000});
    torch::Tensor reference = torch::zeros({1000});
    torch::optim::Adam adam({reference}, torch::optim::AdamOptions(0.05));
    double at_the_end_of_warm_up = 0;
    for (int step = 0; step < 300; ++step) {
      Bucket bucket = made_up_bucket(one_vector, 0, step, ranks.rank());
      bucket.gradient.copy_(weights - centre);
      hook->reduce(bucket, ranks);
      weights.sub_(bucket.gradient, 0.05 * std::pow(0.985, step));
      if (step < 20) {
        reference.mutable_grad() = reference - mean;
        static_cast<torch::optim::AdamOptions&>(adam.param_groups()[0].options())
            .lr(0.05 * std::pow(0.985, step));
        adam.step();
        right += torch::allclose(weights, reference, 1e-3, 1e-4);
      }
      if (step == 19) at_the_end_of_warm_up = (weights - mean).norm().item<double>();
    }
    right += (weights - mean).norm().item<double>() < 0.3 * at_the_end_of_warm_up;
  });
  CHECK(right == 3 * 21);
}

TEST_CASE("onebit-adam's variance stands still after its warm-up, and its momentum goes on") {
  std::atomic<int> right = 0;
  on_ranks(2, [&](Ranks& ranks) {
    const auto hook = std::move(parse_hook("onebit-adam:20")->hook);
    // All entries of one kind, as bits.
    const auto kept = [&hook](const std::string& kind) {
      std::vector<torch::Tensor> values;
      for (const auto& [name, tensor] : hook->save())
        if (name.starts_with(kind + "/")) values.push_back(tensor.flatten());
      return torch::cat(values);
    };
    auto train_to = [&, step = 0](int end) mutable {
      for (; step < end; ++step) {
        Bucket bucket = made_up_bucket(one_vector, 0, step, ranks.rank());
        hook->reduce(bucket, ranks);
      }
    };
    train_to(19);
    const torch::Tensor before = kept("variance");
    train_to(20);
    const torch::Tensor variance = kept("variance");
    const torch::Tensor momentum = kept("momentum");
    train_to(40);
    right += variance.numel() == 1000;
    right += !variance.equal(before);
    right += kept("variance").equal(variance);
    right += !kept("momentum").equal(momentum);
  });
  CHECK(right == 2 * 4);
}

TEST_CASE("post-local-sgd averages gradients at first, then groups, and parameters in between") {
  std::atomic<int> right = 0;
  on_ranks(4, [&](Ranks& ranks) {
    const auto hook = std::move(parse_hook("post-local-sgd:2,start=1,group=2")->hook);
    const auto gradient = [&] {
      Bucket bucket = made_up_bucket(one_vector, 0, 0, 0);
      bucket.gradient.fill_(ranks.rank());
      hook->reduce(bucket, ranks);
      return bucket.gradient[7].item<float>();
    };
    std::vector<torch::Tensor> parameters = {torch::zeros({3}), torch::zeros({2, 2})};
    const auto parameter = [&](bool is_last) {
      for (torch::Tensor& values : parameters) values.fill_(ranks.rank());
      hook->after_step(parameters, is_last, ranks);
      return parameters[1][0][1].item<float>();
    };
    const auto own = static_cast<float>(ranks.rank());
    const float of_group = ranks.rank() < 2 ? 0.5F : 2.5F;
    right += gradient() == 1.5F;  // Step 0: the mean of all.
    right += parameter(false) == own;
    right += gradient() == of_group;    // Step 1.
    right += parameter(false) == 1.5F;  // (1 - start) % 2 = 0: as PyTorch's averager.
    right += gradient() == of_group;
    right += parameter(false) == own;
    right += gradient() == of_group;
    right += parameter(false) == 1.5F;
    right += parameter(true) == 1.5F;  // The last step of a round.
  });
  CHECK(right == 4 * 9);
}

}  // namespace fl::test
