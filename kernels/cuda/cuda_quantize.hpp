// SPDX-License-Identifier: Apache-2.0
// A quantizer's step with error feedback in one pass over memory instead of four: EF-SGD,
// Karimireddy 2019, algorithm 2, with the nearest levels, as nearest_run() in
// shared/codec/entropy/quantized_levels.hpp finds them. The bits are those of the separate
// functions of Kernels.
//
// Calls are as in cuda_kernels.hpp: memory of the current device, on `stream`, without waiting, and
// the result is 0 or the cudaError_t of the start. They allocate nothing. Pointers must not
// overlap, and need no more alignment than the element's type.
#pragma once

#include "kernels/kernels.hpp"

struct CUstream_st;

namespace fl::cuda {

/// For each i: whole = x[i] + residual[i]; levels[i] = whole / step, rounded like Kernels::round()
/// and clamped to [-top, top]; residual[i] = whole - levels[i] * step. Requires: 1 <= top <= 32767.
/// If `counts` is not nullptr, the call adds how often each level occurs to counts[level + top].
/// There are 2 * top + 1 counts, which the caller has set; then top <= 127 and n < 2^32.
[[nodiscard]] int quantize_with_feedback(const float* x, float* residual, std::size_t n, float step,
                                         std::int32_t top, std::int16_t* levels,
                                         std::uint32_t* counts, CUstream_st* stream);

}  // namespace fl::cuda
