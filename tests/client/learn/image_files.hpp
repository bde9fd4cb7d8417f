// SPDX-License-Identifier: Apache-2.0
// Small JPEG and PNG files for tests.
#pragma once

#include <png.h>
#include <turbojpeg.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace fl::test {

/// A PNG file; `format` is one of libpng's, such as PNG_FORMAT_RGB.
inline std::string png_bytes(std::uint32_t rows, std::uint32_t columns, std::uint32_t format,
                             const void* pixels) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = columns;
  image.height = rows;
  image.format = format;
  std::string bytes(PNG_IMAGE_PNG_SIZE_MAX(image), '\0');
  png_alloc_size_t size = bytes.size();
  if (png_image_write_to_memory(&image, bytes.data(), &size, 0, pixels, 0, nullptr) == 0)
    throw std::runtime_error(image.message);
  bytes.resize(size);
  return bytes;
}

/// A JPEG file of the best quality; TJSAMP_GRAY makes it grey.
inline std::string jpeg_bytes(int rows, int columns, const std::vector<std::uint8_t>& rgb,
                              int subsampling = TJSAMP_444) {
  const auto compressor = tjInitCompress();
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  const int failed = tjCompress2(compressor, rgb.data(), columns, 0, rows, TJPF_RGB, &bytes, &size,
                                 subsampling, 100, TJFLAG_ACCURATEDCT);
  const std::string file(reinterpret_cast<const char*>(bytes), size);
  tjFree(bytes);
  tjDestroy(compressor);
  if (failed != 0) throw std::runtime_error("tjCompress2");
  return file;
}

}  // namespace fl::test
