// SPDX-License-Identifier: Apache-2.0
// Makes gradient hooks of the specs that name them (client/site/hooks/hook_table.hpp):
//
//   SPEC = ["fp16+" | "bf16+"] NAME [":" ARGUMENT] {"," KEY "=" VALUE}  |  "codec:" CODEC
//
// "powersgd:4,start=10" is the same as "powersgd:rank=4,start=10". With a prefix the whole hook
// works on gradients of 16 bits. To add a hook, write its file in this folder, declare its function
// in hooks.hpp, name it in parse_hook.cpp, add a row to the table and the file to CMakeLists.txt.
// Any thread.
#pragma once

#include "client/site/hooks/hook_table.hpp"
#include "client/site/rank/gradient_hook.hpp"
#include "shared/base/error.hpp"

#include <memory>
#include <string_view>

namespace fl::site {

/// A hook in its first step, with its row of the table.
struct ParsedHook {
  std::unique_ptr<GradientHook> hook;
  const HookRow& row;
};

/// Errors: invalid_input, with the names that exist, or with the settings that the hook has.
[[nodiscard]] Result<ParsedHook> parse_hook(std::string_view spec);

}  // namespace fl::site
