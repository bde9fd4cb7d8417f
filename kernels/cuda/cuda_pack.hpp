// Levels as bit fields (kernels/generic/pack.hpp) on a device: the same bytes, the same verdicts.
//
// Device memory of the current device, on `stream`, not waited for, no memory of its own; 0, or the
// start's cudaError_t (cuda_kernels.hpp). No overlaps; no alignment beyond the element's.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace fl::cuda {

[[nodiscard]] int pack_levels(const std::int16_t* x, std::size_t n, std::int32_t levels,
                              std::uint8_t* out, CUstream_st* stream);

/// Where the host's says false, `is_bad` becomes 1; else it stays as the caller has set it.
[[nodiscard]] int unpack_levels(const std::uint8_t* packed, std::size_t n, std::int32_t levels,
                                std::int16_t* out, std::uint32_t* is_bad, CUstream_st* stream);

[[nodiscard]] int pack_codes(const std::int16_t* x, std::size_t n, int bits, std::uint8_t* out,
                             CUstream_st* stream);
[[nodiscard]] int unpack_codes(const std::uint8_t* packed, std::size_t n, int bits,
                               std::int16_t* out, std::uint32_t* is_bad, CUstream_st* stream);

}  // namespace fl::cuda
