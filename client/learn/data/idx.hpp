// SPDX-License-Identifier: Apache-2.0
// Reads labelled images from IDX files (LeCun's format for MNIST), plain or gzipped. Any thread.
#pragma once

#include "shared/base/error.hpp"

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace fl {

/// A set of images. Example i has the label labels[i] and the pixels
/// [i * rows * columns, (i + 1) * rows * columns), row by row, from 0 to 255.
struct ImageSet {
  std::uint32_t rows = 0;
  std::uint32_t columns = 0;
  std::vector<std::uint8_t> pixels;
  std::vector<std::uint8_t> labels;

  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(labels.size()); }
  /// Returns the examples with these indices, in this order. Each index must be < size().
  [[nodiscard]] ImageSet select(std::span<const std::uint32_t> indices) const;
};

inline constexpr std::uint32_t image_side_max = 4096;
inline constexpr std::uint64_t image_bytes_max = 4ull << 30;  // The pixels of one file.

/// Reads an image file and its label file. Errors name the file and the place in it: not_found, io,
/// too_large, and corrupt for a wrong magic number, a truncated file, bytes after the end, broken
/// gzip data, different counts of images and labels, no examples, or a label >= `classes`.
[[nodiscard]] Result<ImageSet> read_idx(const std::filesystem::path& images,
                                        const std::filesystem::path& labels, std::uint32_t classes);

}  // namespace fl
