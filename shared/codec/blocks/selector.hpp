// SPDX-License-Identifier: Apache-2.0
// The interface of selectors. A selector chooses the elements of a vector that are sent; the others
// decode to 0. Any compressor can code the selected values (sparse_block.hpp): "topk:0.01+qsgd:4".
#pragma once

#include "kernels/generic/select.hpp"
#include "shared/codec/core/block_map.hpp"
#include "shared/codec/core/plan.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fl::codec {

/// The selected elements of one block.
struct Selected {
  std::span<const std::uint32_t> indices;  // In the block, strictly ascending. Points into `room`.
  std::vector<float> values;               // One for each index.
  std::optional<std::uint64_t> key;        // If set, the indices are random_indices() of this key.
  std::vector<std::uint32_t> room;         // Memory that is reused from block to block.
};

/// What Selector::plan() computed from a whole vector. A selector that selects by cutoffs has one
/// for each tensor, or one for all. Their ties count down while the blocks are encoded.
struct SelectionPlan {
  std::vector<Cutoff> cutoffs;
};

/// Immutable; any thread. The selection depends only on the values, the seed, the layout, and the
/// CodecState if the selector uses one.
class Selector {
 public:
  virtual ~Selector() = default;

  /// The shortest spec that parses to this selector.
  [[nodiscard]] virtual std::string spec() const = 0;
  /// The most elements that are selected in a block of `block_elements` elements that belongs to a
  /// tensor of `tensor_elements`.
  [[nodiscard]] virtual std::size_t selected_max(std::uint64_t tensor_elements,
                                                 std::size_t block_elements) const = 0;
  /// Like Compressor::sends_few(), with any compressor for the selected values.
  [[nodiscard]] virtual bool sends_few() const = 0;
  /// Whether the selector selects by cutoffs, which a device can find. The default is false.
  [[nodiscard]] virtual bool has_cutoffs() const { return false; }
  /// Whether the seed alone decides which elements are selected. The default is false.
  [[nodiscard]] virtual bool draws_by_seed() const { return false; }
  /// Called once for each vector, before its first block. The default returns an empty plan.
  [[nodiscard]] virtual SelectionPlan plan(const VectorToPlan& vector) const;
  /// The plan's cutoff for a tensor; null if the selector has no cutoffs, which is the default.
  [[nodiscard]] virtual Cutoff* cutoff_of(std::uint32_t tensor, SelectionPlan& plan) const;
  /// Selects in one block and replaces `out`. x has the block's values. Call it for the blocks in
  /// their order. The selected values may be scaled and so become infinite. The default selects by
  /// the cutoff of the block's tensor.
  virtual void select(std::span<const float> x, const Block& block, std::uint64_t seed,
                      SelectionPlan& plan, Selected& out) const;
};

/// What Selector::sends_few() returns for a selector that sends about this fraction.
[[nodiscard]] constexpr bool is_few(double fraction) { return fraction <= 0x1p-6; }
/// `fraction` of the elements, rounded up.
[[nodiscard]] std::uint64_t share_of(std::uint64_t elements, double fraction);
/// The cutoff that selects share_of() the elements of all runs, taken as one vector, but never a
/// zero. If `device` is not null, the runs must be parts of its vector.
[[nodiscard]] Cutoff largest_share(std::span<const std::span<const float>> runs, double fraction,
                                   DeviceVector* device);

/// Replaces `out` by the elements of x that the cutoff selects, and counts down its ties.
void select_by(Cutoff& cutoff, std::span<const float> x, Selected& out);

/// k random indices below n, ascending. Element i has word i of the Philox stream (key, 0). The
/// elements with the k largest words, compared without the highest bit, are taken; among equal
/// words the first. The result points into `room`, which grows as needed. Requires:
/// 1 <= k <= n <= block_elements_max.
[[nodiscard]] std::span<const std::uint32_t> random_indices(std::uint64_t key, std::size_t n,
                                                            std::size_t k,
                                                            std::vector<std::uint32_t>& room);

}  // namespace fl::codec
