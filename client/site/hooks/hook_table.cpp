// SPDX-License-Identifier: Apache-2.0
#include "client/site/hooks/hook_table.hpp"

#include <algorithm>
#include <cmath>

namespace fl::site {

namespace {

using enum HookExchange;
using enum HookLoss;

double gradient_bits(const HookSizes& sizes) { return sizes.gradient_bits; }

/// A layer's matrices h x 3h, h x h, h x 4h and 4h x h become two factors each, (4 + 2 + 5 + 5) h
/// rank values of fp32 for 12 h^2 (Vogels 2019).
template <int rank>
double low_rank_bits(const HookSizes& sizes) {
  return 32.0 * 16 * rank / (12 * sizes.hidden);
}

/// One square matrix of all n values becomes 2 sqrt(n) rank values.
template <int rank>
double square_bits(const HookSizes& sizes) {
  return 32.0 * 2 * rank / std::sqrt(sizes.values);
}

constexpr HookCost allreduce_costs[] = {{"allreduce", all_reduce, none, 0, 0, gradient_bits}};
constexpr HookCost bf16_costs[] = {{"bf16", all_reduce, rounding, 0.1, 16}};
constexpr HookCost fp16_costs[] = {{"fp16", all_reduce, rounding, 0.1, 16}};
constexpr HookCost quantize_costs[] = {{"quantize:8", gather, rounding, 0.5, 8}};
constexpr HookCost qsgd_costs[] = {{"qsgd:4", gather, rounding, 1, 3.3}};
constexpr HookCost topk_costs[] = {{"topk:0.01", gather, feedback, 1, 0.64}};
constexpr HookCost randk_costs[] = {{"randk:0.01", all_reduce, feedback, 0.3, 0.32}};
constexpr HookCost sign_costs[] = {{"sign", gather, feedback, 0.5, 1}};
constexpr HookCost onebit_adam_costs[] = {{"onebit-adam", parts, method, 0.5, 1}};
constexpr HookCost powersgd_costs[] = {
    {"powersgd:4", all_reduce, feedback, 0.5, 0, low_rank_bits<4>}};
constexpr HookCost codec_costs[] = {
    {"codec:ecuq:4", gather, rounding, 1, 4},
    {"codec:ecuq:2+ef", gather, feedback, 1, 2},
    {"codec:ecuq:0.5+ef", gather, feedback, 1, 0.5},
    {"hooks.codec ecuq:2+ef", parts, feedback, 1, 2},
    {"hooks.codec ecuq:0.5+ef", parts, feedback, 1, 0.5},
};
constexpr HookCost post_local_costs[] = {{"post-local-sgd", seldom, method, 0, 0, gradient_bits}};
constexpr HookCost batched_costs[] = {
    {"batched-powersgd:4", all_reduce, feedback, 0.5, 0, square_bits<4>}};

constexpr HookRow table[] = {
    {.name = "allreduce", .usage = "allreduce", .takes_16_bits = true, .costs = allreduce_costs},
    {.name = "bf16", .usage = "bf16", .costs = bf16_costs},
    {.name = "fp16", .usage = "fp16", .costs = fp16_costs},
    {.name = "quantize",
     .usage = "quantize:8[,channel=0]",
     .argument = "bits",
     .costs = quantize_costs},
    {.name = "qsgd",
     .usage = "qsgd:BITS",  // --codec qsgd:S counts levels instead.
     .argument = "bits",
     .costs = qsgd_costs},
    {.name = "topk",
     .usage = "topk:KEEP",
     .argument = "keep",
     .takes_16_bits = true,
     .costs = topk_costs},
    {.name = "randk",
     .usage = "randk:KEEP",
     .argument = "keep",
     .takes_16_bits = true,
     .costs = randk_costs},
    {.name = "sign", .usage = "sign", .costs = sign_costs},
    {.name = "onebit-adam",
     .usage = "onebit-adam:WARMUP[,beta1=0.9][,beta2=0.999][,epsilon=1e-8]",
     .argument = "warmup",
     .returns_step = true,
     .costs = onebit_adam_costs},
    {.name = "powersgd",
     .usage = "powersgd:RANK[,start=1000][,rate=2][,epsilon=1e-8]",
     .argument = "rank",
     .takes_16_bits = true,
     .costs = powersgd_costs},
    {.name = "codec", .usage = "codec:CODEC", .costs = codec_costs},
    {.name = "post-local-sgd",
     .usage = "post-local-sgd:PERIOD[,start=100][,group=1]",
     .argument = "period",
     .takes_16_bits = true,
     .is_local = true,
     .costs = post_local_costs},
    {.name = "batched-powersgd",
     .usage = "batched-powersgd:RANK[,start=1000][,epsilon=1e-8]",
     .argument = "rank",
     .takes_16_bits = true,
     .costs = batched_costs},
};

}  // namespace

std::span<const HookRow> hook_rows() { return table; }

const HookRow* find_hook(std::string_view name) {
  const HookRow* const row = std::ranges::find(table, name, &HookRow::name);
  return row == std::end(table) ? nullptr : row;
}

}  // namespace fl::site
