// SPDX-License-Identifier: Apache-2.0
// The GPU's part of kernels_bench.
#pragma once

#include <cstddef>

/// Prints the speed of each CUDA kernel for n values, compared with a copy in device memory.
/// Without a device it prints one line that says so. Requires n >= 65,536.
void measure_cuda_rows(std::size_t n);
