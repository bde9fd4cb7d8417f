// SPDX-License-Identifier: Apache-2.0
// Decodes blocks by the format id in their first byte (block_format.hpp). These ids are in use; the
// file on the right describes the format:
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
//   30  countsketch   a sketch that is decoded alone                   compressors/countsketch.cpp
//   31  ecuq          as 24, with runs of zeros
//   32  ecuq          as 25, with runs of zeros
//   33  parts         a large block, part by part                      blocks/large_block.hpp
//   34  eden          as 26, with a fraction of bits
//   35  eden          as 27, with a fraction of bits
//   36  fp32          as 0, near its entropy                           compressors/lossless.cpp
//   37  fp16          as 1, near its entropy
//   38  bf16          as 4, near its entropy
//   39  countsketch   a sketch that may be added to others first       blocks/sketch_block.hpp
//   40  lanes         levels of a shared step, in bit fields           blocks/lane_block.hpp
//   41  lanes         as 40, with entropy-coded levels
//   42  lanes         without a step: multiples of 2^-24
//
// "Bit fields" are described in kernels/generic/pack.hpp; in shared/codec/entropy/, "entropy-coded
// levels" in level_coder.hpp, "runs of zeros" in zero_run_coder.hpp, "near its entropy" in
// float_coder.hpp.
// Numbers are little-endian.
//
// Blocks are nested at most three deep: parts, a sparse block, the block of its values.
#pragma once

#include "shared/codec/core/block_format.hpp"

#include <span>

namespace fl::codec {

// For all functions: the bytes need not be trusted. Errors: corrupt. A decoded value may be
// infinite or NaN unless FormatRow::is_finite. Any thread, with its own scratch.

/// Decodes a block of a payload, or a part of such a block, into `out`. Low-rank formats are
/// corrupt here, because they need their tensor (low_rank_block.hpp).
[[nodiscard]] Result<void> decode_block(Bytes bytes, std::span<float> out, DecodeScratch& scratch);

/// Decodes the inner block of a sparse block, which holds its values. Only formats with
/// FormatRow::may_be_inside are allowed. `out` may be scratch.values.
[[nodiscard]] Result<void> decode_inner_block(Bytes bytes, std::span<float> out,
                                              DecodeScratch& scratch);

/// Decodes a block that "none" or "lossless" wrote. It may have any number of elements.
[[nodiscard]] Result<void> decode_lossless_block(Bytes bytes, std::span<float> out,
                                                 DecodeScratch& scratch);

}  // namespace fl::codec
