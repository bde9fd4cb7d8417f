// The products that PowerSGD (Vogels 2019) and Gradzip need, of a matrix that lies on a device. Not
// cuBLAS's, whose sums are in an order of their own: a payload has the same bytes wherever it is
// made, and with a few vectors reading the matrix takes most of the time.
//
// Device memory of the current device, on `stream`, not waited for, no memory of its own; 0, or the
// start's cudaError_t (cuda_kernels.hpp). No overlaps; no alignment beyond the element's.
#pragma once

#include "kernels/generic/matrix.hpp"

struct CUstream_st;

namespace fl::cuda {

/// As the functions of these names in kernels/generic/matrix.hpp.
[[nodiscard]] int multiply(const float* matrix, const MatrixSizes& sizes, const float* right,
                           float* left, CUstream_st* stream);
[[nodiscard]] int multiply_transposed(const float* matrix, const MatrixSizes& sizes,
                                      const float* left, float* right, CUstream_st* stream);

}  // namespace fl::cuda
