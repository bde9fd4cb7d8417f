// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/hooks/parse_hook.hpp"

#include "client/site/rank/hooks/hooks.hpp"
#include "shared/base/spec/nearest_name.hpp"
#include "shared/base/spec/spec_options.hpp"
#include "shared/base/spec/spec_text.hpp"

#include <algorithm>
#include <optional>
#include <string>

namespace fl::site {

namespace {

/// Makes a hook, and asks `options` for all its settings.
struct HookFactory {
  std::string_view name;  // The name of the row.
  std::unique_ptr<GradientHook> (*make)(SpecOptions& options);
};

/// One for each row of the table but "codec", whose settings are a codec's spec.
constexpr HookFactory factories[] = {
    {"allreduce", make_allreduce},
    {"bf16", make_bf16},
    {"fp16", make_fp16},
    {"quantize", make_quantize},
    {"qsgd", make_qsgd},
    {"topk", make_topk},
    {"randk", make_randk},
    {"sign", make_sign},
    {"onebit-adam", make_onebit_adam},
    {"powersgd", make_powersgd},
    {"post-local-sgd", make_post_local_sgd},
    {"batched-powersgd", make_batched_powersgd},
};

constexpr std::string_view codec_name = "codec";

std::string names() {
  std::string text;
  for (const HookRow& row : hook_rows()) {
    if (!text.empty()) text += ", ";
    text += row.usage;
  }
  return text + "; fp16+HOOK or bf16+HOOK";
}

/// "powersgd:4,start=10" as "powersgd:rank=4,start=10".
std::string with_key(std::string_view spec, const HookRow& row) {
  const auto [name, settings] = cut(spec, ':');
  if (!settings || row.argument.empty()) return std::string(spec);
  const std::string_view first = cut(*settings, ',').first;
  if (first.find('=') != std::string_view::npos) return std::string(spec);
  return std::string(name) + ":" + std::string(row.argument) + "=" + std::string(*settings);
}

}  // namespace

Result<ParsedHook> parse_hook(std::string_view spec) {
  const std::string whole(spec);
  std::optional<torch::ScalarType> type;
  if (spec.starts_with("fp16+")) type = torch::kFloat16;
  if (spec.starts_with("bf16+")) type = torch::kBFloat16;
  if (type) spec.remove_prefix(5);
  const auto [name, settings] = cut(spec, ':');
  const bool is_codec = name == codec_name;
  const HookRow* const row = find_hook(name);
  if (row == nullptr || (is_codec && !settings))
    return Error(Errc::invalid_input, "no gradient hook '" + whole + "'; there are: " + names() +
                                          did_you_mean(name, hook_rows(), &HookRow::name));
  if (type && !row->takes_16_bits)
    return Error(Errc::invalid_input, "'" + whole + "': " + std::string(name) +
                                          " does not work on gradients of 16 bits; leave \"" +
                                          whole.substr(0, 5) + "\" out");
  if (is_codec) {
    FL_TRY(auto hook, make_codec_hook(*settings));
    return ParsedHook{.hook = std::move(hook), .row = *row};
  }
  const auto* const factory = std::ranges::find(factories, name, &HookFactory::name);
  FL_ASSERT(factory != std::end(factories));
  FL_TRY(SpecOptions options, SpecOptions::parse(with_key(spec, *row)));
  std::unique_ptr<GradientHook> hook = factory->make(options);
  FL_CHECK(options.finish());
  if (type) hook = make_16_bits(*type, std::move(hook));
  return ParsedHook{.hook = std::move(hook), .row = *row};
}

}  // namespace fl::site
