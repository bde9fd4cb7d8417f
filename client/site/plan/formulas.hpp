// SPDX-License-Identifier: Apache-2.0
// Memory, traffic and arithmetic of a step of training a transformer on many GPUs: pure functions,
// each with its unit and its source. docs/design/sites-planning.md derives them, and checks them
// against published cases.
//
// Sources: ZeRO (Rajbhandari 2020), Megatron-LM (Narayanan 2021), activations (Korthikanti 2022),
// PaLM, appendix B (Chowdhery 2022), ZeRO-Offload (Ren 2021), ZB-H1 (Qi 2024), ring attention (Liu
// 2024), experts (Lepikhin 2021). tp, cp, ep, pp, dp: the ranks of tensor, context, expert,
// pipeline and data parallelism. "Sent" is what one GPU sends; it receives as much. With context
// parallelism the shape's sequence is that of one rank, where nothing else is said.
#pragma once

#include "client/learn/pipeline_parts.hpp"
#include "client/site/plan/inputs.hpp"

#include <cstdint>

namespace fl::site {

/// Bytes that one parameter takes, in Adam.
struct ParameterBytes {
  double weights = 0;    // In the format of the forward pass.
  double gradients = 0;  // Also what a gradient takes on the wire.
  double optimizer = 0;  // Moments; in mixed precision also the fp32 weights.
};

/// bf16, fp16: 2 + 2 + 12 (Rajbhandari 2020, section 3.1). fp32: 4 + 4 + 8.
[[nodiscard]] ParameterBytes parameter_bytes(PlanPrecision precision);

/// The weights, gradients and optimizer states that one GPU holds, in bytes.
struct StateMemory {
  double weights = 0;
  double gradients = 0;
  double optimizer = 0;
  double on_host = 0;  // In its host's memory.

