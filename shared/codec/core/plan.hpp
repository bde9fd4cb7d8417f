// What a codec's parts look at before a vector's first block is coded.
#pragma once

#include "shared/codec/core/codec_state.hpp"
#include "shared/params/layout.hpp"

#include <cstdint>
#include <span>

namespace fl {

class DeviceVector;  // device_coder.hpp.

/// What random choices follow from.
struct Seeds {
  /// For a vector that is alone.
  Seeds(std::uint64_t seed) : own(seed), shared(seed) {}
  Seeds(std::uint64_t of_vector, std::uint64_t of_sum) : own(of_vector), shared(of_sum) {}

  std::uint64_t own;     // The vector's.
  std::uint64_t shared;  // All vectors' that are added up with it: what codes of them may be added
                         // up before they are decoded follows from this one.
};

struct VectorToPlan {
  const Layout* layout;
  std::span<const float> x;                // The whole vector; any of it may be NaN.
  std::span<const std::uint32_t> tensors;  // Which of the layout's are theirs.
  std::uint32_t block_elements;
  Seeds seeds;
  /// What is left there is found there with the next vector; null: no next one.
  CodecState* state = nullptr;
  /// What may do their work, with the same results; null: they do it here.
  DeviceVector* device = nullptr;

  /// The tensor's values in x.
  [[nodiscard]] std::span<const float> values_of(std::uint32_t tensor) const {
    const Layout::Tensor& of = layout->tensors()[tensor];
    return x.subspan(of.offset, of.elements);
  }
};

}  // namespace fl
