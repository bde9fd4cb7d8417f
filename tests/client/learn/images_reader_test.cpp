// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/readers/image_file.hpp"
#include "tests/client/learn/image_files.hpp"
#include "tests/client/learn/reader_checks.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace {

using namespace fl::test;
using fl::Errc;
using Pixels = std::vector<std::uint8_t>;
using Labels = std::vector<std::uint32_t>;
using Shape = std::vector<std::int64_t>;

fl::Result<fl::Image> decode(const std::string& file, std::uint32_t channels) {
  return fl::decode_image(std::as_bytes(std::span(file)), channels);
}

Pixels all_pixels(const fl::DataSet& set) {
  const auto pixels = set.inputs.as<std::uint8_t>();
  return {pixels.begin(), pixels.end()};
}

// An RGB image whose colours change slowly, so that JPEG keeps them well.
Pixels slope(std::size_t rows, std::size_t columns) {
  Pixels rgb;
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t column = 0; column < columns; ++column) {
      rgb.push_back(static_cast<std::uint8_t>(40 + 6 * row));
      rgb.push_back(static_cast<std::uint8_t>(200 - 5 * column));
      rgb.push_back(static_cast<std::uint8_t>(90 + 2 * row + column));
    }
  }
  return rgb;
}

bool near(const Pixels& one, const Pixels& other, int most) {
  return std::ranges::equal(one, other, [most](int a, int b) { return std::abs(a - b) <= most; });
}

// Two classes with two images of 1 x 2 pixels each.
struct ImageFolder {
  TemporaryFolder folder;

  ImageFolder() {
    add("0/b.png", {1, 2, 3, 4, 5, 6});
    add("0/a.png", {7, 8, 9, 10, 11, 12});
    add("2/deep/c.PNG", {13, 14, 15, 16, 17, 18});
    write_plain(folder / "README", "not an image, and in no class");
    write_plain(folder / "0/.hidden", "not an image");
  }
  void add(const std::string& name, const Pixels& rgb, std::uint32_t rows = 1) const {
    std::filesystem::create_directories((folder / name).parent_path());
    const auto columns = static_cast<std::uint32_t>(rgb.size() / 3 / rows);
    write_plain(folder / name, png_bytes(rows, columns, PNG_FORMAT_RGB, rgb.data()));
  }
  [[nodiscard]] std::string data(const std::string& options = "") const {
    return "images:" + folder.path().string() + options;
  }
};

}  // namespace

TEST_CASE("images: a folder for each class, in the order of names, one channel behind the other") {
  const ImageFolder f;
  const fl::DataSet set = read_twice(f.data());
  CHECK(set.kind == fl::DataSet::Kind::pixels);
  CHECK(set.shape == Shape{3, 1, 2});
  CHECK(set.labels == Labels{0, 0, 2});
  CHECK(set.classes == 3);
  CHECK(all_pixels(set) == Pixels{7, 10, 8, 11, 9, 12, 1, 4, 2, 5, 3, 6, 13, 16, 14, 17, 15, 18});
  CHECK(set.targets.empty());
  CHECK(read_twice(f.data() + ",channels=1").shape == Shape{1, 1, 2});
  CHECK(read_twice(f.data() + ",size=4x3").shape == Shape{3, 4, 3});
}

TEST_CASE("images: a class has the number that classes= gives it, whichever a client has") {
  const ImageFolder f;
  std::filesystem::rename(f.folder / "0", f.folder / "cat");
  std::filesystem::rename(f.folder / "2", f.folder / "dog");
  const fl::DataSet set = read_twice(f.data(",classes=dog+bird+cat+ant"));
  CHECK(set.labels == Labels{2, 2, 0});
  CHECK(set.classes == 4);
  const std::string list = (f.folder / "names.txt").string();
  write_plain(list, "dog\r\nbird\n\ncat\nant");
  CHECK(read_twice(f.data(",classes=" + list)).labels == set.labels);
  CHECK(read_twice(f.data(",classes=" + list)).classes == 4);
  expect_no_data(f.data(), Errc::invalid_input,
                 {"/cat, ", "/dog: ", "the number of its class", "classes=A+B"});
  expect_no_data(f.data(",classes=dog+bird"), Errc::invalid_input, {"/cat: ", "not in classes="});
  expect_no_data(f.data(",classes=dog+cat+dog"), Errc::invalid_input, {"dog is named twice"});
  write_plain(list, "\n");
  expect_no_data(f.data(",classes=" + list), Errc::corrupt, {list, "names no class"});
  expect_no_data(f.data(",classes=/nonesuch.txt"), Errc::not_found, {"/nonesuch.txt"});
  for (const std::string name : {"01", "65536", "-1", "1.5"}) {
    std::filesystem::rename(f.folder / "cat", f.folder / name);
    expect_no_data(f.data(), Errc::invalid_input, {"/" + name + ", ", "the number of its class"});
    std::filesystem::rename(f.folder / name, f.folder / "cat");
  }
}

