// SPDX-License-Identifier: Apache-2.0
// The table of gradient hooks, and the specs that name them:
//
//   SPEC = ["fp16+" | "bf16+"] NAME [":" ARGUMENT] {"," KEY "=" VALUE}  |  "codec:" CODEC
//
// "powersgd:4,start=10" is the same as "powersgd:rank=4,start=10". With a prefix the whole hook
// works on gradients of 16 bits. To add a hook, write its file in this folder, declare its function
// in hooks.hpp, and add a row and the file to CMakeLists.txt. Any thread.
#pragma once

#include "client/site/rank/gradient_hook.hpp"
#include "shared/base/error.hpp"
#include "shared/base/spec/spec_options.hpp"

#include <memory>
#include <span>
#include <string_view>

namespace fl {

struct HookRow {
  std::string_view name;
  std::string_view usage;  // The grammar, for help.
  std::string_view about;  // One line, for help.
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
  /// Makes the hook, and asks `options` for all its settings.
  std::unique_ptr<GradientHook> (*make)(SpecOptions& options) = nullptr;
};

/// All rows but "codec", in the order in which help shows them.
[[nodiscard]] std::span<const HookRow> hook_rows();

/// A hook in its first step, with the row of the table that it comes from (null: "codec").
struct ParsedHook {
  std::unique_ptr<GradientHook> hook;
  const HookRow* row = nullptr;
};

/// Errors: invalid_input, with the names that exist, or with the settings that the hook has.
[[nodiscard]] Result<ParsedHook> parse_hook(std::string_view spec);

}  // namespace fl
