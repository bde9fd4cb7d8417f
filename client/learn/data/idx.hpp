// SPDX-License-Identifier: Apache-2.0
// Reads labelled images from IDX files (LeCun's format for MNIST), plain or gzipped. Any thread.
#pragma once

#include "client/learn/data/dataset.hpp"
#include "shared/base/error.hpp"

#include <cstdint>
#include <filesystem>

namespace fl {

inline constexpr std::uint32_t image_side_max = 4096;
inline constexpr std::uint64_t image_bytes_max = 4ull << 30;  // The pixels of one file.

/// Reads an image file and its label file; the shape is 1 x rows x columns. Errors name the file
/// and the place in it: not_found, io, too_large, and corrupt for a wrong magic number, a truncated
/// file, bytes after the end, broken gzip data, different counts of images and labels, or no
/// examples. Pixels beyond `memory_bytes` go to the disk (see StorageWriter).
[[nodiscard]] Result<DataSet> read_idx(const std::filesystem::path& images,
                                       const std::filesystem::path& labels,
                                       std::uint64_t memory_bytes = 0);

/// Reads an image file alone: a set without labels. Errors: as above.
[[nodiscard]] Result<DataSet> read_idx_images(const std::filesystem::path& images,
                                              std::uint64_t memory_bytes = 0);

}  // namespace fl
