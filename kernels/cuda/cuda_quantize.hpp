// The quantizers' step with error feedback, fused: one pass over memory instead of four (EF-SGD,
// Karimireddy 2019, algorithm 2, around the rounding of QSGD, Alistarh 2017, section 3.1). The same
// bits as the table's rows give one after the other.
//
// Device memory of the current device, on `stream`, not waited for, no memory of its own; 0, or the
// start's cudaError_t (cuda_kernels.hpp).
#pragma once

#include "kernels/kernels.hpp"

struct CUstream_st;

namespace fl::cuda {

/// For each i: whole = x[i] + residual[i]; levels[i] = quantize(whole); residual[i] = whole -
/// dequantize(levels[i]) with `step`. Unless `counts` is nullptr, args.levels is at most 127, n is
/// below 2^32, and counts[level + args.levels] grows by how often each level occurs: 2 *
/// args.levels
/// + 1 numbers, which the caller has set. No overlaps; no alignment beyond the element's.
[[nodiscard]] int quantize_with_feedback(const float* x, float* residual, std::size_t n,
                                         const QuantizeArgs& args, float step, std::int16_t* levels,
                                         std::uint32_t* counts, CUstream_st* stream);

}  // namespace fl::cuda
