// Count sketches on a device (kernels/generic/sketch.hpp). Device memory of the current device, on
// `stream`, not waited for; 0, or the start's cudaError_t (cuda_kernels.hpp).
#pragma once

#include "kernels/codec_device.hpp"

struct CUstream_st;

namespace fl::cuda {

/// What all elements of `count` sketches are estimated at.
[[nodiscard]] int read_sketches(const SketchBlock* sketches, std::size_t count, const float* cells,
                                float* estimates, CUstream_st* stream);

}  // namespace fl::cuda
