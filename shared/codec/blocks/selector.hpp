// Which elements of an update are sent; the others decode to 0. What a selector selects, any
// Compressor codes (sparse_block.hpp): "topk:0.01+qsgd:4".
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

namespace fl {

/// What is sent of one block.
struct Selected {
  std::span<const std::uint32_t> indices;  // In the block, ascending strictly; they lie in `room`.
  std::vector<float> values;               // One for each index.
  std::optional<std::uint64_t> key;        // The indices are random_indices() of it.
  std::vector<std::uint32_t> room;         // Kept from block to block.
};

/// What a selector knows of a whole vector while its blocks are encoded: where it selects by
/// cutoffs these, of each tensor or of all, which count down their ties.
struct SelectionPlan {
  std::vector<Cutoff> cutoffs;
};

/// Immutable; any thread. What is selected depends on the values, the seed and the layout alone.
class Selector {
 public:
  virtual ~Selector() = default;

  /// The shortest spec that parses to this selector.
  [[nodiscard]] virtual std::string spec() const = 0;
  /// No more elements are selected of a block, which belongs to a tensor of so many.
  [[nodiscard]] virtual std::size_t selected_max(std::uint64_t tensor_elements,
                                                 std::size_t block_elements) const = 0;
  /// As Compressor::sends_few(), whatever codes the values.
  [[nodiscard]] virtual bool sends_few() const = 0;
  /// Whether it selects by cutoffs, which a device may do; here for one that doesn't.
  [[nodiscard]] virtual bool has_cutoffs() const { return false; }
  /// Before the first block; here for selectors that plan nothing.
  [[nodiscard]] virtual SelectionPlan plan(const VectorToPlan& vector) const;
  /// The one of the plan's that selects of a tensor; null where there is none, as here.
  [[nodiscard]] virtual Cutoff* cutoff_of(std::uint32_t tensor, SelectionPlan& plan) const;
  /// Replaces `out`. x is the block; the blocks come in order. The values may be scaled past what
  /// is finite. Here by the cutoff of its tensor.
  virtual void select(std::span<const float> x, const Block& block, std::uint64_t seed,
                      SelectionPlan& plan, Selected& out) const;
};

/// What Selector::sends_few() says of those that send about this share.
[[nodiscard]] constexpr bool is_few(double fraction) { return fraction <= 0x1p-6; }
/// `fraction` of the elements, rounded up.
[[nodiscard]] std::uint64_t share_of(std::uint64_t elements, double fraction);
/// The cutoff that selects this share of all runs together, but never a zero. The runs are parts of
/// the device's vector, if there is one.
[[nodiscard]] Cutoff largest_share(std::span<const std::span<const float>> runs, double fraction,
                                   DeviceVector* device);

/// Replaces `out` by what the cutoff selects of x, and counts down its ties.
void select_by(Cutoff& cutoff, std::span<const float> x, Selected& out);

/// k indices below n, ascending: element i has word i of the Philox stream (key, 0), and those are
/// taken whose words, without the highest bit, are largest; of equal ones the first. They lie in
/// `room`, which grows as needed. 1 <= k <= n <= block_elements_max.
[[nodiscard]] std::span<const std::uint32_t> random_indices(std::uint64_t key, std::size_t n,
                                                            std::size_t k,
                                                            std::vector<std::uint32_t>& room);

}  // namespace fl
