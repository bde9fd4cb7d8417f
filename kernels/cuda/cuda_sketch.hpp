// Count sketches (kernels/generic/sketch.hpp) on a device. Calls are as in cuda_kernels.hpp: memory
// of the current device, on `stream`, without waiting, and the result is 0 or the cudaError_t of
// the start.
#pragma once

#include "kernels/codec_device.hpp"

struct CUstream_st;

namespace fl::cuda {

/// Writes the estimates of all elements of `count` sketches.
[[nodiscard]] int read_sketches(const SketchBlock* sketches, std::size_t count, const float* cells,
                                float* estimates, CUstream_st* stream);

}  // namespace fl::cuda
