// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/idx.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>

namespace fl {

namespace {

constexpr std::uint32_t images_magic = 0x803;  // Unsigned bytes, three dimensions.
constexpr std::uint32_t labels_magic = 0x801;  // Unsigned bytes, one dimension.
// The file is read in pieces, so memory grows with its real size, not with the size in its header.
constexpr std::size_t piece_bytes = 4 << 20;

// Reads a file through zlib, which unpacks a gzipped file and passes a plain one through.
class GzipReader {
 public:
  static Result<GzipReader> open(const std::filesystem::path& path) {
    errno = 0;
    gzFile file = gzopen(path.c_str(), "rb");
    if (file == nullptr) return errno_error(fmt::format("open {}", path.string()));
    gzbuffer(file, 256 << 10);
    return GzipReader(path.string(), file);
  }

  /// Fills `out`. `what` names the data in the error for a file that is too short.
  Result<void> read(std::span<std::uint8_t> out, std::string_view what) {
    const int got = gzread(file_.get(), out.data(), static_cast<unsigned>(out.size()));
    if (got < 0) return broken();
    offset_ += static_cast<std::uint64_t>(got);
    if (static_cast<std::size_t>(got) == out.size()) return {};
    if (is_broken()) return broken();
    return corrupt(fmt::format("the file ends at byte {}, within {}", offset_, what));
  }

  Result<std::uint32_t> read_number(std::string_view what) {
    std::uint8_t big_endian[4];
    FL_CHECK(read(big_endian, what));
    return std::uint32_t{big_endian[0]} << 24 | std::uint32_t{big_endian[1]} << 16 |
           std::uint32_t{big_endian[2]} << 8 | std::uint32_t{big_endian[3]};
  }

  Result<std::vector<std::uint8_t>> read_bytes(std::uint64_t bytes, std::string_view what) {
    std::vector<std::uint8_t> all;
    while (all.size() < bytes) {
      const std::size_t begin = all.size();
      all.resize(begin + std::min<std::uint64_t>(piece_bytes, bytes - begin));
      FL_CHECK(read(std::span(all).subspan(begin), what));
    }
    return all;
  }

  Result<void> expect_end() {
    std::uint8_t extra;
    const int got = gzread(file_.get(), &extra, 1);
    if (got > 0) return corrupt(fmt::format("the file has extra bytes after byte {}", offset_));
    if (got < 0 || is_broken()) return broken();
    return {};
  }

  Error corrupt(std::string_view what) const {
    return {Errc::corrupt, fmt::format("{}: {}", path_, what)};
  }

 private:
  struct Close {
    void operator()(gzFile file) const noexcept { gzclose(file); }
  };

  GzipReader(std::string path, gzFile file) : path_(std::move(path)), file_(file) {}

  // For a truncated gzip stream gzread returns the data before the end; only gzerror reports it.
  bool is_broken() const {
    int code = Z_OK;
    gzerror(file_.get(), &code);
    return code != Z_OK;
  }

  Error broken() const {
    int code = Z_OK;
    const char* text = gzerror(file_.get(), &code);
    if (code == Z_ERRNO) return errno_error(fmt::format("read {}", path_));
    return corrupt(
        fmt::format("broken gzip stream near byte {} of its contents ({})", offset_, text));
  }

  std::string path_;
  std::unique_ptr<gzFile_s, Close> file_;
  std::uint64_t offset_ = 0;  // In the unpacked data.
};

Result<void> expect_magic(GzipReader& reader, std::uint32_t wanted, std::string_view kind) {
  FL_TRY(const std::uint32_t magic, reader.read_number("its magic number"));
  if (magic == wanted) return {};
  return reader.corrupt(
      fmt::format("not an IDX file of {}: it starts with {:#010x}, expected "
                  "{:#010x}",
                  kind, magic, wanted));
}

Result<DataSet> read_images(const std::filesystem::path& path) {
  FL_TRY(GzipReader reader, GzipReader::open(path));
  FL_CHECK(expect_magic(reader, images_magic, "images"));
  FL_TRY(const std::uint32_t count, reader.read_number("its number of images"));
  FL_TRY(const std::uint32_t rows, reader.read_number("its number of rows"));
  FL_TRY(const std::uint32_t columns, reader.read_number("its number of columns"));
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
  FL_TRY(auto pixels, reader.read_bytes(std::uint64_t{count} * rows * columns, "its pixels"));
  FL_CHECK(reader.expect_end());
  return DataSet{.kind = DataSet::Kind::pixels,
                 .shape = {1, rows, columns},
                 .inputs = Storage(std::move(pixels))};
}

Result<std::vector<std::uint8_t>> read_labels(const std::filesystem::path& path) {
  FL_TRY(GzipReader reader, GzipReader::open(path));
  FL_CHECK(expect_magic(reader, labels_magic, "labels"));
  FL_TRY(const std::uint32_t count, reader.read_number("its number of labels"));
  FL_TRY(std::vector<std::uint8_t> labels, reader.read_bytes(count, "its labels"));
  FL_CHECK(reader.expect_end());
  return labels;
}

}  // namespace

Result<DataSet> read_idx(const std::filesystem::path& images, const std::filesystem::path& labels) {
  FL_TRY(DataSet set, read_images(images));
  FL_TRY(const auto classes, read_labels(labels));
  if (classes.size() != set.size()) {
    return Error(Errc::corrupt,
                 fmt::format("{} holds {} images, but {} holds {} labels", images.string(),
                             set.size(), labels.string(), classes.size()));
  }
  set.labels.assign(classes.begin(), classes.end());
  set.classes = std::ranges::max(set.labels) + 1;
  return set;
}

}  // namespace fl
