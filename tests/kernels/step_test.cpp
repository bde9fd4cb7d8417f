// SPDX-License-Identifier: Apache-2.0
// The steps of optimizers: every row against the scalar row, bit for bit, and that row against the
// formulas in double.
#include "kernels/kernels.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

namespace {

using namespace fl;
using Rule = StepArgs::Rule;

std::vector<float> gaussian_values(std::size_t n, std::uint64_t seed) {
  std::vector<float> out(n);
  all_kernels().front()->gaussian(seed, 0, 0, out.data(), n);
  return out;
}

/// The vectors of a step.
struct Vectors {
  std::vector<float> weights, gradient, start, correction, first, second;

  explicit Vectors(std::size_t n)
      : weights(gaussian_values(n, 1)),
        gradient(gaussian_values(n, 2)),
        start(gaussian_values(n, 3)),
        correction(gaussian_values(n, 4)),
        first(gaussian_values(n, 5)),
        second(gaussian_values(n, 6)) {
    for (float& x : second) x *= x;  // A mean of squares.
  }

  void step(const Kernels& row, const StepArgs& args, bool has_correction, bool is_in_parts) {
    const bool has_first = args.rule != Rule::sgd;
    const StepVectors all{.weights = weights.data(),
                          .gradient = gradient.data(),
                          .start = start.data(),
                          .correction = has_correction ? correction.data() : nullptr,
                          .first = has_first ? first.data() : nullptr,
                          .second = args.rule == Rule::adam ? second.data() : nullptr};
    const std::size_t cut = is_in_parts ? weights.size() / 3 : weights.size();
    row.optimizer_step(all, cut, args);
    row.optimizer_step(all.from(cut), weights.size() - cut, args);
  }
  bool operator==(const Vectors& other) const {
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    return same(weights, other.weights) && same(gradient, other.gradient) &&
           same(first, other.first) && same(second, other.second);
  }
};

StepArgs args_of(Rule rule) {
  if (rule != Rule::adam)
    return {.rule = rule, .lr = 0.1f, .decay = 0.02f, .proximal = 0.3f, .beta1 = 0.9f};
  return {.rule = rule,
          .lr = 0.01f / 0.19f,  // After two steps: 1 - 0.9^2.
          .shrink = 0.999f,
          .proximal = 0.3f,
          .beta1 = 0.9f,
          .beta2 = 0.99f,
          .own1 = 0.1f,
          .own2 = 0.01f,
          .root_bias2 = std::sqrt(0.0199f),
          .epsilon = 1e-8f};
}

/// A weight after the step, by the formulas of the papers.
double weight_after(const Vectors& v, std::size_t i, const StepArgs& args, bool has_correction) {
  const double w = static_cast<double>(v.weights[i]) * args.shrink;
  const double g = v.gradient[i] + args.decay * w + args.proximal * (w - v.start[i]) +
                   (has_correction ? v.correction[i] : 0.0f);
  const double first = args.rule == Rule::adam
                           ? static_cast<double>(args.beta1) * v.first[i] + args.own1 * g
                           : static_cast<double>(args.beta1) * v.first[i] + g;
  switch (args.rule) {
    case Rule::sgd: return w - args.lr * g;
    case Rule::momentum: return w - args.lr * first;
    case Rule::nesterov: return w - args.lr * (g + args.beta1 * first);
    case Rule::adam: break;
  }
  const double second = static_cast<double>(args.beta2) * v.second[i] + args.own2 * g * g;
  return w - args.lr * first / (std::sqrt(second) / args.root_bias2 + args.epsilon);
}

}  // namespace

TEST_CASE("optimizer_step: rows agree for any rule, length and division, and follow the formulas") {
  for (const std::size_t n : {0, 1, 7, 8, 9, 31, 64, 1025}) {
    for (const Rule rule : {Rule::sgd, Rule::momentum, Rule::nesterov, Rule::adam}) {
      for (const bool has_correction : {false, true}) {
        CAPTURE(n);
        CAPTURE(static_cast<int>(rule));
        CAPTURE(has_correction);
        const Vectors before(n);
        const StepArgs args = args_of(rule);
        Vectors wanted = before;
        wanted.step(*all_kernels().front(), args, has_correction, false);
        for (std::size_t i = 0; i < n; ++i) {
          const double exact = weight_after(before, i, args, has_correction);
          REQUIRE(std::fabs(wanted.weights[i] - exact) <= 2e-6 * (1 + std::fabs(exact)));
          REQUIRE(wanted.gradient[i] == 0);
        }
        for (const Kernels* row : all_kernels()) {
          CAPTURE(row->name);
          Vectors whole = before;
          whole.step(*row, args, has_correction, false);
          CHECK(whole == wanted);
          Vectors parts = before;
          parts.step(*row, args, has_correction, true);
          CHECK(parts == wanted);
        }
      }
    }
  }
}

TEST_CASE("optimizer_step: what an optimizer does not use is left out") {
  Vectors plain(100);
  Vectors with_zeros(100);
  const StepArgs args{.rule = Rule::sgd, .lr = 0.1f};
  std::vector<float> none(100, 0.0f);
  with_zeros.correction = none;
  plain.step(kernels(), args, false, false);
  with_zeros.step(kernels(), args, true, false);
  CHECK(plain == with_zeros);
  CHECK(plain.first == Vectors(100).first);
  CHECK(plain.second == Vectors(100).second);
}
