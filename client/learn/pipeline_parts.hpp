// SPDX-License-Identifier: Apache-2.0
// How the blocks of a transformer are divided over ranks that hand a batch from one to the next, in
// small parts, so that all of them compute at the same time (pipeline parallelism), and in which
// order each rank takes its passes. GPipe: Huang et al., NeurIPS 2019; 1F1B and its interleaved
// form: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
// Megatron-LM", SC 2021, section 2.2; ZB-H1: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR
// 2024, section 2. Pure arithmetic; any thread.
#pragma once

#include "shared/base/error.hpp"
#include "shared/params/layout.hpp"
#include "shared/params/model_spec.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fl {

enum class PipelineSchedule {
  gpipe,                 // All forward passes, then all backward passes.
  one_forward_one_back,  // A backward pass as soon as there can be one (1F1B).
  interleaved,           // 1F1B of ranks that have several stages each.
  zero_bubble,           // 1F1B whose weights' gradients come later (ZB-H1).
};

/// Stage number s of ranks * chunks is on rank s % ranks, as its chunk s / ranks.
struct PipelineDivision {
  std::int64_t ranks = 1;
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_back;
  std::int64_t chunks = 1;  // The stages of a rank.

  [[nodiscard]] std::int64_t stages() const { return ranks * chunks; }
  [[nodiscard]] std::int64_t stage_of(std::int64_t rank, std::int64_t chunk) const {
    return chunk * ranks + rank;
  }
};

/// "gpipe", "1f1b", "interleaved:N" with N chunks, or "zb-h1". Errors: invalid_input.
[[nodiscard]] Result<PipelineDivision> parse_pipeline(std::string_view text, std::int64_t ranks);

/// The text of such a division.
[[nodiscard]] std::string pipeline_text(const PipelineDivision& division);

/// Errors: invalid_input for a model that can't be divided so, with the number that does not fit.
[[nodiscard]] Result<void> check_pipeline(const ModelSpec& spec, std::string_view model,
                                          const PipelineDivision& division);

/// The number of a layout's blocks.
[[nodiscard]] std::int64_t blocks_of(const Layout& layout);
/// The units (client/learn/torch/units.hpp) of a stage, in their order: those of a model are the
/// embeddings of tokens and of positions, so many blocks, and the norm with the logits.
[[nodiscard]] std::vector<std::size_t> units_of_stage(const PipelineDivision& division,
                                                      std::int64_t stage, std::int64_t blocks);
/// The units of which a rank has the tensors, in their order.
[[nodiscard]] std::vector<std::size_t> units_on_rank(const PipelineDivision& division,
                                                     std::int64_t rank, std::int64_t blocks);
/// Whether a rank has this tensor of a transformer. The first and the last rank have the embedding
/// of the tokens, which the last stage uses for the logits.
[[nodiscard]] bool is_on_rank(std::string_view tensor, const PipelineDivision& division,
                              std::int64_t rank, std::int64_t blocks);
/// Whether it is one of these two: each has the gradient of its own use.
[[nodiscard]] bool is_tied(std::string_view tensor, const PipelineDivision& division);
/// Whether that of this rank is a copy, as the first rank's counts.
[[nodiscard]] bool is_tied_copy(std::string_view tensor, const PipelineDivision& division,
                                std::int64_t rank);

/// A pass, or a part of one, that a rank takes of a microbatch in one of its chunks.
struct PipelineOperation {
  enum class Kind {
    forward,
    backward,
    inputs,   // The part of a backward pass that the stage before waits for.
    weights,  // The rest of it: gradients of the dense layers' weights.
  };
  Kind kind = Kind::forward;
  std::int64_t microbatch = 0;
  std::int64_t chunk = 0;
  bool operator==(const PipelineOperation&) const = default;
};

/// How many microbatches a schedule takes where so many are wanted: those of interleaved stages go
/// in groups of as many as there are ranks.
[[nodiscard]] std::int64_t microbatches_for(const PipelineDivision& division, std::int64_t wanted);
/// The operations of a rank, in the order in which it does them. In each chunk microbatches come in
/// their order, forward and back. `microbatches`: of microbatches_for().
[[nodiscard]] std::vector<PipelineOperation> schedule_of(const PipelineDivision& division,
                                                         std::int64_t rank,
                                                         std::int64_t microbatches);
/// The forward passes of that alone.
[[nodiscard]] std::vector<PipelineOperation> forward_schedule_of(const PipelineDivision& division,
                                                                 std::int64_t rank,
                                                                 std::int64_t microbatches);

/// The ways between neighbouring stages. NCCL takes the transfers of a group in their order, and
/// each blocks those behind it. So each way has a group of its own, and those between the last rank
/// and the first, where chunks follow each other, have others: with fewer groups ranks wait for
/// each other for ever.
enum class PipelineWay { down, up, around_down, around_up };
inline constexpr std::size_t pipeline_ways = 4;
/// From the stage before into `stage`, and back out of it.
[[nodiscard]] PipelineWay way_into(const PipelineDivision& division, std::int64_t stage);
[[nodiscard]] PipelineWay way_back_from(const PipelineDivision& division, std::int64_t stage);
/// Whether anything goes this way.
[[nodiscard]] bool has_way(const PipelineDivision& division, PipelineWay way);

}  // namespace fl
