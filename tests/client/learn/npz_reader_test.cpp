// SPDX-License-Identifier: Apache-2.0
// golden/*.npz are numpy's own files (make_npz_golden.py); the others are written here.
#include "client/learn/data/readers/npz_file.hpp"
#include "tests/client/learn/npz_files.hpp"
#include "tests/client/learn/reader_checks.hpp"
#include "tests/fuzz/memory_path.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <bit>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

namespace {

using namespace fl::test;
using fl::Errc;
using Bytes = std::vector<std::uint8_t>;
using Floats = std::vector<float>;
using Labels = std::vector<std::uint32_t>;
using Names = std::vector<std::string>;

const std::string golden = FL_GOLDEN_NPZ;

std::string whole_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The bits, so that NaN and -0 count.
std::vector<std::uint32_t> bits_of(std::span<const float> values) {
  std::vector<std::uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<std::uint32_t>(value));
  return bits;
}

Floats read_expected(const std::string& path) {
  auto file = fl::NpzFile::open(path).value();
  REQUIRE(file.select("expected").value());
  Floats values(file.items());
  REQUIRE(file.read(std::as_writable_bytes(std::span(values))).has_value());
  REQUIRE(file.finish().has_value());
  return values;
}

// An archive with arrays x and y of two examples, of which a test replaces one.
struct Archive {
  TemporaryFolder folder;
  std::string file = (folder / "data.npz").string();
  NpyMember x = array<float>("x", "<f4", "(2, 3)", {1, 2, 3, 4, 5, 6});
  NpyMember y = array<std::int64_t>("y", "<i8", "(2,)", {1, 0});

  [[nodiscard]] std::string data() const { return "npz:" + file; }
  void expect(std::vector<std::string> words, std::string_view group = "",
              Errc code = Errc::corrupt) const {
    for (const bool compressed : {false, true}) {
      write_npz(file, {x, y}, compressed);
      auto all = words;
      all.push_back(file);
      expect_no_data(data(), code, all, group);
    }
  }
};

}  // namespace

TEST_CASE("npz: every type of number becomes what numpy makes of it") {
  for (const std::string type :
       {"bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"}) {
    CAPTURE(type);
    const std::string path = golden + "/" + type + ".npz";
    const fl::DataSet set = read_twice("npz:" + path);
    CHECK(set.kind == fl::DataSet::Kind::values);
    CHECK(set.shape == std::vector<std::int64_t>{3});
    CHECK(bits_of(set.inputs.as<float>()) == bits_of(read_expected(path)));
    CHECK(set.labels == Labels{2, 0, 1, 2});
    CHECK(set.classes == 3);
    CHECK(set.targets == Floats{2, 0, 1, 2});
    CHECK(set.outputs == 1);
  }
}

TEST_CASE("npz: bytes of three or four dimensions are pixels, also compressed ones") {
  const fl::DataSet set = read_twice("npz:" + golden + "/compressed.npz", "site");
  CHECK(set.kind == fl::DataSet::Kind::pixels);
  CHECK(set.shape == std::vector<std::int64_t>{3, 4, 5});
  Bytes counted(120);
  std::iota(counted.begin(), counted.end(), std::uint8_t{0});
  CHECK(std::ranges::equal(set.inputs.as<std::uint8_t>(), counted));
  CHECK(set.labels.empty());
  CHECK(set.outputs == 2);
  CHECK(set.targets == Floats{0.5, -1, 2, 3e10F});
  CHECK(set.group_names == Names{"Oslo", "Z\xc3\xbcrich"});

  Archive grey;
  grey.x = array<std::uint8_t>("x", "|u1", "(2, 1, 2)", {0, 255, 7, 8});
  write_npz(grey.file, {grey.x, grey.y});
  const fl::DataSet images = read_twice(grey.data());
  CHECK(images.kind == fl::DataSet::Kind::pixels);
  CHECK(images.shape == std::vector<std::int64_t>{1, 1, 2});
  CHECK(std::ranges::equal(images.inputs.as<std::uint8_t>(), Bytes{0, 255, 7, 8}));
  // Signed bytes, and bytes of two dimensions, are values.
  grey.x = array<std::int8_t>("x", "|i1", "(2, 1, 2)", {0, -1, 7, 8});
  write_npz(grey.file, {grey.x, grey.y});
  CHECK(read_twice(grey.data()).kind == fl::DataSet::Kind::values);
  grey.x = array<std::uint8_t>("x", "|u1", "(2,)", {200, 7});
  write_npz(grey.file, {grey.x, grey.y});
  const fl::DataSet column = read_twice(grey.data());
  CHECK(column.shape == std::vector<std::int64_t>{1});
  CHECK(values_of(column) == Floats{200, 7});
}

