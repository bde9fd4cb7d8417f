// What a codec's parts look at before a vector's first block is coded.
#pragma once

#include "shared/codec/codec_state.hpp"
#include "shared/params/layout.hpp"

#include <cstdint>
#include <span>

namespace fl {

class DeviceVector;  // device_coder.hpp.

struct VectorToPlan {
  const Layout* layout;
  std::span<const float> x;                // The whole vector; any of it may be NaN.
  std::span<const std::uint32_t> tensors;  // Which of the layout's are theirs.
  std::uint32_t block_elements;
  std::uint64_t seed;
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
