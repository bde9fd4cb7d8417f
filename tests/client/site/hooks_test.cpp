// SPDX-License-Identifier: Apache-2.0
// Gradient hooks: against PyTorch's own, their bytes, their error feedback, their state, and what
// they do with gradients that are not finite.
#include "client/site/rank/hooks/parse_hook.hpp"
#include "tests/client/site/hook_bytes.hpp"
#include "tests/client/site/made_up_buckets.hpp"
#include "tests/client/site/rank_threads.hpp"  // libtorch before doctest: both have CHECK.

#include <doctest/doctest.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <array>
#include <atomic>
#include <cmath>
#include <fstream>
#include <iterator>
#include <mutex>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::site;
namespace {

/// Hooks whose mean over the ranks is the same on all ranks, in settings that compress at once.
const std::vector<std::string> specs = {"allreduce",
                                        "fp16",
                                        "bf16",
                                        "fp16+allreduce",
                                        "powersgd:2,start=2,rate=1",
                                        "powersgd:4,start=2,rate=1",
                                        "bf16+powersgd:1,start=2,rate=1",
                                        "batched-powersgd:2,start=2",
                                        "quantize:8",
                                        "quantize:8,channel=64",
                                        "topk:0.1",
                                        "bf16+topk:0.1",
                                        "randk:0.1",
                                        "qsgd:4",
                                        "sign",
                                        "onebit-adam:2",
                                        "codec:none",
                                        "codec:topk:0.1+qsgd:4+ef",
                                        "codec:topk:0.1+dgc:0.5",
                                        "codec:powersgd:2+ef",
                                        "codec:ecuq:2+ef"};

std::unique_ptr<GradientHook> hook_of(const std::string& spec) {
  auto parsed = parse_hook(spec);
  if (!parsed) throw std::runtime_error(parsed.error().message());
  return std::move(parsed->hook);
}

/// The result of a hook for one step, all buckets one behind the other.
torch::Tensor step_of(GradientHook& hook, Ranks& ranks, std::int64_t step) {
  std::vector<torch::Tensor> means;
  for (std::size_t index = 0; index < bucket_shapes().size(); ++index) {
    Bucket bucket = made_up_bucket(bucket_shapes(), index, step, ranks.rank());
    hook.reduce(bucket, ranks);
    means.push_back(bucket.gradient);
  }
  return torch::cat(means);
}

torch::Tensor mean_of_step(int size, std::int64_t step) {
  std::vector<torch::Tensor> means;
  for (std::size_t index = 0; index < bucket_shapes().size(); ++index) {
    torch::Tensor sum;
    for (int rank = 0; rank < size; ++rank) {
      const torch::Tensor values = made_up_bucket(bucket_shapes(), index, step, rank).gradient;
      sum = rank == 0 ? values.clone() : sum + values;
    }
    means.push_back(sum / size);
  }
  return torch::cat(means);
}

/// Whether two tensors have the same bits, but for the payload of a NaN.
bool same(const torch::Tensor& a, const torch::Tensor& b) {
  return a.isnan().equal(b.isnan()) && a.nan_to_num(0).equal(b.nan_to_num(0));
}

std::map<std::string, torch::Tensor> read_gold() {
  std::ifstream file(FL_HOOK_GOLD, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  std::map<std::string, torch::Tensor> gold;
  for (const auto& entry : torch::pickle_load(bytes).toGenericDict())
    gold[entry.key().toStringRef()] = entry.value().toTensor();
  return gold;
}

/// make_hook_gold.py's probe(): where its bits differ, so do those of the hooks that multiply.
torch::Tensor probe() {
  std::vector<torch::Tensor> parts;
  for (const auto type : {torch::kFloat32, torch::kFloat16, torch::kBFloat16}) {
    for (const auto& [n, m, rank] : std::vector<std::array<std::int64_t, 3>>{
             {12, 10, 1}, {6, 45, 2}, {16, 12, 4}, {20, 20, 2}}) {
      const torch::Tensor matrix = made_up_values(n * m, 1, n, m).view({1, n, m}).to(type);
      const torch::Tensor factor = made_up_values(m * rank, 2, n, m).view({1, m, rank}).to(type);
      const torch::Tensor product = torch::bmm(matrix, factor);
      parts.push_back(product.to(torch::kFloat32).flatten());
      parts.push_back(torch::bmm(matrix.transpose(1, 2), product).to(torch::kFloat32).flatten());
      if (type == torch::kFloat32)
        parts.push_back(std::get<0>(torch::linalg_qr(product)).flatten());
    }
  }
  return torch::cat(parts);
}

}  // namespace

TEST_CASE("hooks give the bits of PyTorch's own") {
  const std::map<std::string, torch::Tensor> gold = read_gold();
  REQUIRE(gold.size() == 97);
  torch::set_num_threads(1);
  const bool is_same_arithmetic = probe().equal(gold.at("probe"));
  if (!is_same_arithmetic)
    MESSAGE(
        "this processor multiplies matrices in other bits than the one of the gold file: "
        "powersgd is compared with a tolerance");
  std::map<std::string, std::vector<std::pair<std::string, torch::Tensor>>> by_spec;
  for (const auto& [name, values] : gold) {
    if (name == "probe") continue;
    const std::string rest = name.substr(2);
    by_spec[name.substr(0, 2) + rest.substr(0, rest.size() - 4)].emplace_back(
        rest.substr(rest.size() - 3), values);
  }
  CHECK(by_spec.size() == 24);
  for (const auto& [name, expected] : by_spec) {
    CAPTURE(name);
    const int size = name[0] - '0';
    const std::string spec = name.substr(2);
    std::mutex mutex;
    std::map<std::string, std::vector<torch::Tensor>> found;
    on_ranks(size, [&](Ranks& ranks) {
      const auto hook = hook_of(spec);
      for (int step = 0; step < 5; ++step) {
        for (std::size_t index = 0; index < bucket_shapes().size(); ++index) {
          Bucket bucket = made_up_bucket(bucket_shapes(), index, step, ranks.rank());
          hook->reduce(bucket, ranks);
          const std::lock_guard lock(mutex);
          found[std::to_string(step) + "/" + std::to_string(index)].push_back(bucket.gradient);
        }
      }
    });
    for (const auto& [place, values] : expected) {
      CAPTURE(place);
      const bool multiplies = spec.find("powersgd") != std::string::npos;
      for (const torch::Tensor& mean : found.at(place)) {
        if (is_same_arithmetic || !multiplies)
          CHECK(same(mean, values));
        else
          CHECK(torch::allclose(mean, values, 1e-3, spec.starts_with("powersgd") ? 1e-4 : 0.1));
      }
    }
  }
}

TEST_CASE("all ranks get the same bits, also of a gradient that is not finite on one of them") {
  for (const std::string& spec : specs) {
    CAPTURE(spec);
    std::vector<std::vector<torch::Tensor>> found(3);
    on_ranks(3, [&](Ranks& ranks) {
      const auto hook = hook_of(spec);
      auto& mine = found[static_cast<std::size_t>(ranks.rank())];
      for (int step = 0; step < 4; ++step) mine.push_back(step_of(*hook, ranks, step));
      for (const float bad : {INFINITY, NAN}) {
        for (std::size_t index = 0; index < bucket_shapes().size(); ++index) {
          Bucket bucket = made_up_bucket(bucket_shapes(), index, 4, ranks.rank());
          if (ranks.rank() == 1 && index == 0) bucket.gradient[17] = bad;
          hook->reduce(bucket, ranks);
          mine.push_back(bucket.gradient);
        }
      }
      mine.push_back(step_of(*hook, ranks, 5));
    });
    for (std::size_t i = 0; i < found[0].size(); ++i) {
      CAPTURE(i);
      CHECK(same(found[0][i], found[1][i]));
      CHECK(same(found[0][i], found[2][i]));
      const bool is_bad = i == 4 || i == 6;
      CHECK(found[0][i].isfinite().all().item<bool>() == !is_bad);
      CHECK(found[0][i].count_nonzero().item<std::int64_t>() > 0);
    }
    CHECK_FALSE(std::isfinite(found[0][4][17].item<float>()));
    CHECK(std::isnan(found[0][6][17].item<float>()));
  }
}

TEST_CASE("a gradient that is too large for fp16 goes as fp32") {
  std::atomic<int> right = 0;
  on_ranks(2, [&](Ranks& ranks) {
    for (const std::string spec : {"fp16", "fp16+powersgd:1,start=2", "fp16+topk:0.5"}) {
      const auto hook = hook_of(spec);
      Bucket bucket = made_up_bucket(bucket_shapes(), 0, 0, ranks.rank());
      const torch::Tensor mean = (made_up_bucket(bucket_shapes(), 0, 0, 0).gradient +
                                  made_up_bucket(bucket_shapes(), 0, 0, 1).gradient) /
                                 2;
      if (ranks.rank() == 0) bucket.gradient[5] = 1e6F;
      hook->reduce(bucket, ranks);
      const auto large = bucket.gradient[5].item<float>();
      right += large > 4.9e5F && large < 5.1e5F;
      right += torch::allclose(bucket.gradient.narrow(0, 6, 100), mean.narrow(0, 6, 100), 1e-6);
    }
  });
  CHECK(right == 2 * 3 * 2);
}

TEST_CASE("what error feedback keeps back is sent later: nothing is lost in the sum of steps") {
  constexpr int size = 3;
  constexpr int steps = 12;
  for (const std::string& spec :
       {std::string("powersgd:1,start=2,rate=1"), std::string("batched-powersgd:1,start=2"),
        std::string("topk:0.1"), std::string("randk:0.1"), std::string("sign"),
        std::string("codec:topk:0.1,dense_below=1+qsgd:4+ef"), std::string("codec:ecuq:1+ef")}) {
    CAPTURE(spec);
    std::mutex mutex;
    torch::Tensor kept = torch::zeros({5}, torch::kFloat64);  // Sums by parameter.
    torch::Tensor sum;
    on_ranks(size, [&](Ranks& ranks) {
      const auto hook = hook_of(spec);
      torch::Tensor own;
      for (int step = 0; step < steps; ++step) {
        const torch::Tensor mean = step_of(*hook, ranks, step);
        own = step == 0 ? mean : own + mean;
      }
      const std::lock_guard lock(mutex);
      sum = own;
      for (const auto& [name, values] : hook->save())
        if (name.starts_with("residual/") &&
            name[9] != '-')  // The norm of a padding does not count.
          kept[std::stoi(name.substr(9))] += values.to(torch::kFloat64).sum() / size;
    });
    torch::Tensor expected;
    for (int step = 0; step < steps; ++step)
      expected = step == 0 ? mean_of_step(size, 0) : expected + mean_of_step(size, step);
    const torch::Tensor missing = (expected - sum).to(torch::kFloat64);
    CHECK(missing.abs().max().item<double>() > 0.01);  // Something was kept back.
    std::int64_t offset = 0;
    for (const Shapes& shapes : bucket_shapes()) {
      for (const auto& [parameter, shape] : shapes) {
        const std::int64_t count = c10::multiply_integers(shape);
        CHECK(missing.narrow(0, offset, count).sum().item<double>() ==
              doctest::Approx(kept[parameter].item<double>()).epsilon(1e-3).scale(10));
        offset += count;
      }
    }
  }
}

TEST_CASE("a hook goes on with its saved state as if it had not stopped") {
  for (const std::string& spec : specs) {
    CAPTURE(spec);
    std::atomic<int> right = 0;
    on_ranks(2, [&](Ranks& ranks) {
      const auto hook = hook_of(spec);
      for (int step = 0; step < 4; ++step) (void)step_of(*hook, ranks, step);
      const auto again = hook_of(spec);
      again->load(hook->save());
      right += step_of(*again, ranks, 4).equal(step_of(*hook, ranks, 4));
      right += step_of(*again, ranks, 5).equal(step_of(*hook, ranks, 5));
    });
    CHECK(right == 4);
  }
}

namespace {

/// Rounds to 16 bits and sends 32: what a hook must not do.
class CastForNothing final : public GradientHook {
 public:
  void reduce(Bucket& bucket, Ranks& ranks) override {
    bucket.gradient.copy_(bucket.gradient.to(torch::kBFloat16));
    ranks.sum(bucket.gradient.div_(ranks.size()));
  }
};

struct Counted {
  std::uint64_t said = 0;
  std::uint64_t carried = 0;
};

/// The bytes that all ranks send for a matrix 500 x 400 and a vector of 3, in step 3 of a hook.
Counted bytes_of(int size, const std::function<std::unique_ptr<GradientHook>()>& make) {
  const std::vector<Shapes> shapes = {{{0, {500, 400}}, {1, {3}}}};
  std::atomic<std::uint64_t> said = 0;
  std::uint64_t before = 0;
  std::uint64_t after = 0;
  on_ranks(size, [&](Ranks& ranks) {
    const auto hook = make();
    for (int step = 0; step < 4; ++step) {
      Bucket bucket = made_up_bucket(shapes, 0, step, ranks.rank());
      ranks.barrier();
      if (step == 3 && ranks.rank() == 0) before = socket_bytes();
      ranks.barrier();
      const std::uint64_t begin = ranks.bytes_sent();
      hook->reduce(bucket, ranks);
      if (step == 3) said += ranks.bytes_sent() - begin;
      ranks.barrier();
      if (step == 3 && ranks.rank() == 0) after = socket_bytes();
      ranks.barrier();
    }
  });
  return {.said = said, .carried = after - before};
}

}  // namespace

TEST_CASE("each hook sends what theory says, on the sockets too") {
  for (const double size : {2., 3.}) {
    const auto theory = hook_bytes({.ranks = size, .rows = 500, .columns = 400, .others = 3});
    for (const auto& [spec, expected] : theory) {
      CAPTURE(spec);
      CAPTURE(size);
      const Counted bytes = bytes_of(static_cast<int>(size), [&] { return hook_of(spec); });
      CHECK(static_cast<double>(bytes.said) == doctest::Approx(expected).epsilon(0.005));
      // Gloo adds a header to each message, and sends two messages at once to hide their delay.
      CHECK(static_cast<double>(bytes.carried) >= 0.995 * expected);
      CHECK(static_cast<double>(bytes.carried) <= 1.01 * expected + 15'000);
    }
    const Counted wasted =
        bytes_of(static_cast<int>(size), [] { return std::make_unique<CastForNothing>(); });
    CHECK(static_cast<double>(wasted.carried) > 1.9 * theory[2].second);
  }
}

TEST_CASE("codecs send less than 8 bits where they promise to") {
  const Counted qsgd = bytes_of(2, [] { return hook_of("qsgd:4"); });
  CHECK(qsgd.said < 2 * 200'003 / 2 * 1.05);
  CHECK(qsgd.said > 2 * 200'003 / 2 * 0.95);
  const Counted ecuq = bytes_of(2, [] { return hook_of("codec:ecuq:1+ef"); });
  CHECK(ecuq.said < 2 * 200'003 / 8 * 1.5);
  CHECK(ecuq.said > 2 * 200'003 / 8 * 0.5);
}

TEST_CASE("post-local-sgd sends gradients before its start, and then parameters now and then") {
  constexpr std::int64_t n = 10'000;
  constexpr std::uint64_t whole = std::uint64_t{2} * 2 * 4 * n;  // A sum over three ranks, of all.
  for (const bool has_begun : {false, true}) {
    CAPTURE(has_begun);
    std::array<std::atomic<std::uint64_t>, 4> in_steps{};
    std::array<std::atomic<std::uint64_t>, 4> after_steps{};
    on_ranks(3, [&](Ranks& ranks) {
      const auto hook =
          hook_of(has_begun ? "post-local-sgd:2,start=0" : "post-local-sgd:2,start=9");
      std::vector<torch::Tensor> parameters = {made_up_values(n, 0, ranks.rank(), 0)};
      for (std::size_t step = 0; step < 4; ++step) {
        Bucket bucket = made_up_bucket({{{0, {n}}}}, 0, static_cast<std::int64_t>(step), 0);
        const std::uint64_t begin = ranks.bytes_sent();
        hook->reduce(bucket, ranks);
        const std::uint64_t middle = ranks.bytes_sent();
        hook->after_step(parameters, step == 3, ranks);
        in_steps[step] += middle - begin;
        after_steps[step] += ranks.bytes_sent() - middle;
      }
    });
    for (std::size_t step = 0; step < 4; ++step) {
      CAPTURE(step);
      const double in_step = has_begun ? 0 : whole;
      const bool is_due = step == 3 || (has_begun && step % 2 == 0);  // The last is of the round.
      CHECK(static_cast<double>(in_steps[step]) == doctest::Approx(in_step).epsilon(0.001));
      CHECK(static_cast<double>(after_steps[step]) ==
            doctest::Approx(is_due ? whole : 0).epsilon(0.001));
    }
  }
}

}  // namespace fl::test
