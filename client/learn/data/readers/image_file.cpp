// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/readers/image_file.hpp"

#include "shared/base/printable.hpp"

#include <fmt/format.h>
#include <png.h>
#include <turbojpeg.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <type_traits>

namespace fl {

namespace {

constexpr std::array<std::uint8_t, 8> png_signature = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
constexpr std::array<std::uint8_t, 3> jpeg_signature = {0xff, 0xd8, 0xff};

template <std::size_t bytes>
bool begins_with(std::span<const std::byte> file,
                 const std::array<std::uint8_t, bytes>& signature) {
  return file.size() >= bytes && std::ranges::equal(file.first(bytes), signature, {}, {},
                                                    [](std::uint8_t b) { return std::byte{b}; });
}

Result<void> check_size(std::uint64_t rows, std::uint64_t columns) {
  if (rows > 0 && columns > 0 && rows <= decoded_side_max && columns <= decoded_side_max &&
      rows * columns <= decoded_pixels_max)
    return {};
  return Error(Errc::too_large,
               fmt::format("it has {} x {} pixels; the limits are {} pixels per side and {} in all",
                           rows, columns, decoded_side_max, decoded_pixels_max));
}

Image make_image(std::uint64_t rows, std::uint64_t columns, std::uint32_t channels) {
  return {.rows = static_cast<std::uint32_t>(rows),
          .columns = static_cast<std::uint32_t>(columns),
          .channels = channels,
          .pixels = std::vector<std::uint8_t>(rows * columns * channels)};
}

Result<Image> decode_jpeg(std::span<const std::byte> file, std::uint32_t channels) {
  struct Destroy {
    void operator()(void* decoder) const noexcept { tjDestroy(decoder); }
  };
  const std::unique_ptr<void, Destroy> decoder(tjInitDecompress());
  if (!decoder) return Error(Errc::internal, "libjpeg-turbo could not start");
  const auto broken = [&] {
    return Error(Errc::corrupt,
                 fmt::format("broken JPEG: {}", printable(tjGetErrorStr2(decoder.get()))));
  };
  const auto* const bytes = reinterpret_cast<const unsigned char*>(file.data());
  int columns = 0;
  int rows = 0;
  int subsampling = 0;
  int colours = 0;
  if (tjDecompressHeader3(decoder.get(), bytes, file.size(), &columns, &rows, &subsampling,
                          &colours) != 0)
    return broken();
  // libjpeg-turbo takes a file that ends before its sizes for one without pixels.
  if (columns <= 0 || rows <= 0) return broken();
  if (colours == TJCS_CMYK || colours == TJCS_YCCK)
    return Error(Errc::invalid_input, "its colours are CMYK; convert it to RGB");
  FL_CHECK(check_size(static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns)));
  Image image =
      make_image(static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), channels);
  // A warning is a damaged or truncated file, whose other pixels would be made up.
  const int flags = TJFLAG_ACCURATEDCT | TJFLAG_STOPONWARNING | TJFLAG_LIMITSCANS;
  if (tjDecompress2(decoder.get(), bytes, file.size(), image.pixels.data(), columns, 0, rows,
                    channels == 1 ? TJPF_GRAY : TJPF_RGB, flags) != 0)
    return broken();
  return image;
}

/// The luma of ITU-R BT.601, as JPEG has it.
Image grey_of(const Image& image) {
  Image grey = make_image(image.rows, image.columns, 1);
  for (std::size_t i = 0; i < grey.pixels.size(); ++i) {
    const std::uint8_t* const pixel = image.pixels.data() + 3 * i;
    grey.pixels[i] = static_cast<std::uint8_t>(
        (299U * pixel[0] + 587U * pixel[1] + 114U * pixel[2] + 500) / 1000);
  }
  return grey;
}

