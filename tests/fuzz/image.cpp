// SPDX-License-Identifier: Apache-2.0
// Fuzzes a JPEG or PNG file, and resizes what comes out. The input is a byte of choices, the rows
// and the columns of the new size, then the file.
#include "client/learn/data/readers/image_file.hpp"

#include "tests/fuzz/data_set.hpp"

using namespace fl;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 3) return 0;
  const std::uint32_t channels = (data[0] & 1) != 0 ? 1 : 3;
  const auto image = decode_image(std::as_bytes(std::span(data, size)).subspan(3), channels);
  if (!image) {
    fuzz::check_error(image.error());
    return 0;
  }
  FL_ASSERT(image->channels == channels);
  FL_ASSERT(image->rows > 0 && image->rows <= decoded_side_max);
  FL_ASSERT(image->columns > 0 && image->columns <= decoded_side_max);
  FL_ASSERT(image->pixels.size() == std::size_t{channels} * image->rows * image->columns);
  const std::uint32_t rows = data[1] + 1U;
  const std::uint32_t columns = data[2] + 1U;
  const Image resized = resize_image(*image, rows, columns);
  FL_ASSERT(resized.pixels.size() == std::size_t{channels} * rows * columns);
  return 0;
}