  [[nodiscard]] double on_gpu() const { return weights + gradients + optimizer; }
  StateMemory& operator+=(const StateMemory& more);
};

/// `parameters` counts those of one GPU's tensor- and pipeline-parallel part. ZeRO 1, 2 and 3
/// divide the optimizer's states, also the gradients, also the weights by dp (Rajbhandari 2020,
/// section 5). With `offload` the optimizer and its gradients are in host memory (Ren 2021).
[[nodiscard]] StateMemory state_memory(double parameters, PlanPrecision precision, int zero,
                                       std::int64_t dp, bool offload);

/// Activations that one layer keeps for a microbatch of `sequences`, in bytes a GPU: table 2 of
/// Korthikanti 2022, with sequence parallelism.
///   none       s b h (34 / t + 5 a s / (h t))
///   selective  s b h 34 / t
///   full       s b h 2
/// The dense layers keep 19 of these 34 (section 4.1). Each expert of a token keeps as much as they
/// do.
[[nodiscard]] double layer_activation_bytes(const ModelShape& shape, std::int64_t sequences,
                                            std::int64_t tp, Recompute recompute,
                                            PlanPrecision precision);

/// The microbatches of which the first rank of a pipeline has the activations: min(pp,
/// microbatches) of 1F1B and ZB-H1; of interleaved stages (2 (pp - 1) + (v - 1) pp + 1) / v
/// (Narayanan 2021, section 2.2).
[[nodiscard]] double microbatches_in_flight(const PipelineDivision& stages,
                                            std::int64_t microbatches);

/// Activations that the busiest rank of a pipeline keeps, in bytes a GPU. The first one has those
/// of microbatches_in_flight(), the last of one and the logits (Korthikanti 2022, sections 4.2.3
/// and 4.3). With ZB-H1 the last one also has, of as many microbatches as others have in flight,
/// the inputs of dense layers and the gradients of their outputs, nearly as much as activations (Qi
/// 2024, section 2.3). With full recomputation, one layer's activations are there once more.
[[nodiscard]] double stage_activation_bytes(const ModelShape& shape, std::int64_t sequences,
                                            std::int64_t microbatches, std::int64_t tp,
                                            const PipelineDivision& stages, Recompute recompute,
                                            PlanPrecision precision);

/// Arithmetic of a step over so many sequences, in FLOPs of all GPUs: 6 parameters, of experts
/// those that it uses, + 12 layers hidden sequence for each token (Chowdhery 2022). Full
/// recomputation does the forward pass twice: 4/3. Selective does attention's scores again: 4
/// layers hidden sequence more for each token.
[[nodiscard]] double step_flops(const ModelShape& shape, std::int64_t batch, Recompute recompute);

/// The part of the step that a pipeline stands idle, relative to its work: (pp - 1) / microbatches,
/// a v-th of it with v stages a rank (Narayanan 2021, section 2.2), a third with ZB-H1 (Qi 2024,
/// section 2.3, where the three passes take as long).
[[nodiscard]] double pipeline_bubble(const PipelineDivision& stages, std::int64_t microbatches);

/// Bytes that one of n ranks sends in a ring: all-reduce 2 (n - 1) / n of the vector,
/// reduce-scatter and all-gather (of the whole vector) half of it (Patarasuk 2009).
[[nodiscard]] double all_reduce_bytes(double vector_bytes, std::int64_t ranks);

/// Bytes that one GPU sends for tensor parallelism in one layer and microbatch: four all-reduces of
/// s b h values, two forward and two backward (Narayanan 2021, section 3.2); full recomputation
/// does the forward ones again.
[[nodiscard]] double tensor_parallel_bytes(const ModelShape& shape, std::int64_t sequences,
                                           std::int64_t tp, Recompute recompute,
                                           PlanPrecision precision);

/// Bytes that one GPU sends for pipeline parallelism in one microbatch: s b h values forward and as
/// many backward, divided among the tensor-parallel ranks (Narayanan 2021, section 4.1), for each
/// of its `chunks` stages.
[[nodiscard]] double pipeline_bytes(const ModelShape& shape, std::int64_t sequences,
                                    std::int64_t tp, std::int64_t chunks, PlanPrecision precision);

/// Bytes that one GPU sends for context parallelism in one layer and microbatch, in a ring: keys
/// and values of a rank go to the cp - 1 others, forward and back, and back their gradients too
/// (Liu 2024, section 3); full recomputation does the forward part again.
[[nodiscard]] double context_parallel_bytes(const ModelShape& shape, std::int64_t sequences,
                                            std::int64_t tp, std::int64_t cp, Recompute recompute,
                                            PlanPrecision precision);

/// Bytes that one GPU sends for expert parallelism in one layer and microbatch, of (ep - 1) / ep of
/// its tokens' choices: there and back, forward and backward (Lepikhin 2021, section 3.2), where
/// choices are even; full recomputation does the forward part again. Ranks of tensor parallelism
/// send all of them.
[[nodiscard]] double expert_parallel_bytes(const ModelShape& shape, std::int64_t sequences,
                                           std::int64_t ep, Recompute recompute,
                                           PlanPrecision precision);

/// Bytes that one GPU sends for data parallelism in a step, of `parameters` on it (Rajbhandari
/// 2020, section 7). Gradients are reduced once a step without ZeRO and in ZeRO-1, and in ZeRO-2
/// and 3 in each microbatch, as no GPU keeps all of them. ZeRO-1 and 2 gather the weights once a
/// step, ZeRO-3 twice in each microbatch.
struct DataParallelBytes {
  double gradients = 0;
  double weights = 0;
};
[[nodiscard]] DataParallelBytes data_parallel_bytes(double parameters, PlanPrecision precision,
                                                    int zero, std::int64_t dp,
                                                    std::int64_t microbatches);

/// Seconds of an all-reduce of `vector_bytes` over `local` ranks on each of `nodes` nodes: reduced
/// inside the node, then between nodes by each rank for its part, then gathered inside. Bandwidth
/// only: latencies are left out.
[[nodiscard]] double all_reduce_seconds(double vector_bytes, std::int64_t local, std::int64_t nodes,
                                        double intra_bytes_s, double inter_bytes_s);

/// Seconds until each of these ranks has a payload of `bytes` of every other one.
[[nodiscard]] double all_gather_seconds(double bytes, std::int64_t local, std::int64_t nodes,
                                        double intra_bytes_s, double inter_bytes_s);

/// Seconds of Adam on the CPU for the parameters of one node, at the speed of its memory: it reads
/// the gradient, the weight and two moments, and writes the three, 28 bytes a parameter.
[[nodiscard]] double host_adam_seconds(double parameters, double memory_bytes_s);

}  // namespace fl::site
