// The quantizers' step with error feedback, fused: one pass over memory instead of four (EF-SGD,
// Karimireddy 2019, algorithm 2, with levels that are the nearest ones, as nearest_run() in
// shared/codec/entropy/quantized_levels.hpp has them). The same bits as the table's rows give one
// after the other.
//
// Device memory of the current device, on `stream`, not waited for, no memory of its own; 0, or the
// start's cudaError_t (cuda_kernels.hpp).
#pragma once

#include "kernels/kernels.hpp"

struct CUstream_st;

namespace fl::cuda {

/// For each i: whole = x[i] + residual[i]; levels[i] = whole / step, rounded as the table's round()
/// does, and from -top to top; residual[i] = whole - dequantize(levels[i]). 1 <= top <= 32767.
/// Unless `counts` is nullptr, top is at most 127, n is below 2^32, and counts[level + top] grows
/// by how often each level occurs: 2 * top + 1 numbers, which the caller has set. No overlaps; no
/// alignment beyond the element's.
[[nodiscard]] int quantize_with_feedback(const float* x, float* residual, std::size_t n, float step,
                                         std::int32_t top, std::int16_t* levels,
                                         std::uint32_t* counts, CUstream_st* stream);

}  // namespace fl::cuda