TEST_CASE("npz: arrays of text and of whole numbers make groups, in the order of their names") {
  const std::string data = "npz:" + golden + "/groups.npz";
  const fl::DataSet sites = read_twice(data, "site");
  CHECK(sites.group_names == Names{"Oslo", "Z\xc3\xbcrich", "\xe6\x9d\xb1\xe4\xba\xac"});
  CHECK(sites.groups == Labels{0, 1, 2, 0});
  CHECK(read_twice(data, "word").group_names == Names{"a", "ab", "b"});
  CHECK(read_twice(data, "word").groups == Labels{2, 0, 1, 2});
  CHECK(read_twice(data, "number").group_names == Names{"-1", "2", "300"});
  CHECK(read_twice(data, "number").groups == Labels{0, 2, 0, 1});
  CHECK(read_twice(data).groups.empty());
  expect_no_data(data, Errc::corrupt, {"array \"code\"", "text of example 1 is empty"}, "code");
  expect_no_data(data, Errc::corrupt, {"array \"clinic\"", "missing"}, "clinic");
  expect_no_data(data, Errc::invalid_input, {"another array than x and y"}, "x");
}

TEST_CASE("npz: whole numbers from 0 on are classes, others are values only") {
  Archive f;
  const auto read = [&](NpyMember y) {
    write_npz(f.file, {f.x, std::move(y)});
    return read_twice(f.data());
  };
  CHECK(read(array<std::uint8_t>("y", "|u1", "(2,)", {255, 0})).classes == 256);
  CHECK(read(array<std::int64_t>("y", "<i8", "(2, 1)", {65535, 0})).classes == 65536);
  CHECK(read(array<std::int64_t>("y", "<i8", "(2,)", {65536, 0})).labels.empty());
  CHECK(read(array<std::int64_t>("y", "<i8", "(2,)", {-1, 0})).labels.empty());
  CHECK(read(array<std::int64_t>("y", "<i8", "(2,)", {-1, 0})).targets == Floats{-1, 0});
  CHECK(read(array<float>("y", "<f4", "(2,)", {1, 0})).labels.empty());
  const fl::DataSet two = read(array<std::int32_t>("y", "<i4", "(2, 2)", {1, 0, 2, 3}));
  CHECK(two.labels.empty());
  CHECK(two.outputs == 2);
  CHECK(two.targets == Floats{1, 0, 2, 3});
}

