// SPDX-License-Identifier: Apache-2.0
#include "client/site/plan/formulas.hpp"

#include <algorithm>

namespace fl::site {

namespace {

/// Values of a layer's input: sequence x microbatch x hidden.
double input_values(const ModelShape& shape, std::int64_t sequences) {
  return real(shape.sequence) * real(sequences) * real(shape.hidden);
}

/// Korthikanti's formulas count the bytes of 16-bit activations.
double width_factor(PlanPrecision precision) { return precision == PlanPrecision::fp32 ? 2 : 1; }

}  // namespace

ParameterBytes parameter_bytes(PlanPrecision precision) {
  if (precision == PlanPrecision::fp32) return {.weights = 4, .gradients = 4, .optimizer = 8};
  return {.weights = 2, .gradients = 2, .optimizer = 12};
}

StateMemory& StateMemory::operator+=(const StateMemory& more) {
  weights += more.weights;
  gradients += more.gradients;
  optimizer += more.optimizer;
  on_host += more.on_host;
  return *this;
}

StateMemory state_memory(double parameters, PlanPrecision precision, int zero, std::int64_t dp,
                         bool offload) {
  const ParameterBytes each = parameter_bytes(precision);
  const auto part = [&](int from) { return zero >= from ? parameters / real(dp) : parameters; };
  StateMemory memory;
  memory.weights = each.weights * part(3);
  memory.gradients = each.gradients * part(2);
  memory.optimizer = each.optimizer * part(1);
  if (offload) {
    memory.on_host = memory.gradients + memory.optimizer;
    memory.gradients = memory.optimizer = 0;
  }
  return memory;
}

double layer_activation_bytes(const ModelShape& shape, std::int64_t sequences, std::int64_t tp,
                              Recompute recompute, PlanPrecision precision) {
  const double values = input_values(shape, sequences) * width_factor(precision);
  if (recompute == Recompute::full) return 2 * values;
  const double scores = recompute == Recompute::none
                            ? 5 * real(shape.heads) * real(shape.sequence) / real(shape.hidden)
                            : 0;
  const double of_dense = 19 * (shape.experts > 0 ? real(shape.top) : 1);
  return values * (15 + of_dense + scores) / real(tp);
}

double microbatches_in_flight(const PipelineDivision& stages, std::int64_t microbatches) {
  const std::int64_t chunks = stages.chunks;
  if (chunks == 1) return real(std::min(stages.ranks, microbatches));
  const std::int64_t most = 2 * (stages.ranks - 1) + (chunks - 1) * stages.ranks + 1;
  return real(std::min(most, microbatches * chunks)) / real(chunks);
}

double stage_activation_bytes(const ModelShape& shape, std::int64_t sequences,
                              std::int64_t microbatches, std::int64_t tp,
                              const PipelineDivision& stages, Recompute recompute,
                              PlanPrecision precision) {
  const double layers = real(shape.layers) / real(stages.ranks);
  const double one = layers * layer_activation_bytes(shape, sequences, tp, recompute, precision);
  const double values = input_values(shape, sequences);
  const double in_flight = microbatches_in_flight(stages, microbatches);
  // The embedding's dropout mask; the last norm and its product with the embedding, then the logits
  // in fp32.
  const double put_off =
      layers * layer_activation_bytes(shape, sequences, tp, Recompute::selective, precision);
  const bool puts_off = stages.schedule == PipelineSchedule::zero_bubble;
  const double first = in_flight * (one + values / real(tp));
  const double logits = 4 * values / real(tp) * (1 + real(shape.vocabulary) / real(shape.hidden));
  const double last = one + logits + (stages.ranks == 1 ? values / real(tp) : 0) +
                      (puts_off ? (in_flight - 1) * put_off : 0);
  const double again =
      recompute == Recompute::full
          ? layer_activation_bytes(shape, sequences, tp, Recompute::selective, precision)
          : 0;
  return std::max(first, last) + again;
}

double step_flops(const ModelShape& shape, std::int64_t batch, Recompute recompute) {
  const double tokens = real(batch) * real(shape.sequence);
  const double scores = real(shape.layers) * real(shape.hidden) * real(shape.sequence);
  const double once = 6 * (shape.experts > 0 ? shape.active : shape.parameters) + 12 * scores;
  if (recompute == Recompute::full) return tokens * once * 4 / 3;
  if (recompute == Recompute::selective) return tokens * (once + 4 * scores);
  return tokens * once;
}

double pipeline_bubble(const PipelineDivision& stages, std::int64_t microbatches) {
  const bool puts_off = stages.schedule == PipelineSchedule::zero_bubble;
  return real(stages.ranks - 1) / real(microbatches * (puts_off ? 3 : stages.chunks));
}

double all_reduce_bytes(double vector_bytes, std::int64_t ranks) {
  return 2 * vector_bytes * real(ranks - 1) / real(ranks);
}

double tensor_parallel_bytes(const ModelShape& shape, std::int64_t sequences, std::int64_t tp,
                             Recompute recompute, PlanPrecision precision) {
  const double all_reduces = recompute == Recompute::full ? 6 : 4;
  const double vector = input_values(shape, sequences) * parameter_bytes(precision).weights;
  return all_reduces * all_reduce_bytes(vector, tp);
}

double pipeline_bytes(const ModelShape& shape, std::int64_t sequences, std::int64_t tp,
                      std::int64_t chunks, PlanPrecision precision) {
  return 2 * real(chunks) * input_values(shape, sequences) * parameter_bytes(precision).weights /
         real(tp);
}

double context_parallel_bytes(const ModelShape& shape, std::int64_t sequences, std::int64_t tp,
                              std::int64_t cp, Recompute recompute, PlanPrecision precision) {
  const double times = recompute == Recompute::full ? 8 : 6;
  const double values = input_values(shape, sequences) / real(tp);
  return times * real(cp - 1) * values * parameter_bytes(precision).weights;
}

double expert_parallel_bytes(const ModelShape& shape, std::int64_t sequences, std::int64_t ep,
                             Recompute recompute, PlanPrecision precision) {
  const double times = recompute == Recompute::full ? 6 : 4;
  const double values = input_values(shape, sequences) * real(shape.top);
  return times * values * real(ep - 1) / real(ep) * parameter_bytes(precision).weights;
}

DataParallelBytes data_parallel_bytes(double parameters, PlanPrecision precision, int zero,
                                      std::int64_t dp, std::int64_t microbatches) {
  const ParameterBytes each = parameter_bytes(precision);
  // A reduce-scatter or an all-gather of all values.
  const double gradients = all_reduce_bytes(each.gradients * parameters, dp) / 2;
  const double weights = all_reduce_bytes(each.weights * parameters, dp) / 2;
  const double times = real(microbatches);
  switch (zero) {
    case 0: return {.gradients = 2 * gradients, .weights = 0};
    case 1: return {.gradients = gradients, .weights = weights};
    case 2: return {.gradients = times * gradients, .weights = weights};
    default: return {.gradients = times * gradients, .weights = 2 * times * weights};
  }
}

double all_reduce_seconds(double vector_bytes, std::int64_t local, std::int64_t nodes,
                          double intra_bytes_s, double inter_bytes_s) {
  double seconds = 0;
  if (local > 1) seconds += all_reduce_bytes(vector_bytes, local) / intra_bytes_s;
  if (nodes > 1) seconds += all_reduce_bytes(vector_bytes / real(local), nodes) / inter_bytes_s;
  return seconds;
}

double all_gather_seconds(double bytes, std::int64_t local, std::int64_t nodes,
                          double intra_bytes_s, double inter_bytes_s) {
  double seconds = 0;
  // Each GPU fetches from other nodes what its counterparts there have, and passes it on.
  if (nodes > 1) seconds += bytes * real(nodes - 1) / inter_bytes_s;
  if (local > 1) seconds += bytes * real(local - 1) * real(nodes) / intra_bytes_s;
  return seconds;
}

double host_adam_seconds(double parameters, double memory_bytes_s) {
  return 28 * parameters / memory_bytes_s;
}

}  // namespace fl::site
