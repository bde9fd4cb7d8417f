// Decodes blocks, by the id in their first byte (block_format.hpp). The ids that are taken, and
// where each format is described:
//
//    0  fp32          elements as IEEE binary32                        compressors/fp32.cpp
//    1  fp16          elements as IEEE binary16                        compressors/half.cpp
//    2  qsgd          levels in bit fields                             compressors/qsgd.cpp
//    3  qsgd          as 2, with entropy-coded levels
//    4  bf16          the upper 16 bits of binary32                    compressors/half.cpp
//    5  kbit          levels in bit fields                             compressors/kbit.cpp
//    6  terngrad      levels in bit fields                             compressors/terngrad.cpp
//    7  sign          one bit an element                               compressors/sign.cpp
//    8  kbit          as 5, with entropy-coded levels
//    9  terngrad      as 6, with entropy-coded levels
//   10  terngrad      as 6, with runs of zeros
//   16  sparse        selected values and their indices                blocks/sparse_block.hpp
//   17  randk         selected values and the key of their indices     blocks/sparse_block.hpp
//   24  ecuq          dithered levels                                  compressors/ecuq/ecuq.cpp
//   25  ecuq          levels with centroids
//   26  eden          rotated levels in bit fields                     compressors/eden.cpp
//   27  eden          as 26, with entropy-coded levels
//   28  powersgd      both factors of a matrix                         blocks/low_rank_block.hpp
//   29  gradzip       one factor of a matrix                           blocks/low_rank_block.hpp
//   30  countsketch   a sketch that is read alone                      compressors/countsketch.cpp
//   31  ecuq          as 24, with runs of zeros
//   32  ecuq          as 25, with runs of zeros
//   33  parts         a large block, part by part                      blocks/large_block.hpp
//   34  eden          as 26, with a fraction of bits
//   35  eden          as 27, with a fraction of bits
//   36  fp32          as 0, near its entropy                           compressors/lossless.cpp
//   37  fp16          as 1, near its entropy
//   38  bf16          as 4, near its entropy
//   39  countsketch   a sketch that may be added to others             blocks/sketch_block.hpp
//
// Bit fields are those of kernels/generic/pack.hpp, entropy-coded levels those of level_coder.hpp,
// runs of zeros those of zero_run_coder.hpp, and what is "near its entropy" is coded by
// float_coder.hpp. Numbers are little-endian.
//
// Decoding goes at most three blocks deep: parts, a sparse block, its values.
#pragma once

#include "shared/codec/core/block_format.hpp"

#include <span>

namespace fl {

// The bytes need not be trusted; errors are corrupt. A decoded value may be infinite or NaN, unless
// FormatRow::is_finite.

/// Fills `out`, the elements of a block that stands in a payload, or is a part of one that does.
/// Formats of low rank are refused: they need their tensor (low_rank_block.hpp).
[[nodiscard]] Result<void> decode_block(Bytes bytes, std::span<float> out, DecodeScratch& scratch);

/// The same for the values of a sparse block: only formats that FormatRow::may_be_inside are
/// allowed. `out` may be scratch.values.
[[nodiscard]] Result<void> decode_inner_block(Bytes bytes, std::span<float> out,
                                              DecodeScratch& scratch);

/// The same for blocks that "none" or "lossless" wrote; of any size.
[[nodiscard]] Result<void> decode_lossless_block(Bytes bytes, std::span<float> out,
                                                 DecodeScratch& scratch);

}  // namespace fl