TEST_CASE("npz: arrays that don't fit are refused, and the error names the array and the fault") {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Archive f;
  SUBCASE("x") {
    struct Refused {
      NpyMember x;
      std::string why;
    };
    for (Refused& refused : std::vector<Refused>{
             {array<float>("x", "<f4", "()", {1}), "shape is ()"},
             {array<float>("x", "<f4", "(0, 3)", {}), "there is no example"},
             {array<float>("x", "<f4", "(2, 0)", {}), "there is no example"},
             {array<float>("x", "<f4", "(2, 2)", {1, 2, 3, infinity}),
              "example 1 has the value inf"},
             {array<double>("x", "<f8", "(2, 1)", {1e39, 1}), "example 0 has the value 1e+39"},
             {array<std::uint32_t>("x", "<U1", "(2,)", {65, 66}), "it is text"},
             {array<float>("x", "<f4", "(2, 3)", {1, 2}), "8 bytes, but its shape needs 24"},
             {array<float>("x", "<f4", "(1,)", {1, 2}), "8 bytes, but its shape needs 4"},
             {array<float>("x", "<f4", "(4294967296, 4294967296, 4)", {1}), "too large"},
             {array<std::uint8_t>("x", "|u1", "(1, 2, 2, 3)", Bytes(12)), "transpose(0, 3, 1, 2)"},
             {{"x", "not an array of numpy"}, "not an array of numpy"},
             {{"x", std::string("\x93NUMPY\4\0\2\0{}", 12)}, "version 4"},
             {{"x", std::string("\x93NUMPY\2\0\377\377\377\377", 12)}, "the limit is 65536"},
             {array<float>("z", "<f4", "(2,)", {1, 2}), "x=NAME; the file has: z, y"}}) {
      CAPTURE(refused.why);
      f.x = refused.x;
      f.expect({"array \"x\"", refused.why});
    }
  }
  SUBCASE("y") {
    struct Refused {
      NpyMember y;
      std::string why;
    };
    for (Refused& refused : std::vector<Refused>{
             {array<float>("y", "<f4", "(2,)", {1, nan}), "target of example 1 is NaN"},
             {array<float>("y", "<f4", "(2, 2)", {1, 2, nan, 3}), "target of example 1 is NaN"},
             {array<float>("y", "<f4", "(3,)", {1, 2, 3}), "x has 2 examples"},
             {array<float>("y", "<f4", "()", {1}), "x has 2 examples"},
             {array<float>("y", "<f4", "(2, 0)", {}), "must be (2) or (2, k)"},
             {array<float>("y", "<f4", "(2, 1, 1)", {1, 2}), "must be (2) or (2, k)"},
             {array<std::uint32_t>("y", "<U1", "(2,)", {65, 66}), "numpy.unique"},
             {array<float>("Y", "<f4", "(2,)", {1, 2}), "missing"}}) {
      CAPTURE(refused.why);
      f.y = refused.y;
      f.expect({"array \"y\"", refused.why});
    }
  }
  SUBCASE("what divides") {
    for (const auto& site : {array<float>("site", "<f4", "(2,)", {1, 2}),
                             array<std::int32_t>("site", "<i4", "(2, 2)", {1, 2, 3, 4}),
                             array<std::int32_t>("site", "<i4", "(1,)", {1})}) {
      write_npz(f.file, {f.x, f.y, site});
      expect_no_data(f.data(), Errc::corrupt, {f.file, "array \"site\"", "shape"}, "site");
    }
  }
}

