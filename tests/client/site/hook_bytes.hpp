// SPDX-License-Identifier: Apache-2.0
// How many bytes a gradient hook has to send, by its definition: hooks_test holds the hooks against
// it, and sites_bench shows it beside what it has counted.
#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace fl::test {

/// A bucket of a matrix and of so many other elements, on `ranks` ranks.
struct HookLoad {
  double ranks = 2;
  double rows = 0;
  double columns = 0;
  double others = 0;
};

/// By hook: the bytes that all ranks send together in a step, after the hook's start. Hooks that
/// code entropy are left out: what they send depends on the values.
inline std::vector<std::pair<std::string, double>> hook_bytes(const HookLoad& of) {
  const double n = of.rows * of.columns + of.others;
  const double sum = 2 * (of.ranks - 1);         // A part of a byte counts.
  const double all = of.ranks * (of.ranks - 1);  // A gather of a byte from each.
  const double flag = sum * 8;                   // Whether all gradients are finite.
  const double hundredth = std::floor(n / 100);
  const double bits = std::ceil(n / 8);
  const double side = std::ceil(std::sqrt(n));  // All elements as a square.
  const auto factors = [&of](double rank) { return rank * (of.rows + of.columns) + of.others; };
  return {
      {"allreduce", sum * 4 * n},
      {"fp16", sum * 2 * n + flag},
      {"bf16", sum * 2 * n},
      {"powersgd:4,start=2", sum * 4 * factors(4) + flag},
      {"bf16+powersgd:2,start=2", sum * 2 * factors(2) + flag},
      {"batched-powersgd:2,start=2", sum * 4 * 2 * side * 2 + flag},
      {"batched-powersgd:4,start=2", sum * 4 * 2 * side * 4 + flag},
      {"quantize:8", all * (n + 8) + flag},
      {"quantize:8,channel=512", all * (n + 8 * std::ceil(n / 512)) + flag},
      {"topk:0.01", all * hundredth * 8 + flag},
      {"bf16+topk:0.01", all * hundredth * 6 + flag},
      {"randk:0.01", sum * 4 * hundredth + flag},
      {"sign", all * (bits + 8) + flag},
      {"onebit-adam:2", sum * bits + all * 8 + flag},
      {"codec:none", all * (4 * n + 8)},
  };
}

}  // namespace fl::test
