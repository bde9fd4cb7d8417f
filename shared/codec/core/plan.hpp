// SPDX-License-Identifier: Apache-2.0
// What compressors and selectors can see of a vector before its first block is coded.
#pragma once

#include "shared/codec/core/codec_state.hpp"
#include "shared/codec/core/lane_step.hpp"
#include "shared/params/layout.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace fl::codec {

class DeviceVector;  // device_coder.hpp.

/// The inputs of coding a vector besides the codec and the values: the seeds of all random
/// choices, and what it shares with the vectors that it is added to.
struct CodeInputs {
  /// For a vector that is not added to others: both seeds are the same.
  CodeInputs(std::uint64_t seed) : own(seed), shared(seed) {}
  CodeInputs(std::uint64_t of_vector, std::uint64_t of_sum,
             std::shared_ptr<const LaneSteps> steps_of_sum = nullptr)
      : own(of_vector), shared(of_sum), lane_steps(std::move(steps_of_sum)) {}

  std::uint64_t own;     // The seed of this vector.
  std::uint64_t shared;  // The seed of all vectors that are added up, such as a round's updates. It
                         // decides what their codes must share to be added before decoding.
  /// The steps of "lanes" that all vectors which are added up share, one for each tensor; of a
  /// tensor without one nobody knows the values yet. Null: the codec takes steps of its own.
  std::shared_ptr<const LaneSteps> lane_steps;
};

/// The argument of Compressor::plan() and Selector::plan().
struct VectorToPlan {
  const Layout* layout;
  std::span<const float> x;                // The whole vector; any of its values may be NaN.
  std::span<const std::uint32_t> tensors;  // The tensors that this compressor or selector codes.
  std::uint32_t block_elements;
  CodeInputs inputs;
  /// Keeps values for the next vector; null if there is none.
  CodecState* state = nullptr;
  /// A device with the vector, which can do the work with the same results; null: the CPU does it.
  DeviceVector* device = nullptr;

  /// The tensor's values in x.
  [[nodiscard]] std::span<const float> values_of(std::uint32_t tensor) const {
    const Layout::Tensor& of = layout->tensors()[tensor];
    return x.subspan(of.offset, of.elements);
  }
};

}  // namespace fl::codec
