// SPDX-License-Identifier: Apache-2.0
// Levels as bit fields (kernels/generic/pack.hpp) on a device, with the same bytes and results.
//
// Calls are as in cuda_kernels.hpp: memory of the current device, on `stream`, without waiting, and
// the result is 0 or the cudaError_t of the start. They allocate nothing. Pointers must not
// overlap, and need no more alignment than the element's type.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace fl::cuda {

[[nodiscard]] int pack_levels(const std::int16_t* x, std::size_t n, std::int32_t levels,
                              std::uint8_t* out, CUstream_st* stream);

/// Sets `is_bad` to 1 if the host's function would return false. Otherwise `is_bad` keeps the value
/// that the caller has set. unpack_codes() does the same.
[[nodiscard]] int unpack_levels(const std::uint8_t* packed, std::size_t n, std::int32_t levels,
                                std::int16_t* out, std::uint32_t* is_bad, CUstream_st* stream);

[[nodiscard]] int pack_codes(const std::int16_t* x, std::size_t n, int bits, std::uint8_t* out,
                             CUstream_st* stream);
[[nodiscard]] int unpack_codes(const std::uint8_t* packed, std::size_t n, int bits,
                               std::int16_t* out, std::uint32_t* is_bad, CUstream_st* stream);

}  // namespace fl::cuda
