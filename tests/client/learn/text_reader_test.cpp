// SPDX-License-Identifier: Apache-2.0
#include "tests/client/learn/reader_checks.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

using namespace fl::test;
using fl::Errc;
using Names = std::vector<std::string>;
using Numbers = std::vector<std::uint32_t>;

// The real bytes of a piece. What is behind them must be zeros.
std::string piece_of(const fl::DataSet& set, std::uint32_t piece) {
  const auto bytes = set.row(piece);
  const std::string all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::size_t length = set.lengths.at(piece);
  CHECK(length >= 2);
  CHECK(all.find_first_not_of('\0', length) == std::string::npos);
  return all.substr(0, length);
}

// The pieces of one document, put together again: neighbours share a byte.
std::string joined_text(const fl::DataSet& set) {
  std::string all;
  for (std::uint32_t piece = 0; piece < set.size(); ++piece) {
    const std::string text = piece_of(set, piece);
    if (piece > 0) CHECK(text.front() == all.back());
    all += piece == 0 ? text : text.substr(1);
  }
  return all;
}

std::string text_of(std::size_t bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) text += static_cast<char>(1 + i * 31 % 255);
  return text;
}

// Three documents in two folders, and what is no document.
struct Library {
  TemporaryFolder folder;

  Library() {
    std::filesystem::create_directories(folder / "carroll/parts");
    std::filesystem::create_directories(folder / "austen");
    std::filesystem::create_directories(folder / ".git");
    write_plain(folder / "carroll/parts/alice.txt", "Alice was beginning");
    write_gzipped(folder / "austen/emma.txt.gz", text_of(2000));
    write_plain(folder / "zed", "zz");
    write_plain(folder / "empty", "");
    write_plain(folder / "one", "1");
    write_plain(folder / ".git/config", "hidden");
    write_plain(folder / "austen/.swap", "hidden too");
    std::filesystem::create_symlink("/nonesuch", folder / "lost");
    std::filesystem::create_directory_symlink(folder.path(), folder / "loop");
  }
  [[nodiscard]] std::string data() const { return "text:" + folder.path().string(); }
};

}  // namespace

TEST_CASE("text: a document of any length is cut into pieces that share one byte") {
  const TemporaryFolder folder;
  const std::string file = (folder / "text").string();
  for (const std::size_t bytes :
       {2U, 3U, 1023U, 1024U, 1025U, 1026U, 1027U, 2048U, 2049U, 2050U, 2051U, 10'000U}) {
    CAPTURE(bytes);
    const std::string text = text_of(bytes);
    write_plain(file, text);
    const fl::DataSet set = read_twice("text:" + file);
    CHECK(set.kind == fl::DataSet::Kind::text);
    CHECK(set.shape == std::vector<std::int64_t>{fl::text_piece_bytes});
    CHECK(joined_text(set) == text);
    // Each byte but the first is predicted once.
    CHECK(set.size() == (bytes - 1 + 1023) / 1024);
    CHECK(set.labels.empty());
    CHECK(set.groups.empty());
    write_gzipped(file, text);
    CHECK(joined_text(read_twice("text:" + file)) == text);
  }
}

TEST_CASE("text: the documents of a folder come in the order of their paths; hidden ones don't") {
  const Library library;
  const fl::DataSet set = read_twice(library.data());
  REQUIRE(set.size() == 4);
  CHECK(piece_of(set, 0) == text_of(2000).substr(0, 1025));
  CHECK(piece_of(set, 1) == text_of(2000).substr(1024));
  CHECK(piece_of(set, 2) == "Alice was beginning");
  CHECK(piece_of(set, 3) == "zz");
}

TEST_CASE("text: by:file and by:folder divide documents") {
  const Library library;
  const fl::DataSet files = read_twice(library.data(), "file");
  CHECK(files.group_names == Names{"austen/emma.txt.gz", "carroll/parts/alice.txt", "zed"});
  CHECK(files.groups == Numbers{0, 0, 1, 2});
  const fl::DataSet folders = read_twice(library.data() + "/", "folder");
  CHECK(folders.group_names == Names{".", "austen", "carroll/parts"});
  CHECK(folders.groups == Numbers{1, 1, 2, 0});
  expect_no_data(library.data(), Errc::invalid_input, {"by:author", "by:file or by:folder"},
                 "author");
  write_plain(library.folder / "alone", "a text");
  CHECK(read_twice(library.data() + "/alone", "file").group_names == Names{"alone"});
}

TEST_CASE("text: what can't be read is an error that names it") {
  const Library library;
  expect_no_data("text:", Errc::invalid_input, {"say text:FILE or text:DIR"});
  expect_no_data("text:/nonesuch", Errc::not_found, {"/nonesuch"});
  expect_no_data(library.data() + ",pieces=7", Errc::invalid_input, {"unknown option pieces"});
  expect_no_data(library.data() + "/empty", Errc::corrupt, {"empty", "at least 2 bytes"});
  expect_no_data(library.data() + "/one", Errc::corrupt, {"at least 2 bytes"});
  const auto pipe = library.folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  expect_no_data("text:" + pipe.string(), Errc::io, {"is a pipe (FIFO)"});
  std::filesystem::create_directory(library.folder / "bare");
  expect_no_data(library.data() + "/bare", Errc::corrupt, {"at least 2 bytes"});
}

TEST_CASE("text: a gzipped document that is cut is refused, wherever") {
  const Library library;
  const auto path = library.folder / "austen/emma.txt.gz";
  std::ifstream file(path, std::ios::binary);
  const std::string gzipped{std::istreambuf_iterator<char>(file), {}};
  // Two bytes make the magic number: fewer are plain text.
  for (std::size_t n = 2; n < gzipped.size(); n += 7) {
    CAPTURE(n);
    write_plain(path, gzipped.substr(0, n));
    expect_no_data(library.data(), Errc::corrupt, {"emma.txt.gz"});
  }
}

TEST_CASE("text: all bad documents are told at once, or left out") {
  const Library library;
  const std::string folder = library.folder.path().string();
  const fl::DataSet good = read_twice("text:" + folder);
  // Cut in the middle, behind pieces that are whole.
  for (const std::string name : {"carroll/b.gz", "carroll/z.gz"}) {
    write_gzipped(library.folder / name, text_of(50000));
    std::filesystem::resize_file(library.folder / name,
                                 std::filesystem::file_size(library.folder / name) - 9);
  }
  expect_no_data("text:" + folder, Errc::corrupt,
                 {folder + "/carroll/b.gz: broken gzip", "2 of ", "--skip-bad-files"});
  const auto set = fl::read_data({.text = "text:" + folder, .skip_bad_files = true}).value();
  CHECK(set.lengths == good.lengths);
  CHECK(std::ranges::equal(set.inputs.bytes(), good.inputs.bytes()));
}
