// SPDX-License-Identifier: Apache-2.0
#include "shared/base/io/digest.hpp"
#include "tests/client/learn/reader_checks.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

namespace {

using namespace fl::test;
using fl::Errc;
using Names = std::vector<std::string>;
using Numbers = std::vector<std::uint32_t>;

std::string piece_of(const fl::DataSet& set, std::uint32_t piece) {
  const auto bytes = set.row(piece);
  CHECK(bytes.size() >= 2);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<std::string> pieces_of(const fl::DataSet& set) {
  std::vector<std::string> all;
  for (std::uint32_t piece = 0; piece < set.size(); ++piece) all.push_back(piece_of(set, piece));
  return all;
}

template <class Token>
void write_tokens(const std::filesystem::path& path, const std::vector<Token>& tokens) {
  write_plain(path, {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(Token)});
}

template <class Token>
std::vector<Token> tokens_of(const fl::DataSet& set, std::uint32_t piece) {
  const auto bytes = set.row(piece);
  std::vector<Token> tokens(bytes.size() / sizeof(Token));
  std::memcpy(tokens.data(), bytes.data(), bytes.size());
  return tokens;
}

// Numbers of all sizes up to `largest`, which comes first.
template <class Token>
std::vector<Token> made_up_tokens(std::size_t count, std::uint32_t largest) {
  std::vector<Token> tokens{static_cast<Token>(largest)};
  for (std::size_t i = 1; i < count; ++i)
    tokens.push_back(static_cast<Token>(i * 2654435761U % largest));
  return tokens;
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
    CHECK(set.shape == std::vector<std::int64_t>{1025});
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
  CHECK(pieces_of(set) == pieces_of(good));
}

TEST_CASE("text: pieces are as long as piece= says") {
  const TemporaryFolder folder;
  const std::string file = (folder / "text").string();
  const std::string text = text_of(200'000);
  write_plain(file, text);
  for (const std::size_t piece : {1U, 7U, 2000U, 131'072U, 1U << 20U}) {
    CAPTURE(piece);
    const fl::DataSet set = read_twice(fmt::format("text:{},piece={}", file, piece));
    CHECK(set.shape == std::vector<std::int64_t>{static_cast<std::int64_t>(piece) + 1});
    CHECK(set.size() == (text.size() - 1 + piece - 1) / piece);
    CHECK(joined_text(set) == text);
  }
  for (const std::string piece : {"0", "1048577", "-1", "long"})
    expect_no_data("text:" + file + ",piece=" + piece, Errc::invalid_input,
                   {"piece=" + piece + " is no number from 1 to 1048576"});
}

TEST_CASE("tokens: numbers of 16 and 32 bits, from one file or many") {
  const TemporaryFolder folder;
  const auto few = made_up_tokens<std::uint16_t>(3000, 50'256);
  write_tokens(folder / "a.bin", few);
  const std::string file = (folder / "a.bin").string();
  const fl::DataSet set = read_twice("tokens:" + file);
  CHECK(set.kind == fl::DataSet::Kind::text);
  CHECK(set.token_bytes == 2);
  CHECK(set.vocabulary == 50'257);
  REQUIRE(set.size() == 3);
  CHECK(tokens_of<std::uint16_t>(set, 0) == std::vector(few.begin(), few.begin() + 1025));
  CHECK(tokens_of<std::uint16_t>(set, 2) == std::vector(few.begin() + 2048, few.end()));

  const auto many = made_up_tokens<std::uint32_t>(50, 128'255);
  std::filesystem::create_directories(folder / "wide");
  write_tokens(folder / "wide/b.bin", many);
  write_tokens(folder / "wide/c.bin", std::vector<std::uint32_t>{5, 6});
  const fl::DataSet wide =
      read_twice("tokens:" + (folder / "wide").string() + ",bits=32,piece=30", "file");
  CHECK(wide.token_bytes == 4);
  CHECK(wide.vocabulary == 128'256);
  CHECK(wide.groups == Numbers{0, 0, 1});
  CHECK(tokens_of<std::uint32_t>(wide, 0) == std::vector(many.begin(), many.begin() + 31));
  CHECK(tokens_of<std::uint32_t>(wide, 1) == std::vector(many.begin() + 30, many.end()));
  CHECK(tokens_of<std::uint32_t>(wide, 2) == std::vector<std::uint32_t>{5, 6});
  const fl::DataSet some = wide.select(Numbers{2, 1});
  CHECK(tokens_of<std::uint32_t>(some, 0) == std::vector<std::uint32_t>{5, 6});
  CHECK(tokens_of<std::uint32_t>(some, 1) == tokens_of<std::uint32_t>(wide, 1));
}

TEST_CASE("tokens: files of another kind are refused with what they look like") {
  const TemporaryFolder folder;
  const std::string file = (folder / "ids.bin").string();
  write_tokens(file, made_up_tokens<std::uint32_t>(100, 50'256));
  expect_no_data("tokens:" + file, Errc::corrupt, {"ids.bin", "bits=32"});
  CHECK(read_twice("tokens:" + file + ",bits=32").vocabulary == 50'257);
  write_tokens(file, made_up_tokens<std::uint16_t>(100, 50'256));
  expect_no_data("tokens:" + file + ",bits=32", Errc::corrupt, {"ids.bin", "bits=16"});
  CHECK(read_twice("tokens:" + file + ",bits=16").vocabulary == 50'257);
  write_plain(file, "odd");
  expect_no_data("tokens:" + file, Errc::corrupt, {"3 bytes are no whole number of 16-bit tokens"});
  write_plain(file, "1");
  expect_no_data("tokens:" + file, Errc::corrupt, {"1 bytes"});
  write_plain(file, "");
  expect_no_data("tokens:" + file, Errc::corrupt, {"no file with at least 2 tokens"});
  expect_no_data("tokens:" + file + ",bits=8", Errc::invalid_input, {"neither 16 nor 32"});
  expect_no_data("tokens:", Errc::invalid_input, {"say tokens:FILE or tokens:DIR"});
}

TEST_CASE("tokens: a digest that is given must be that of the tokens") {
  const TemporaryFolder folder;
  const auto tokens = made_up_tokens<std::uint16_t>(100, 1000);
  write_tokens(folder / "a.bin", tokens);
  const std::string data = "tokens:" + (folder / "a.bin").string();
  const std::string digest = fl::Digest::of(std::as_bytes(std::span(tokens))).hex();
  CHECK(read_twice(data + ",digest=" + digest).size() == 1);
  expect_no_data(data + ",digest=" + std::string(32, '0'), Errc::corrupt,
                 {"have the digest " + digest, "not 000"});
  expect_no_data(data + ",digest=xyz", Errc::invalid_input, {"is not 32 hexadecimal digits"});
  const auto skipping = fl::read_data({.text = data + ",digest=" + digest, .skip_bad_files = true});
  REQUIRE(skipping.has_error());
  CHECK(skipping.error().message().find("--skip-bad-files") != std::string::npos);
}
