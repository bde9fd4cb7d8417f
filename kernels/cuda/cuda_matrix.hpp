// SPDX-License-Identifier: Apache-2.0
// Products of a matrix on a device with a few vectors, as PowerSGD (Vogels 2019) and Gradzip need
// them. cuBLAS would add in another order, and a payload must have the same bytes on every machine.
// Little speed is lost: with a few vectors, reading the matrix takes most of the time.
//
// Calls are as in cuda_kernels.hpp: memory of the current device, on `stream`, without waiting, and
// the result is 0 or the cudaError_t of the start. They allocate nothing. Pointers must not
// overlap, and need no more alignment than the element's type.
#pragma once

#include "kernels/generic/matrix.hpp"

struct CUstream_st;

namespace fl::cuda {

/// The functions of these names in kernels/generic/matrix.hpp.
[[nodiscard]] int multiply(const float* matrix, const MatrixSizes& sizes, const float* right,
                           float* left, CUstream_st* stream);
[[nodiscard]] int multiply_transposed(const float* matrix, const MatrixSizes& sizes,
                                      const float* left, float* right, CUstream_st* stream);

}  // namespace fl::cuda
