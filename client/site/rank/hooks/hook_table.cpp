// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/hooks/hook_table.hpp"

#include "client/site/rank/hooks/hooks.hpp"
#include "shared/base/spec/spec_text.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

namespace fl {

namespace {

constexpr HookRow table[] = {
    {.name = "allreduce",
     .usage = "allreduce",
     .about = "the mean in fp32",
     .takes_16_bits = true,
     .make = make_allreduce},
    {.name = "fp16",
     .usage = "fp16",
     .about = "the mean in fp16; in fp32 where a value is too large for it",
     .make = make_fp16},
    {.name = "bf16", .usage = "bf16", .about = "the mean in bfloat16", .make = make_bf16},
    {.name = "powersgd",
     .usage = "powersgd:RANK[,start=1000][,rate=2][,epsilon=1e-8]",
     .about = "low-rank factors of each matrix, from step START on",
     .argument = "rank",
     .takes_16_bits = true,
     .make = make_powersgd},
    {.name = "batched-powersgd",
     .usage = "batched-powersgd:RANK[,start=1000][,epsilon=1e-8]",
     .about = "low-rank factors of each bucket, from step START on",
     .argument = "rank",
     .takes_16_bits = true,
     .make = make_batched_powersgd},
    {.name = "quantize",
     .usage = "quantize:8[,channel=0]",
     .about = "8 bits between least and largest value, of each CHANNEL elements (0: a bucket)",
     .argument = "bits",
     .make = make_quantize},
    {.name = "topk",
     .usage = "topk:KEEP",
     .about = "the fraction KEEP of the elements with the largest absolute values",
     .argument = "keep",
     .takes_16_bits = true,
     .make = make_topk},
    {.name = "randk",
     .usage = "randk:KEEP",
     .about = "a random fraction KEEP of the elements",
     .argument = "keep",
     .takes_16_bits = true,
     .make = make_randk},
    {.name = "qsgd",
     .usage = "qsgd:BITS",
     .about = "unbiased levels of 2 to 8 bits",
     .argument = "bits",
     .make = make_qsgd},
    {.name = "sign",
     .usage = "sign",
     .about = "one bit an element, with each parameter's mean absolute value",
     .make = make_sign},
    {.name = "onebit-adam",
     .usage = "onebit-adam:WARMUP[,beta1=0.9][,beta2=0.999][,epsilon=1e-8]",
     .about = "Adam whose momentum goes in one bit an element after WARMUP steps",
     .argument = "warmup",
     .returns_step = true,
     .make = make_onebit_adam},
    {.name = "post-local-sgd",
     .usage = "post-local-sgd:PERIOD[,start=100][,group=1]",
     .about = "from step START on the mean of GROUP ranks; of the parameters every PERIOD steps",
     .argument = "period",
     .takes_16_bits = true,
     .is_local = true,
     .make = make_post_local_sgd},
};

constexpr std::string_view codec_prefix = "codec:";

std::string names() {
  std::string text;
  for (const HookRow& row : table) text += std::string(row.usage) + ", ";
  return text + "codec:CODEC; fp16+HOOK or bf16+HOOK";
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

std::span<const HookRow> hook_rows() { return table; }

Result<ParsedHook> parse_hook(std::string_view spec) {
  const std::string whole(spec);
  std::optional<torch::ScalarType> type;
  if (spec.starts_with("fp16+")) type = torch::kFloat16;
  if (spec.starts_with("bf16+")) type = torch::kBFloat16;
  if (type) spec.remove_prefix(5);
  if (spec.starts_with(codec_prefix) && !type) {
    FL_TRY(auto hook, make_codec_hook(spec.substr(codec_prefix.size())));
    return ParsedHook{.hook = std::move(hook), .row = nullptr};
  }
  const std::string_view name = cut(spec, ':').first;
  const auto row = std::ranges::find(table, name, &HookRow::name);
  if (row == std::end(table) && !spec.starts_with(codec_prefix))
    return Error(Errc::invalid_input, "no gradient hook '" + whole + "'; there are: " + names());
  if (type && (row == std::end(table) || !row->takes_16_bits))
    return Error(Errc::invalid_input, "'" + whole + "': " + std::string(name) +
                                          " does not work on gradients of 16 bits; leave \"" +
                                          whole.substr(0, 5) + "\" out");
  FL_TRY(SpecOptions options, SpecOptions::parse(with_key(spec, *row)));
  std::unique_ptr<GradientHook> hook = row->make(options);
  FL_CHECK(options.finish());
  if (type) hook = make_16_bits(*type, std::move(hook));
  return ParsedHook{.hook = std::move(hook), .row = row};
}

}  // namespace fl
