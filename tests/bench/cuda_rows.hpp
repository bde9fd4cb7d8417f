// The GPU's lines of kernels_bench.
#pragma once

#include <cstddef>

/// Prints the speed of each CUDA kernel beside that of a copy in device memory, for n values; a
/// line that says so where there is no device. n is at least 65,536.
void measure_cuda_rows(std::size_t n);