TEST_CASE("npz: an array that is packed in many pieces is read to its end") {
  Archive f;
  std::vector<std::uint32_t> numbers;
  for (std::uint32_t i = 0; i < 300'000; ++i) numbers.push_back((i * 2654435761U) >> 3);
  f.x = array<std::uint32_t>("x", "<u4", "(2, 150000)", numbers);
  write_npz(f.file, {f.x, f.y}, true);
  const Floats values = values_of(read_twice(f.data()));
  CHECK(std::ranges::equal(values, numbers, {}, {},
                           [](std::uint32_t number) { return static_cast<float>(number); }));
}

TEST_CASE("npz: the arrays may have other names") {
  Archive f;
  f.x.name = "train_images";
  f.y.name = "train_labels";
  write_npz(f.file, {f.x, f.y});
  const fl::DataSet set = read_twice(f.data() + ",x=train_images,y=train_labels");
  CHECK(values_of(set) == Floats{1, 2, 3, 4, 5, 6});
  CHECK(set.labels == Labels{1, 0});
  f.expect({"array \"x\"", "x=NAME", "the file has: train_images, train_labels"});
  expect_no_data(f.data() + ",x=train_images,y=labels", Errc::corrupt,
                 {"array \"labels\"", "y=NAME", "train_labels"});
  expect_no_data(f.data() + ",y=train_labels", Errc::invalid_input, {"another array"},
                 "train_labels");
}

TEST_CASE("npz: arrays in Fortran's order are read as numpy shows them") {
  const auto fortran = [](NpyMember member) {
    const std::string rows = "'fortran_order': False";
    member.bytes.replace(member.bytes.find(rows), rows.size(), "'fortran_order': True");
    // The header keeps its length.
    member.bytes.insert(member.bytes.find('}'), " ");
    return member;
  };
  Archive f;
  for (const bool compressed : {false, true}) {
    f.x = fortran(array<float>("x", "<f4", "(2, 3)", {1, 4, 2, 5, 3, 6}));
    f.y = fortran(array<std::int64_t>("y", "<i8", "(2,)", {1, 0}));
    write_npz(f.file, {f.x, f.y}, compressed);
    const fl::DataSet set = read_twice(f.data());
    CHECK(values_of(set) == Floats{1, 2, 3, 4, 5, 6});
    CHECK(set.labels == Labels{1, 0});
    // Two images of 2 x 3 grey pixels, and two targets each.
    f.x = fortran(
        array<std::uint8_t>("x", "|u1", "(2, 2, 3)", {0, 6, 3, 9, 1, 7, 4, 10, 2, 8, 5, 11}));
    f.y = fortran(array<double>("y", "<f8", "(2, 2)", {1, 3, 2, 4}));
    write_npz(f.file, {f.x, f.y}, compressed);
    const fl::DataSet images = read_twice(f.data());
    CHECK(std::ranges::equal(images.inputs.as<std::uint8_t>(),
                             Bytes{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
    CHECK(images.targets == Floats{1, 2, 3, 4});
  }
  f.x.bytes.pop_back();
  f.expect({"array \"x\"", "11 bytes, but its shape needs 12"});
}

TEST_CASE("npz: an array of more than 2 or 4 GiB, and what lies behind it, are found") {
  Archive f;
  for (const std::uint64_t items : {600'000'000U, 1'100'000'000U}) {
    const std::string shape = "(" + std::to_string(items) + ",)";
    f.x = array<float>("x", "<f4", shape, {});
    f.x.zeros = 4 * items;
    write_npz(f.file, {f.x, f.y});
    auto file = fl::NpzFile::open(f.file).value();
    REQUIRE(file.select("x").value());
    CHECK(file.items() == items);
    REQUIRE(file.select("y").value());
    std::vector<std::int64_t> labels(2);
    REQUIRE(file.read(std::as_writable_bytes(std::span(labels))).has_value());
    REQUIRE(file.finish().has_value());
    CHECK(labels == std::vector<std::int64_t>{1, 0});
    f.x.zeros -= 1;
    write_npz(f.file, {f.x, f.y});
    const auto selected = fl::NpzFile::open(f.file)->select("x");
    REQUIRE(selected.has_error());
    CHECK(selected.error().message().find(std::to_string(4 * items - 1) + " bytes, but") !=
          std::string::npos);
  }
}

TEST_CASE("npz: a header is read strictly, and what numpy could write otherwise is said so") {
  using fl::parse_npy_header;
  const auto good =
      parse_npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }  \n").value();
  CHECK(good.kind == 'f');
  CHECK(good.item_bytes == 4);
  CHECK(good.shape == std::vector<std::uint64_t>{3, 4});
  CHECK(parse_npy_header("{'shape':(7,),'fortran_order':False,'descr':'<U3'}")->item_bytes == 12);
  CHECK(parse_npy_header("{'descr': '|b1', 'fortran_order': False, 'shape': ()}")->shape.empty());
  // Python 2 on Windows.
  CHECK(parse_npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (3L, 4L)}")->shape ==
        std::vector<std::uint64_t>{3, 4});
  struct Refused {
    std::string text;
    std::string why;
  };
  const std::string end = "'fortran_order': False, 'shape': (3,)}";
  for (const Refused& refused : std::vector<Refused>{
           {"{'descr': '>f4', " + end, "big-endian"},
           {"{'descr': '|O', " + end, "\"|O\" is not supported: its items are Python objects"},
           {"{'descr': '<c8', " + end, "complex numbers"},
           {"{'descr': '<M8[ns]', " + end, "its items are dates"},
           {"{'descr': '<m8[s]', " + end, "differences of times"},
           {"{'descr': '|V4', " + end, "raw bytes"},
           {"{'descr': '<', " + end, "not numpy's"},
           {"{'descr': '<f3', " + end, "not supported"},
           {"{'descr': '<f16', " + end, "at most 64 bits"},
           {"{'descr': '|S0', " + end, "not supported"},
           {"{'descr': '=f4', " + end, "not supported"},
           {"{'descr': [('a', '<f4')], " + end, "have fields"}}) {
    CAPTURE(refused.text);
    const auto header = parse_npy_header(refused.text);
    REQUIRE(header.has_error());
    CAPTURE(header.error().message());
    CHECK(header.error().message().find(refused.why) != std::string::npos);
  }
  for (const std::string text :
       {"", "{}", "{'descr': '<f4'}", "{'descr': '<f4', 'fortran_order': False, 'shape': (3)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,} ",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-3,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 'shape': (4,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1)}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (3,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)} x",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 'more': 1}",
        "{'descr': '<f4' 'fortran_order': False, 'shape': (3,)}", "{'descr': '<f4"}) {
    CAPTURE(text);
    CHECK(parse_npy_header(text).has_error());
  }
}

TEST_CASE("npz: cut at any byte, or with one changed, a file is refused or has the same values") {
  // In memory, because thousands of files take long on a disk.
  const auto read = [](const std::string& bytes) {
    const fl::fuzz::MemoryPath file(std::as_bytes(std::span(bytes)));
    const std::string path = file.path().string();
    auto set = fl::read_data({.text = "npz:" + path});
    if (!set) {
      CHECK(set.error().code() != Errc::not_found);
      CHECK(set.error().message().find(path) != std::string::npos);
    }
    return set;
  };
  for (const std::string name : {"compressed.npz", "groups.npz"}) {
    const std::string whole = whole_file(golden + "/" + name);
    const fl::DataSet right = read(whole).value();
    for (std::size_t n = 0; n < whole.size(); ++n) {
      CAPTURE(n);
      const auto some = read(whole.substr(0, n));
      REQUIRE(some.has_error());
      CHECK(some.error().code() == Errc::corrupt);
      std::string damaged = whole;
      damaged[n] = static_cast<char>(damaged[n] ^ 0x24);
      const auto other = read(damaged);
      if (other) CHECK(std::ranges::equal(other->inputs.bytes(), right.inputs.bytes()));
    }
  }
}

TEST_CASE("npz: what is no file is refused") {
  const TemporaryFolder folder;
  expect_no_data("npz:", Errc::invalid_input, {"say npz:FILE"});
  expect_no_data("npz:/nonesuch.npz", Errc::not_found, {"/nonesuch.npz"});
  expect_no_data("npz:" + folder.path().string(), Errc::io, {"is a folder"});
  const auto pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  expect_no_data("npz:" + pipe.string(), Errc::io, {"not a file"});
  expect_no_data("npz:x.npz,array=z", Errc::invalid_input, {"unknown option array"});
  write_plain(folder / "text", "no archive");
  expect_no_data("npz:" + (folder / "text").string(), Errc::corrupt, {"not a whole .npz file"});
}