Result<Image> decode_png(std::span<const std::byte> file, std::uint32_t channels) {
  struct Free {
    void operator()(png_image* image) const noexcept { png_image_free(image); }
  };
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  const std::unique_ptr<png_image, Free> guard(&png);
  const auto broken = [&png] {
    return Error(Errc::corrupt, fmt::format("broken PNG: {}", printable(png.message)));
  };
  if (png_image_begin_read_from_memory(&png, file.data(), file.size()) == 0) return broken();
  if ((png.format & PNG_FORMAT_FLAG_LINEAR) != 0)
    return Error(Errc::invalid_input, "it has 16 bits for each channel; convert it to 8 bits");
  FL_CHECK(check_size(png.height, png.width));
  const bool is_colour = (png.format & PNG_FORMAT_FLAG_COLOR) != 0;
  // Colours become grey here, in one way for both formats.
  png.format = is_colour || channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
  Image image = make_image(png.height, png.width, png.format == PNG_FORMAT_RGB ? 3 : 1);
  const png_color white = {255, 255, 255};
  if (png_image_finish_read(&png, &white, image.pixels.data(), 0, nullptr) == 0) return broken();
  return image.channels == channels ? std::move(image) : grey_of(image);
}

/// Which pixels of a side make a pixel of the new side, and how much each counts.
struct Window {
  std::uint32_t first = 0;
  std::vector<float> weights;
};

std::vector<Window> windows(std::uint32_t from, std::uint32_t to) {
  const double scale = static_cast<double>(from) / to;
  const double reach = std::max(scale, 1.0);
  std::vector<Window> all(to);
  for (std::uint32_t i = 0; i < to; ++i) {
    const double centre = (i + 0.5) * scale;
    const auto first = static_cast<std::uint32_t>(std::max(0.0, std::floor(centre - reach)));
    const auto end = std::min(from, static_cast<std::uint32_t>(std::ceil(centre + reach)));
    all[i].first = first;
    double sum = 0;
    std::vector<double> weights;
    for (std::uint32_t j = first; j < end; ++j) {
      weights.push_back(std::max(0.0, 1 - std::abs(j + 0.5 - centre) / reach));
      sum += weights.back();
    }
    for (const double weight : weights) all[i].weights.push_back(static_cast<float>(weight / sum));
  }
  return all;
}

/// Sums pixels that are `step` bytes apart.
std::uint8_t weighted(const std::uint8_t* pixel, std::size_t step, const Window& window) {
  float sum = 0.5F;
  for (const float weight : window.weights) {
    sum += weight * static_cast<float>(*pixel);
    pixel += step;
  }
  return static_cast<std::uint8_t>(std::clamp(sum, 0.0F, 255.0F));
}

}  // namespace

Result<Image> decode_image(std::span<const std::byte> file, std::uint32_t channels) {
  FL_ASSERT(channels == 1 || channels == 3);
  if (begins_with(file, png_signature)) return decode_png(file, channels);
  if (begins_with(file, jpeg_signature)) return decode_jpeg(file, channels);
  return Error(Errc::corrupt, "it is neither a JPEG nor a PNG file");
}

Image resize_image(const Image& image, std::uint32_t rows, std::uint32_t columns) {
  const std::size_t channels = image.channels;
  Image wide = make_image(image.rows, columns, image.channels);
  const auto across = windows(image.columns, columns);
  for (std::size_t row = 0; row < image.rows; ++row) {
    const std::uint8_t* const from = image.pixels.data() + row * image.columns * channels;
    std::uint8_t* const to = wide.pixels.data() + row * columns * channels;
    for (std::size_t i = 0; i < columns * channels; ++i) {
      const Window& window = across[i / channels];
      to[i] = weighted(from + window.first * channels + i % channels, channels, window);
    }
  }
  Image resized = make_image(rows, columns, image.channels);
  const auto down = windows(image.rows, rows);
  const std::size_t line = columns * channels;
  for (std::size_t row = 0; row < rows; ++row) {
    const Window& window = down[row];
    for (std::size_t i = 0; i < line; ++i)
      resized.pixels[row * line + i] =
          weighted(wide.pixels.data() + window.first * line + i, line, window);
  }
  return resized;
}

}  // namespace fl
