// SPDX-License-Identifier: Apache-2.0
// What compressors and selectors can see of a vector before its first block is coded.
#pragma once

#include "shared/codec/core/codec_state.hpp"
#include "shared/params/layout.hpp"

#include <cstdint>
#include <span>

namespace fl::codec {

class DeviceVector;  // device_coder.hpp.

/// The seeds of all random choices for one vector.
struct Seeds {
  /// For a vector that is not added to others: both seeds are the same.
  Seeds(std::uint64_t seed) : own(seed), shared(seed) {}
  Seeds(std::uint64_t of_vector, std::uint64_t of_sum) : own(of_vector), shared(of_sum) {}

  std::uint64_t own;     // The seed of this vector.
  std::uint64_t shared;  // The seed of all vectors that are added up, such as a round's updates. It
                         // decides what their codes must share to be added before decoding.
};

/// The argument of Compressor::plan() and Selector::plan().
struct VectorToPlan {
  const Layout* layout;
  std::span<const float> x;                // The whole vector; any of its values may be NaN.
  std::span<const std::uint32_t> tensors;  // The tensors that this compressor or selector codes.
  std::uint32_t block_elements;
  Seeds seeds;
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
