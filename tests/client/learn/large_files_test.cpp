// SPDX-License-Identifier: Apache-2.0
// Files of more than 4 GiB, plain (with holes) and gzipped, are read to their end.
#include "client/learn/data/gzip_reader.hpp"
#include "tests/client/learn/idx_files.hpp"
#include "tests/support/temporary_folder.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace fl::test {
namespace {

constexpr std::uint64_t zeros = (4ull << 30) + 5;
constexpr std::string_view end_text = "end";

// The file has so many zeros, and then the text.
void expect_end(const std::filesystem::path& path, std::uint64_t zero_bytes) {
  auto reader = GzipReader::open(path).value();
  std::vector<std::uint8_t> piece(16 << 20);
  for (std::uint64_t left = zero_bytes; left > 0; left -= piece.size()) {
    piece.resize(std::min<std::uint64_t>(piece.size(), left));
    REQUIRE(reader.read(piece, "zeros").has_value());
    REQUIRE(piece.back() == 0);
  }
  std::vector<std::uint8_t> text(end_text.size());
  REQUIRE(reader.read(text, "the end").has_value());
  CHECK(std::string(text.begin(), text.end()) == end_text);
  CHECK(reader.offset() == zero_bytes + end_text.size());
  CHECK(reader.expect_end().has_value());
}

}  // namespace

TEST_CASE("a plain file of more than 4 GiB is read to its end") {
  const TemporaryFolder folder;
  const auto path = folder / "plain";
  write_plain(path, "");
  std::filesystem::resize_file(path, zeros);
  std::ofstream(path, std::ios::binary | std::ios::app) << end_text;
  expect_end(path, zeros);
}

TEST_CASE("a gzipped file of more than 4 GiB is read to its end") {
  constexpr std::uint64_t part_bytes = 64 << 20;
  const TemporaryFolder folder;
  const auto part = folder / "part";
  write_gzipped(part, std::string(part_bytes, '\0'));
  std::ifstream in(part, std::ios::binary);
  const std::string packed(std::istreambuf_iterator<char>(in), {});
  write_gzipped(part, end_text);
  std::ifstream last(part, std::ios::binary);
  const std::string packed_end(std::istreambuf_iterator<char>(last), {});
  // A file may have several gzipped parts.
  std::ofstream out(folder / "all", std::ios::binary);
  std::uint64_t written = 0;
  for (; written <= zeros; written += part_bytes) out << packed;
  out << packed_end;
  out.close();
  expect_end(folder / "all", written);
}

}  // namespace fl::test
