// SPDX-License-Identifier: Apache-2.0
// The inputs of a plan for a site: the model, the machines and the training. Plain data.
#pragma once

#include "shared/base/error.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace fl::site {

/// The number format of weights and gradients. bf16 and fp16 are mixed precision: the optimizer
/// keeps fp32 weights beside its moments.
enum class PlanPrecision { bf16, fp16, fp32 };

/// Which activations are computed again in the backward pass. selective: those of attention's
/// scores, as fused attention kernels do it. full: all of a layer but its input.
enum class Recompute { none, selective, full };

/// A transformer. Fields that are 0 are filled in by complete_shape().
struct ModelShape {
  double parameters = 0;
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t vocabulary = 32'000;
  std::int64_t sequence = 2048;  // Tokens.
  std::int64_t experts = 0;      // In each layer, in place of its dense ones; 0: none.
  std::int64_t top = 2;          // Those of a token; of no meaning without experts.
  double active = 0;             // With experts: the parameters that a token uses.
  bool is_assumed = false;       // complete_shape() chose layers, hidden or heads.

  /// The parameters of all experts: of these a token uses top / experts, and all of the others.
  [[nodiscard]] double of_experts() const;
};

/// All bandwidths are in bytes/s, in one direction, for one GPU.
struct SiteMachines {
  std::int64_t gpus = 0;
  std::int64_t gpus_per_node = 8;
  double memory_bytes = 0;            // Of one GPU.
  double intra_bytes_s = 0;           // To another GPU of the node.
  double inter_bytes_s = 0;           // To another node: the GPU's share of the node's link.
  double host_bytes_s = 20e9;         // Between the GPU and its host's memory.
  double host_memory_bytes = 0;       // Of one node; 0: as much as it takes.
  double host_memory_bytes_s = 1e11;  // Speed of one node's memory, for Adam on the CPU.
  double flops_s = 312e12;            // Peak of one GPU.
  double utilisation = 0.4;           // The part of the peak that a single GPU's training reaches.
  double headroom = 0.1;              // The part of memory_bytes that stays free.

  [[nodiscard]] double usable_bytes() const { return memory_bytes * (1 - headroom); }
};

struct PlanTraining {
  std::int64_t batch = 512;  // Sequences in a step of all GPUs together.
  PlanPrecision precision = PlanPrecision::bf16;
  bool any_recompute = true;  // Choose selective or full, whichever fits and is faster.
  Recompute recompute = Recompute::selective;  // If not any_recompute.
};

[[nodiscard]] constexpr double real(std::int64_t count) { return static_cast<double>(count); }

/// Parses a number with a unit: "7e9", "80G", "2.5T", "25GB/s", "16GiB". K, M, G, T and B (billion,
/// for "7B") are powers of 1000; Ki, Mi, Gi, Ti are powers of 1024.
[[nodiscard]] Result<double> parse_quantity(std::string_view text);

/// Fills in the fields that are 0, in the proportions of GPT-3: parameters = 12 layers hidden^2
/// (Narayanan 2021), of which 8 are those of dense layers or of each expert, hidden = 128 layers,
/// heads of 128. Fails if the shape contradicts itself.
[[nodiscard]] Result<ModelShape> complete_shape(ModelShape shape);

/// Fails if no plan can be made from these, with the flag that is wrong.
[[nodiscard]] Result<void> check_inputs(const SiteMachines& machines, const PlanTraining& training);

/// "72.5 GB", "310 ms", "1.2 T": three digits with the unit that fits. Powers of 1000.
[[nodiscard]] std::string in_bytes(double bytes);
[[nodiscard]] std::string in_seconds(double seconds);
[[nodiscard]] std::string in_count(double count);

}  // namespace fl::site
