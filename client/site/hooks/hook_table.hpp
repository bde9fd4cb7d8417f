// SPDX-License-Identifier: Apache-2.0
// The one table of a site's gradient hooks: how their specs read, what they are, and what they
// cost. Ranks bind factories to it by name (client/site/rank/hooks/parse_hook.hpp), `fl-client site
// recommend` compares the costs (client/site/plan/compression.hpp), and a test holds the table of
// docs/guide/choose-a-hook.md against it. Constants; any thread.
#pragma once

#include <span>
#include <string_view>

namespace fl::site {

/// How a hook's ranks exchange what they have coded.
enum class HookExchange {
  all_reduce,  // The codes can be added, so a ring sums them, as without a hook.
  parts,   // Each rank decodes and averages its part, codes the mean, and all gather it: as much
           // as an all-reduce of the codes.
  gather,  // Each rank gets every other one's code.
  seldom,  // Each rank joins an all-reduce in every post_local_steps-th step only.
};

/// The period of post-local-sgd that is compared, in steps.
inline constexpr int post_local_steps = 8;

/// How a hook changes the result.
enum class HookLoss { none, rounding, feedback, method };

/// The sizes that the number of bits may depend on.
struct HookSizes {
  double gradient_bits = 32;  // A value without a hook.
  double hidden = 0;          // Hidden size of the model's matrices.
  double values = 0;          // How many values one GPU reduces.
};

/// One setting of a hook, as `site recommend` compares it.
struct HookCost {
  std::string_view spec;  // A value of --hook; "hooks.codec …" is tributary_fl.hooks, for PyTorch.
  HookExchange exchange = HookExchange::all_reduce;
  HookLoss loss = HookLoss::none;
  double passes = 0;  // Coding time, relative to that of a codec.
  double bits = 0;    // On the wire, for each value. 0 if bits_by_size says them.
  double (*bits_by_size)(const HookSizes& sizes) = nullptr;

  [[nodiscard]] double bits_of(const HookSizes& sizes) const {
    return bits_by_size != nullptr ? bits_by_size(sizes) : bits;
  }
};

struct HookRow {
  std::string_view name;
  std::string_view usage;  // The grammar, for help.
  /// The key of what stands after the colon without a key; empty if there is no such thing.
  std::string_view argument = {};
  /// Whether "fp16+" and "bf16+" may stand before it.
  bool takes_16_bits = false;
  /// The hook returns a step, not a gradient, so the learner's optimizer must be SGD without
  /// momentum and without weight decay.
  bool returns_step = false;
  /// The ranks' gradients and parameters differ between the means that after_step() makes. Such a
  /// hook can't work between nodes (topology_hooks.hpp).
  bool is_local = false;
  std::span<const HookCost> costs = {};
};

/// The rows in the order in which help shows them, and in which `site recommend` shows hooks that
/// take equally long.
[[nodiscard]] std::span<const HookRow> hook_rows();

/// Null: there is no hook of this name.
[[nodiscard]] const HookRow* find_hook(std::string_view name);

}  // namespace fl::site