TEST_CASE("images: by:folder divides by the folders in the classes' folders") {
  const ImageFolder f;
  f.add("0/Oslo/a.png", {1, 2, 3, 4, 5, 6});
  f.add("2/Oslo/a.png", {1, 2, 3, 4, 5, 6});
  f.add("2/Bern/left/a.png", {1, 2, 3, 4, 5, 6});
  const fl::DataSet set = read_twice(f.data(), "folder");
  CHECK(set.labels == Labels{0, 0, 0, 2, 2, 2});
  CHECK(set.group_names == std::vector<std::string>{".", "Bern/left", "Oslo", "deep"});
  CHECK(set.groups == Labels{2, 0, 0, 1, 2, 3});
}

TEST_CASE("images: every kind of PNG gives its pixels, in colour and in grey") {
  const Pixels rgb = {255, 0, 0, 0, 255, 0, 0, 0, 255, 10, 20, 30};
  const std::string colour = png_bytes(2, 2, PNG_FORMAT_RGB, rgb.data());
  CHECK(decode(colour, 3)->pixels == rgb);
  CHECK(decode(colour, 3)->rows == 2);
  // 0.299 R + 0.587 G + 0.114 B.
  CHECK(decode(colour, 1)->pixels == Pixels{76, 150, 29, 18});
  const Pixels grey = {0, 100, 200, 255};
  const std::string plain = png_bytes(1, 4, PNG_FORMAT_GRAY, grey.data());
  CHECK(decode(plain, 1)->pixels == grey);
  CHECK(decode(plain, 3)->pixels == Pixels{0, 0, 0, 100, 100, 100, 200, 200, 200, 255, 255, 255});
  // Transparent pixels are white, opaque ones stay.
  const Pixels rgba = {9, 9, 9, 0, 1, 2, 3, 255};
  CHECK(decode(png_bytes(1, 2, PNG_FORMAT_RGBA, rgba.data()), 3)->pixels ==
        Pixels{255, 255, 255, 1, 2, 3});
  const Pixels grey_alpha = {9, 0, 7, 255};
  CHECK(decode(png_bytes(1, 2, PNG_FORMAT_GA, grey_alpha.data()), 1)->pixels == Pixels{255, 7});
  const std::vector<std::uint16_t> deep = {1, 60000};
  const auto refused = decode(png_bytes(1, 2, PNG_FORMAT_LINEAR_Y, deep.data()), 1);
  REQUIRE(refused.has_error());
  CHECK(refused.error().message().find("16 bits") != std::string::npos);
}

TEST_CASE("images: JPEG gives nearly its pixels, in colour and in grey") {
  const Pixels rgb = slope(16, 24);
  const auto colour = decode(jpeg_bytes(16, 24, rgb), 3).value();
  CHECK(colour.rows == 16);
  CHECK(colour.columns == 24);
  CHECK(near(colour.pixels, rgb, 3));
  const auto as_png = decode(png_bytes(16, 24, PNG_FORMAT_RGB, rgb.data()), 1).value();
  CHECK(near(decode(jpeg_bytes(16, 24, rgb), 1)->pixels, as_png.pixels, 2));
  const std::string grey = jpeg_bytes(16, 24, rgb, TJSAMP_GRAY);
  CHECK(near(decode(grey, 1)->pixels, as_png.pixels, 2));
  CHECK(decode(grey, 3)->pixels.size() == rgb.size());
  // Subsampled colours of a slope stay near, too.
  CHECK(near(decode(jpeg_bytes(16, 24, rgb, TJSAMP_420), 3)->pixels, rgb, 12));
}

