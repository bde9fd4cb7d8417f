// Labelled images in IDX files (LeCun's format of MNIST), plain or gzipped. Pure functions of the
// files; any thread.
#pragma once

#include "shared/base/error.hpp"

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace fl {

/// Example i is pixels [i * rows * columns, (i + 1) * rows * columns), row by row, 0 to 255, and
/// labels[i].
struct ImageSet {
  std::uint32_t rows = 0;
  std::uint32_t columns = 0;
  std::vector<std::uint8_t> pixels;
  std::vector<std::uint8_t> labels;

  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(labels.size()); }
  /// The examples with these indices, in this order. Each index < size().
  [[nodiscard]] ImageSet select(std::span<const std::uint32_t> indices) const;
};

inline constexpr std::uint32_t image_side_max = 4096;
inline constexpr std::uint64_t image_bytes_max = 4ull << 30;  // All pixels of one file.

/// Reads an image file and its label file. Errors name the file and the place in it: not_found, io,
/// corrupt (magic number, truncated, bytes after the end, broken gzip), too_large, and corrupt for
/// counts that differ, no examples at all, or a label that is not below `classes`.
[[nodiscard]] Result<ImageSet> read_idx(const std::filesystem::path& images,
                                        const std::filesystem::path& labels, std::uint32_t classes);

}  // namespace fl
