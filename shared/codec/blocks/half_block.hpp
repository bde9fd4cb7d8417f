// What fp16 and bf16 have in common: each value as a number of 16 bits, in order, or near their
// entropy (float_coder.hpp).
#pragma once

#include "kernels/kernels.hpp"
#include "shared/codec/core/compressor.hpp"
#include "shared/codec/entropy/float_coder.hpp"

#include <memory>
#include <span>
#include <string_view>

namespace fl {

struct SixteenBits {
  std::string_view name;
  BlockFormat id;
  BlockFormat coded_id;
  bool (*append)(std::span<const std::uint16_t>, EncodeScratch&, std::vector<std::byte>&);
  Result<void> (*read)(Bytes, std::span<std::uint16_t>, DecodeScratch&);
  float max;  // The largest finite number. What lies past it is refused, not rounded to infinity.
  void (*Kernels::*to)(const float* x, std::size_t n, std::uint16_t* out);
  void (*Kernels::*from)(const std::uint16_t* x, std::size_t n, float* out);
};

/// Keeps a reference to the format.
[[nodiscard]] std::unique_ptr<const Compressor> make_sixteen_bits(const SixteenBits& format);
[[nodiscard]] Result<void> decode_sixteen_bits(const SixteenBits& format, Bytes body, bool is_coded,
                                               std::span<float> out, DecodeScratch& scratch);

}  // namespace fl
