// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/idx.hpp"
#include "tests/client/learn/idx_files.hpp"
#include "tests/support/image_data.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

using namespace fl::test;

// Three images of 2 x 2 pixels with labels 9, 0, 4.
struct Files {
  TemporaryFolder folder;
  std::filesystem::path images = folder.path() / "images";
  std::filesystem::path labels = folder.path() / "labels";
  std::string image_bytes = idx_images(3, 2, 2, "abcdefghijkl");
  std::string label_bytes = idx_labels(3, std::string_view("\x09\x00\x04", 3));

  Files() { write(); }
  void write() {
    write_plain(images, image_bytes);
    write_plain(labels, label_bytes);
  }
  [[nodiscard]] auto read() const { return fl::read_idx(images, labels); }
  // Reading must fail with this code, naming this file and these words.
  void expect(fl::Errc code, const std::filesystem::path& file, std::string_view words) const {
    const auto got = read();
    REQUIRE(got.has_error());
    CAPTURE(got.error().message());
    CHECK(got.error().code() == code);
    CHECK(got.error().message().find(file.string()) != std::string::npos);
    CHECK(got.error().message().find(words) != std::string::npos);
  }
};

std::string text_of(const fl::DataSet& set) {
  const auto pixels = pixels_of(set);
  return {pixels.begin(), pixels.end()};
}

std::string slurp(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("plain and gzipped files hold the same examples") {
  Files files;
  const auto check = [&] {
    const auto set = files.read();
    REQUIRE(set.has_value());
    CHECK(set->shape == std::vector<std::int64_t>{1, 2, 2});
    CHECK(set->size() == 3);
    CHECK(text_of(*set) == "abcdefghijkl");
    CHECK(set->labels == std::vector<std::uint32_t>{9, 0, 4});
    CHECK(set->classes == 10);
  };
  check();
  write_gzipped(files.images, files.image_bytes);
  check();
  write_gzipped(files.labels, files.label_bytes);
  check();
}

TEST_CASE("select() takes examples in the order of the indices") {
  const Files files;
  const auto set = files.read();
  REQUIRE(set.has_value());
  const std::vector<std::uint32_t> indices = {2, 0};
  const fl::DataSet chosen = set->select(indices);
  CHECK(text_of(chosen) == "ijklabcd");
  CHECK(chosen.labels == std::vector<std::uint32_t>{4, 9});
  CHECK(chosen.shape == set->shape);
}

// Cuts both files at every length, plain, and the file of images also gzipped.
TEST_CASE("a truncated file is corrupt, wherever it ends") {
  Files files;
  for (std::size_t n = 0; n < files.image_bytes.size(); ++n) {
    write_plain(files.images, files.image_bytes.substr(0, n));
    files.expect(fl::Errc::corrupt, files.images, "ends at byte");
  }
  files.write();
  for (std::size_t n = 0; n < files.label_bytes.size(); ++n) {
    write_plain(files.labels, files.label_bytes.substr(0, n));
    files.expect(fl::Errc::corrupt, files.labels, "ends at byte");
  }
  files.write();
  write_gzipped(files.images, files.image_bytes);
  const std::string gzipped = slurp(files.images);
  for (std::size_t n = 0; n < gzipped.size(); ++n) {
    CAPTURE(n);
    write_plain(files.images, gzipped.substr(0, n));
    files.expect(fl::Errc::corrupt, files.images, "");
  }
}

// Flips each bit of a gzipped file. Some bits don't affect the contents (the header's time,
// padding); CRC and length detect the rest.
TEST_CASE("a gzip stream with a flipped bit is corrupt or has the same contents") {
  Files files;
  write_gzipped(files.images, files.image_bytes);
  const std::string gzipped = slurp(files.images);
  for (std::size_t bit = 0; bit < gzipped.size() * 8; ++bit) {
    CAPTURE(bit);
    std::string damaged = gzipped;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    write_plain(files.images, damaged);
    const auto set = files.read();
    if (set) {
      CHECK(text_of(*set) == "abcdefghijkl");
    } else {
      CHECK(set.error().code() == fl::Errc::corrupt);
    }
  }
}

TEST_CASE("hostile files are refused, and the error names the file and the fault") {
  using fl::Errc;
  Files files;
  SUBCASE("wrong magic number") {
    write_plain(files.images, files.label_bytes);
    files.expect(Errc::corrupt, files.images, "0x00000801");
  }
  SUBCASE("bytes after the end") {
    write_plain(files.images, files.image_bytes + "x");
    files.expect(Errc::corrupt, files.images, "extra bytes after byte 28");
    files.write();
    write_gzipped(files.labels, files.label_bytes + "x");
    files.expect(Errc::corrupt, files.labels, "extra bytes after byte 11");
  }
  SUBCASE("nothing in it") {
    write_plain(files.images, idx_images(0, 2, 2, ""));
    files.expect(Errc::corrupt, files.images, "it has 0 images");
    write_plain(files.images, idx_images(3, 0, 2, ""));
    files.expect(Errc::corrupt, files.images, "0 x 2");
  }
  SUBCASE("sizes whose product overflows") {
    write_plain(files.images, idx_images(0xffffffff, 0xffffffff, 0xffffffff, ""));
    files.expect(Errc::too_large, files.images, "4294967295");
    write_plain(files.images, idx_images(0x01000000, 4096, 4096, ""));
    files.expect(Errc::too_large, files.images, "16777216");
  }
  SUBCASE("a claim of 4 GiB in 16 bytes") {
    write_plain(files.images, idx_images(1 << 20, 64, 64, ""));
    files.expect(Errc::corrupt, files.images, "ends at byte 16");
  }
  SUBCASE("counts that differ") {
    write_plain(files.labels, idx_labels(2, std::string_view("\x09\x00", 2)));
    files.expect(Errc::corrupt, files.labels, "2 labels");
  }
  SUBCASE("no such file") {
    std::filesystem::remove(files.labels);
    files.expect(Errc::not_found, files.labels, "open");
  }
  SUBCASE("a folder") {
    std::filesystem::remove(files.labels);
    std::filesystem::create_directory(files.labels);
    files.expect(Errc::io, files.labels, "is a folder");
  }
  SUBCASE("a pipe, which nobody writes to") {
    std::filesystem::remove(files.labels);
    REQUIRE(::mkfifo(files.labels.c_str(), 0600) == 0);
    files.expect(Errc::io, files.labels, "is a pipe (FIFO)");
  }
  SUBCASE("labels for other examples, a thousand times as many when unpacked") {
    write_gzipped(files.labels, idx_labels(4 << 20, std::string(4 << 20, '\0')));
    files.expect(Errc::corrupt, files.labels, "4194304 labels");
    // Refused by the count alone: what follows is not unpacked.
    write_plain(files.labels, idx_labels(0xffff'ffff, ""));
    files.expect(Errc::corrupt, files.labels, "4294967295 labels");
  }
}