TEST_CASE("images: resizing keeps what is even, means what shrinks, and joins what grows") {
  const fl::Image even{.rows = 7, .columns = 5, .channels = 3, .pixels = Pixels(105, 201)};
  for (const std::uint32_t rows : {1U, 3U, 7U, 20U}) {
    for (const std::uint32_t columns : {1U, 2U, 5U, 33U}) {
      const fl::Image other = fl::resize_image(even, rows, columns);
      CHECK(other.rows == rows);
      CHECK(other.columns == columns);
      CHECK(other.pixels == Pixels(std::size_t{3} * rows * columns, 201));
    }
  }
  const Pixels rgb = slope(6, 4);
  const fl::Image image{.rows = 6, .columns = 4, .channels = 3, .pixels = rgb};
  CHECK(fl::resize_image(image, 6, 4).pixels == rgb);
  // From two pixels to one, and back to two.
  const fl::Image pair{.rows = 1, .columns = 2, .channels = 1, .pixels = {10, 20}};
  CHECK(fl::resize_image(pair, 1, 1).pixels == Pixels{15});
  CHECK(fl::resize_image(pair, 1, 4).pixels == Pixels{10, 13, 18, 20});
  CHECK(fl::resize_image(pair, 3, 2).pixels == Pixels{10, 20, 10, 20, 10, 20});
  // A triangle over four pixels: weights 1, 3, 3, 1 of 8, and at the end 3, 3, 1 of 7.
  const fl::Image four{.rows = 1, .columns = 4, .channels = 1, .pixels = {0, 70, 140, 210}};
  CHECK(fl::resize_image(four, 1, 2).pixels == Pixels{50, 160});
}

TEST_CASE("images: files that don't fit are refused, and the error names the file") {
  const ImageFolder f;
  const std::string file = (f.folder / "0/x.png").string();
  f.add("0/x.png", {1, 2, 3}, 1);
  expect_no_data(f.data(), Errc::invalid_input,
                 {file, "it has 1 x 1 pixels, the first image has 1 x 2", "size=ROWSxCOLUMNS"});
  CHECK(read_twice(f.data(",size=2x2")).size() == 4);
  write_plain(file, "GIF89a");
  expect_no_data(f.data(), Errc::corrupt, {file, "neither a JPEG nor a PNG"});
  write_plain(file, "");
  expect_no_data(f.data(), Errc::corrupt, {file, "neither a JPEG nor a PNG"});
  const Pixels wide(3 * 5000, 1);
  write_plain(f.folder / "0/0.png", png_bytes(1, 5000, PNG_FORMAT_RGB, wide.data()));
  expect_no_data(f.data(), Errc::too_large, {"0.png", "1 x 5000", "limit is 4096"});
}

TEST_CASE("images: all bad files are told at once, or left out") {
  const ImageFolder f;
  write_plain(f.folder / "0/aa.png", "");
  write_plain(f.folder / "0/bad.jpg", "RIFF1234WEBP");
  write_plain(f.folder / "2/cut.png", "\x89PNG\r\n\x1a\n");
  expect_no_data(f.data(), Errc::corrupt,
                 {(f.folder / "0/aa.png").string() + ": it is neither", "3 of 6 files in",
                  "the log names each", "--skip-bad-files"});
  const fl::DataSet set = fl::read_data({.text = f.data(), .skip_bad_files = true}).value();
  CHECK(set.labels == Labels{0, 0, 2});
  CHECK(std::ranges::equal(set.inputs.bytes(),
                           [] {
                             const ImageFolder good;
                             return read_twice(good.data());
                           }()
                               .inputs.bytes()));
  for (int i = 0; i < 100; ++i) write_plain(f.folder / ("0/" + std::to_string(i)), "x");
  expect_no_data(f.data(), Errc::corrupt, {"103 of 106 files", "the log names the first 100"});
  const auto refused = fl::read_data({.text = "csv:x.csv,target=y", .skip_bad_files = true});
  REQUIRE(refused.has_error());
  CHECK(refused.error().message().find("--skip-bad-files is for images") != std::string::npos);
}

