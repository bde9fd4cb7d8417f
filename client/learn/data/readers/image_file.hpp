// SPDX-License-Identifier: Apache-2.0
// Decodes an image file: JPEG with libjpeg-turbo, PNG with libpng. Both through the interfaces that
// report errors as values, so that no long jump crosses our frames. Any thread.
#pragma once

#include "shared/base/error.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fl {

// Of a file. Checked before the pixels take memory.
inline constexpr std::uint64_t image_file_bytes_max = 256ull << 20;
inline constexpr std::uint32_t decoded_side_max = 1 << 14;
inline constexpr std::uint64_t decoded_pixels_max = 1ull << 26;

struct Image {
  std::uint32_t rows = 0;
  std::uint32_t columns = 0;
  std::uint32_t channels = 0;
  std::vector<std::uint8_t> pixels = {};  // Row by row, the channels of a pixel side by side.
};

/// Decodes into 1 channel (grey) or 3 (red, green, blue), whatever the file has. Transparent parts
/// become white. Errors without the file's name: corrupt for what is neither format or damaged,
/// invalid_input for kinds that are not supported, too_large.
[[nodiscard]] Result<Image> decode_image(std::span<const std::byte> file, std::uint32_t channels);

/// The image in another size: each pixel is the mean of those near it, weighted by a triangle
/// (bilinear; over a wider part where the image shrinks). The same bits on every machine.
[[nodiscard]] Image resize_image(const Image& image, std::uint32_t rows, std::uint32_t columns);

}  // namespace fl
