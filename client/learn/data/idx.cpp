// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/idx.hpp"

#include "client/learn/data/gzip_reader.hpp"
#include "client/learn/data/kept_bytes.hpp"
#include "client/learn/data/storage_writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace fl {

namespace {

constexpr std::uint32_t images_magic = 0x803;  // Unsigned bytes, three dimensions.
constexpr std::uint32_t labels_magic = 0x801;  // Unsigned bytes, one dimension.
// The file is read in pieces, so memory grows with its real size, not with the size in its header.
constexpr std::size_t piece_bytes = 4 << 20;

Result<std::uint32_t> read_number(GzipReader& reader, std::string_view what) {
  std::uint8_t big_endian[4];
  FL_CHECK(reader.read(big_endian, what));
  return std::uint32_t{big_endian[0]} << 24 | std::uint32_t{big_endian[1]} << 16 |
         std::uint32_t{big_endian[2]} << 8 | std::uint32_t{big_endian[3]};
}

Result<void> expect_magic(GzipReader& reader, std::uint32_t wanted, std::string_view kind) {
  FL_TRY(const std::uint32_t magic, read_number(reader, "its magic number"));
  if (magic == wanted) return {};
  return reader.corrupt(
      fmt::format("not an IDX file of {}: it starts with {:#010x}, expected "
                  "{:#010x}",
                  kind, magic, wanted));
}

/// `examples`: so many there must be. Their number is known before memory is taken for them.
Result<std::vector<std::uint8_t>> read_idx_labels(const std::filesystem::path& path,
                                                  const std::filesystem::path& images,
                                                  std::uint64_t examples,
                                                  std::uint64_t memory_bytes) {
  FL_TRY(GzipReader reader, GzipReader::open(path));
  FL_CHECK(expect_magic(reader, labels_magic, "labels"));
  FL_TRY(const std::uint32_t count, read_number(reader, "its number of labels"));
  if (count != examples) {
    return Error(Errc::corrupt, fmt::format("{} holds {} images, but {} holds {} labels",
                                            images.string(), examples, path.string(), count));
  }
  FL_CHECK(KeptBytes::beside(memory_bytes)
               .add(std::uint64_t{count} * (sizeof(std::uint8_t) + sizeof(std::uint32_t))));
  std::vector<std::uint8_t> labels;
  while (labels.size() < count) {
    const std::size_t begin = labels.size();
    labels.resize(begin + std::min<std::size_t>(piece_bytes, count - begin));
    FL_CHECK(reader.read(std::span(labels).subspan(begin), "its labels"));
  }
  FL_CHECK(reader.expect_end());
  return labels;
}

}  // namespace

Result<DataSet> read_idx_images(const std::filesystem::path& path, std::uint64_t memory_bytes) {
  FL_TRY(GzipReader reader, GzipReader::open(path));
  FL_CHECK(expect_magic(reader, images_magic, "images"));
  FL_TRY(const std::uint32_t count, read_number(reader, "its number of images"));
  FL_TRY(const std::uint32_t rows, read_number(reader, "its number of rows"));
  FL_TRY(const std::uint32_t columns, read_number(reader, "its number of columns"));
  if (count == 0 || rows == 0 || columns == 0) {
    return reader.corrupt(fmt::format("it has {} images of {} x {} pixels", count, rows, columns));
  }
  // Check the sides first, so that the product can't overflow 64 bits.
  if (rows > image_side_max || columns > image_side_max ||
      std::uint64_t{count} * rows * columns > image_bytes_max) {
    return Error(
        Errc::too_large,
        fmt::format("{}: it has {} images of {} x {} pixels; the limits are {} pixels per side and "
                    "{} bytes in all",
                    path.string(), count, rows, columns, image_side_max, image_bytes_max));
  }
  StorageWriter writer(memory_bytes);
  std::vector<std::uint8_t> piece;
  for (std::uint64_t left = std::uint64_t{count} * rows * columns; left > 0;) {
    piece.resize(std::min<std::uint64_t>(piece_bytes, left));
    FL_CHECK(reader.read(piece, "its pixels"));
    FL_CHECK(writer.append(std::as_bytes(std::span(piece))));
    left -= piece.size();
  }
  FL_CHECK(reader.expect_end());
  FL_TRY(auto pixels, writer.finish());
  return DataSet{
      .kind = DataSet::Kind::pixels, .shape = {1, rows, columns}, .inputs = std::move(pixels)};
}

Result<DataSet> read_idx(const std::filesystem::path& images, const std::filesystem::path& labels,
                         std::uint64_t memory_bytes) {
  FL_TRY(DataSet set, read_idx_images(images, memory_bytes));
  FL_TRY(const auto classes, read_idx_labels(labels, images, set.size(), memory_bytes));
  set.labels.assign(classes.begin(), classes.end());
  set.classes = std::ranges::max(set.labels) + 1;
  return set;
}

}  // namespace fl