TEST_CASE("images: the names of classes are the same in every form, and lists may have a mark") {
  const ImageFolder f;
  std::filesystem::rename(f.folder / "0", f.folder /
                                              "mu\xcc\x88"
                                              "de");  // As macOS writes it.
  std::filesystem::rename(f.folder / "2", f.folder / "wach");
  const std::string list = (f.folder / "names.txt").string();
  const std::string both =
      "m\xc3\xbc"
      "de";
  for (const std::string& text : {both + "\nwach\n", "\xef\xbb\xbf" + both + "\r\nwach\r\n",
                                  both + " \n\twach", both + "\rwach\r"}) {
    CAPTURE(text);
    write_plain(list, text);
    CHECK(read_twice(f.data(",classes=" + list)).labels == Labels{0, 0, 1});
  }
  CHECK(read_twice(f.data(",classes=" + both + "+wach")).classes == 2);
  expect_no_data(f.data(",classes=mu\xcc\x88"
                        "de+wach+" +
                        both),
                 Errc::invalid_input, {"is named twice"});
  write_plain(list, std::string_view("\xff\xfem\0", 4));
  expect_no_data(f.data(",classes=" + list), Errc::corrupt, {list, "save it as UTF-8"});
  expect_no_data(f.data(",classes=cat"), Errc::invalid_input,
                 {"/mu", ", ", "/wach: ", "not in classes="});
}

TEST_CASE("images: a bomb is refused before its pixels take memory") {
  // The sides stand in the header, bytes 16 to 23; the checksum of that chunk is behind them.
  const Pixels rgb(3, 1);
  std::string bomb = png_bytes(1, 1, PNG_FORMAT_RGB, rgb.data());
  const auto with_sides = [&](std::uint32_t columns, std::uint32_t rows) {
    bomb.replace(16, 8, big_endian(columns) + big_endian(rows));
    const auto* const chunk = reinterpret_cast<const unsigned char*>(bomb.data()) + 12;
    bomb.replace(29, 4, big_endian(static_cast<std::uint32_t>(crc32(0, chunk, 17))));
    return decode(bomb, 3);
  };
  for (const auto& [columns, rows] : {std::pair{16385U, 1U}, {1U, 16385U}, {16384U, 4097U}}) {
    const auto refused = with_sides(columns, rows);
    REQUIRE(refused.has_error());
    CAPTURE(refused.error().message());
    CHECK(refused.error().code() == Errc::too_large);
    CHECK(refused.error().message().find("16384 pixels per side") != std::string::npos);
  }
  CHECK(with_sides(2, 1).error().code() == Errc::corrupt);  // Fewer pixels than it says.
  std::string jpeg = jpeg_bytes(8, 8, slope(8, 8));
  const std::size_t frame = jpeg.find("\xff\xc0");
  jpeg.replace(frame + 5, 4, "\x50\x01\x50\x01");
  CHECK(decode(jpeg, 3).error().code() == Errc::too_large);
}

TEST_CASE("images: cut at any byte, an image is refused or has the same pixels") {
  const Pixels rgb = slope(9, 17);
  for (const std::string& file : {png_bytes(9, 17, PNG_FORMAT_RGB, rgb.data()),
                                  jpeg_bytes(9, 17, rgb), jpeg_bytes(9, 17, rgb, TJSAMP_420)}) {
    const auto whole = decode(file, 3).value();
    for (std::size_t n = 0; n < file.size(); ++n) {
      CAPTURE(n);
      const auto some = decode(file.substr(0, n), 3);
      if (some) {
        CHECK(some->pixels == whole.pixels);
        CHECK(n + 16 > file.size());  // Nothing but the marks of the end is missing.
      } else {
        CHECK(some.error().code() == Errc::corrupt);
      }
    }
  }
}

TEST_CASE("images: options and folders that are wrong are refused") {
  const ImageFolder f;
  expect_no_data("images:", Errc::invalid_input, {"say images:DIR"});
  expect_no_data("images:/nonesuch", Errc::not_found, {"/nonesuch"});
  expect_no_data(f.data() + "/README", Errc::io, {"README"});
  for (const std::string size : {"28", "28x", "x28", "0x28", "28x28x3", "28x4097", "-1x2"})
    expect_no_data(f.data(",size=" + size), Errc::invalid_input, {"size=" + size + ": must be"});
  expect_no_data(f.data(",channels=4"), Errc::invalid_input, {"channels=4: must be 1"});
  expect_no_data(f.data(",colour=1"), Errc::invalid_input, {"unknown option colour"});
  expect_no_data(f.data(), Errc::invalid_input, {"by:site", "by:folder"}, "site");
  const TemporaryFolder empty;
  expect_no_data("images:" + empty.path().string(), Errc::corrupt, {"no images"});
  std::filesystem::create_directory(empty / "0");
  expect_no_data("images:" + empty.path().string(), Errc::corrupt, {"no images"});
}
