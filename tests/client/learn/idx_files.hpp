// SPDX-License-Identifier: Apache-2.0
// Small IDX files for tests.
#pragma once

#include "tests/support/temporary_folder.hpp"

#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace fl::test {

inline std::string big_endian(std::uint32_t number) {
  std::string bytes;
  for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(number >> shift);
  return bytes;
}

inline std::string idx_images(std::uint32_t count, std::uint32_t rows, std::uint32_t columns,
                              std::string_view pixels) {
  return big_endian(0x803) + big_endian(count) + big_endian(rows) + big_endian(columns) +
         std::string(pixels);
}

inline std::string idx_labels(std::uint32_t count, std::string_view labels) {
  return big_endian(0x801) + big_endian(count) + std::string(labels);
}

inline void write_plain(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file) throw std::runtime_error("write " + path.string());
}

inline void write_gzipped(const std::filesystem::path& path, std::string_view bytes) {
  gzFile file = gzopen(path.c_str(), "wb");
  const int written = gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  if (gzclose(file) != Z_OK || written != static_cast<int>(bytes.size())) {
    throw std::runtime_error("write " + path.string());
  }
}

}  // namespace fl::test
