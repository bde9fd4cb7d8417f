// SPDX-License-Identifier: Apache-2.0
// Safetensors: files that we write read back; foreign files in any order and in half precision are
// read; files with false claims are refused.
#include "shared/params/safetensors.hpp"

#include "shared/base/limits.hpp"
#include "shared/params/header_scanner.hpp"
#include "tests/codec/codec_support.hpp"

#include <fmt/format.h>

#include <bit>
#include <ctime>

using namespace fl;
using namespace fl::testing;

namespace {

std::vector<std::byte> raw(std::string_view text) {
  const Bytes bytes = bytes_of(text);
  return {bytes.begin(), bytes.end()};
}

// A file with this header and this many bytes of data, all 0.
MemoryFile file_of(std::string_view header, std::size_t data_bytes) {
  std::vector<std::byte> bytes(8);
  store<std::uint64_t>(bytes, 0, header.size());
  const auto text = raw(header);
  bytes.insert(bytes.end(), text.begin(), text.end());
  bytes.resize(bytes.size() + data_bytes);
  return MemoryFile(bytes);
}

Error refusal(std::string_view header, std::size_t data_bytes) {
  MemoryFile file = file_of(header, data_bytes);
  const auto info = read_safetensors_header(file);
  CAPTURE(header);
  REQUIRE_FALSE(info.has_value());
  return info.error();
}

// The bytes of a file as our programs write it: the header, then the vector.
std::vector<std::byte> written(const Layout& layout, std::span<const float> x,
                               const Metadata& metadata) {
  std::vector<std::byte> bytes = raw(safetensors_header(layout, metadata));
  const Bytes data = std::as_bytes(x);
  bytes.insert(bytes.end(), data.begin(), data.end());
  return bytes;
}

// A file whose middle is a hole.
class HoleFile final : public File {
 public:
  HoleFile(std::vector<std::byte> head, std::uint64_t size, std::vector<std::byte> tail)
      : head_(std::move(head)), size_(size), tail_(std::move(tail)) {}
  Result<std::uint64_t> size() override { return size_; }
  Result<std::size_t> read_at(std::uint64_t offset, MutableBytes out) override {
    const std::uint64_t tail_at = size_ - tail_.size();
    const Bytes part = offset < tail_at ? Bytes(head_) : Bytes(tail_);
    const Bytes left = part.subspan(offset < tail_at ? offset : offset - tail_at);
    const std::size_t bytes = std::min(left.size(), out.size());
    std::ranges::copy(left.first(bytes), out.begin());
    return bytes;
  }
  Result<void> write_at(std::uint64_t, Bytes) override { return success(); }
  Result<void> truncate(std::uint64_t) override { return success(); }
  Result<void> sync() override { return success(); }
  void start_writeback(std::uint64_t, std::uint64_t) override {}

 private:
  std::vector<std::byte> head_;
  std::uint64_t size_;
  std::vector<std::byte> tail_;
};

}  // namespace

TEST_CASE("a file that we wrote reads back; its data begin on a page") {
  const Layout layout =
      layout_of({{"z.weight", {3, 2}}, {"empty", {0}}, {"a.bias", {3}}, {"s", {}}});
  const std::vector<float> x = normal(layout.elements(), 1);
  const Metadata metadata = {{"round", "17"}, {"who", "\"\\\n\x01 \xff"}};
  MemoryFile file(written(layout, x, metadata));
  CHECK(file.bytes().size() == 4096 + layout.bytes());

  const auto info = read_safetensors_header(file).value();
  CHECK(info.layout.digest() == layout.digest());
  CHECK(info.begin.front() == 4096);
  CHECK(info.metadata == Metadata{{"round", "17"}, {"who", "\"\\\n\x01 \xef\xbf\xbd"}});
  std::vector<float> back(layout.elements());
  read_safetensors(file, layout, back).value();
  CHECK(back == x);
}

TEST_CASE("names of any kind are written and read") {
  const Layout layout = layout_of({{"lead I.weight", {2}},
                                   {"blood\tpressure\n2.\"a\\b\"", {1}},
                                   {"Größe.重み.\U0001f9e0", {3}},
                                   {"../\u202e", {1}}});
  const std::vector<float> x = normal(layout.elements(), 1);
  MemoryFile file(written(layout, x, {}));
  CHECK(read_safetensors_header(file).value().layout.digest() == layout.digest());
  std::vector<float> out(x.size());
  read_safetensors(file, layout, out).value();
  CHECK(out == x);
}

TEST_CASE("the most tensors that a model may have are written and read in linear time") {
  std::vector<TensorSpec> specs;
  for (std::size_t i = 0; i < limits::tensors_max; ++i)
    specs.push_back({fmt::format("layer.{}.w", i), {1}});
  const Layout layout = Layout::make(specs).value();
  const std::clock_t began = std::clock();  // The processor's time, as the machine may be busy.
  MemoryFile file(written(layout, std::vector<float>(layout.elements()), {{"run", "a"}}));
  const auto info = read_safetensors_header(file).value();
  CHECK(info.layout.digest() == layout.digest());
  // In quadratic time it takes a minute or more; now less than a second, without sanitizers.
  CHECK(std::clock() - began < 30 * CLOCKS_PER_SEC);
}

TEST_CASE("a file of PyTorch, or another known format, is named") {
  const auto refused = [](std::string_view head) {
    std::vector<std::byte> bytes = raw(head);
    bytes.resize(bytes.size() + 300);
    MemoryFile file(bytes);
    const auto info = read_safetensors_header(file);
    REQUIRE_FALSE(info.has_value());
    CHECK(info.error().code() == Errc::invalid_input);
    return info.error().message();
  };
  using namespace std::string_view_literals;
  for (const auto head : {"PK\x03\x04\0\0\x08\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\x12\0"
                          "archive/data.pkl"sv,
                          "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02"sv}) {
    const std::string message = refused(head);
    CHECK(message.find("PyTorch's torch.save()") != std::string::npos);
    CHECK(message.find("st.save_file(") != std::string::npos);
  }
  CHECK(refused("\x80\x04\x95\x10\0\0\0\0\0\0\0"sv).find("a Python pickle") != std::string::npos);
  CHECK(refused("PK\x03\x04\x14\0\0\0\0\0\0\0!\0w.npy"sv).find("a NumPy archive") !=
        std::string::npos);
  CHECK(refused("\x89HDF\r\n\x1a\n"sv).find("an HDF5 file") != std::string::npos);
}

TEST_CASE("a file that is no safetensors, or a part of one, is told apart") {
  const auto refused = [](std::string_view text) {
    MemoryFile file(raw(text));
    const auto info = read_safetensors_header(file);
    REQUIRE_FALSE(info.has_value());
    CHECK(info.error().code() == Errc::corrupt);
    return info.error().message();
  };
  using namespace std::string_view_literals;
  CHECK(refused("garbage\nmore garbage") ==
        "safetensors: it is no safetensors file: it begins with \"garbage?more gar\"");
  CHECK(refused("garbage\n") ==
        "safetensors: it is no safetensors file: it begins with \"garbage?\"");
  CHECK(refused("\x40\0\0\0\0\0\0\0{\"w\":{"sv) ==
        "safetensors: the file ends within its header: it has 14 bytes, and the header 64; copy it "
        "again");
}

TEST_CASE("a tensor of more than 2 or 4 GiB, and what lies behind it, are found") {
  for (const std::int64_t elements : {600'000'000, 1'100'000'000}) {
    const std::string header = safetensors_header(layout_of({{"w", {elements}}, {"z", {2}}}), {});
    const std::vector<float> z = {3, -4};
    const auto data = std::as_bytes(std::span(z));
    HoleFile file(raw(header), header.size() + 4 * static_cast<std::uint64_t>(elements) + 8,
                  {data.begin(), data.end()});
    const auto info = read_safetensors_header(file).value();
    CHECK(info.begin[1] == header.size() + 4 * static_cast<std::uint64_t>(elements));
    std::vector<float> read(2);
    const auto others = [](const std::string& name) { return name == "w"; };
    REQUIRE(read_safetensors(file, layout_of({{"z", {2}}}), read, others).has_value());
    CHECK(read == z);
  }
}

TEST_CASE("a foreign file in another order, with F16 and BF16, is read") {
  MemoryFile file = file_of(R"({"b":{"dtype":"F16","shape":[2],"data_offsets":[8,12]},
                               "a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},
                               "c":{"dtype":"BF16","shape":[1],"data_offsets":[12,14]}})",
                            14);
  const auto data_begin = file.size().value() - 14;
  const float a[2] = {1.5f, -2.0f};
  const std::uint16_t rest[3] = {0x3c00, 0xc000, 0x4049};
  file.write_at(data_begin, std::as_bytes(std::span(a))).value();
  file.write_at(data_begin + 8, std::as_bytes(std::span(rest))).value();
  const Layout wanted = layout_of({{"c", {1}}, {"b", {2}}, {"a", {1, 2}}});
  std::vector<float> out(5);
  read_safetensors(file, wanted, out).value();
  CHECK(out == std::vector<float>{3.140625f, 1.0f, -2.0f, 1.5f, -2.0f});
}

TEST_CASE(
    "a BatchNorm's count of batches is skipped wherever it lies; other integers are refused") {
  const std::string before = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)";
  const std::string count =
      R"("bn.num_batches_tracked":{"dtype":"I64","shape":[],"data_offsets":[8,16]},)";
  const std::string after = R"("b":{"dtype":"F32","shape":[],"data_offsets":[16,20]}})";
  MemoryFile file = file_of(before + count + after, 20);
  const auto info = read_safetensors_header(file).value();
  CHECK(info.layout.digest() == layout_of({{"a", {2}}, {"b", {}}}).digest());
  CHECK(info.begin[1] - info.begin[0] == 16);
  std::vector<float> values(3, 7.0F);
  REQUIRE(read_safetensors(file, info.layout, values).has_value());
  CHECK(values == std::vector<float>(3));

  std::string two = count;
  two.replace(two.find("[]"), 2, "[2]");
  two.replace(two.find("16]"), 2, "24");
  CHECK(refusal(before + two + after, 20).code() == Errc::corrupt);
  std::string other = count;
  other.replace(other.find("num_batches_tracked"), 19, "num_batches");
  CHECK(refusal(before + other + after, 20).code() == Errc::invalid_input);
}

TEST_CASE("missing, extra and mis-shaped tensors are named, and nothing is written") {
  const Layout there = layout_of({{"a", {2, 3}}, {"b", {4}}, {"extra", {1}}});
  MemoryFile file(written(there, normal(11, 1), {}));
  const Layout wanted = layout_of({{"a", {3, 2}}, {"b", {4}}, {"gone", {2}}});
  std::vector<float> out(wanted.elements(), 7.0f);
  const auto read = read_safetensors(file, wanted, out);
  REQUIRE_FALSE(read.has_value());
  CHECK(read.error().code() == Errc::invalid_input);
  CHECK(read.error().message() ==
        "safetensors: a has shape [2, 3], expected [3, 2]; gone is "
        "missing; extra is not in the model");
  CHECK(out == std::vector<float>(wanted.elements(), 7.0f));
}

TEST_CASE("files with false claims are refused") {
  CHECK(refusal("", 0).code() == Errc::corrupt);
  CHECK(refusal("[]", 0).code() == Errc::corrupt);
  CHECK(refusal("{", 0).code() == Errc::corrupt);
  CHECK(refusal(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}} x)", 4).code() ==
        Errc::corrupt);
  CHECK(refusal(R"({"a":7})", 0).code() == Errc::corrupt);
  const auto one = [](std::string_view dtype, std::string_view shape, std::string_view offsets,
                      std::size_t data_bytes) {
    std::string header = R"({"a":{"dtype":)" + std::string(dtype) + R"(,"shape":)" +
                         std::string(shape) + R"(,"data_offsets":)" + std::string(offsets) + "}}";
    return refusal(header, data_bytes).code();
  };
  CHECK(one(R"("I64")", "[1]", "[0,8]", 8) == Errc::invalid_input);
  CHECK(one("7", "[1]", "[0,4]", 4) == Errc::invalid_input);
  CHECK(one(R"("F32")", "1", "[0,4]", 4) == Errc::corrupt);
  CHECK(one(R"("F32")", "[-1]", "[0,4]", 4) == Errc::corrupt);
  CHECK(one(R"("F32")", "[1.0]", "[0,4]", 4) == Errc::corrupt);
  CHECK(one(R"("F32")", "[99999999999999999999]", "[0,4]", 4) == Errc::corrupt);
  CHECK(one(R"("F32")", "[4294967296,4294967296]", "[0,4]", 4) == Errc::too_large);
  CHECK(one(R"("F32")", "[1]", "[0,4,8]", 4) == Errc::corrupt);
  CHECK(one(R"("F32")", "[1]", "[4,0]", 4) == Errc::corrupt);
  CHECK(one(R"("F32")", "[1]", "[1,5]", 5) == Errc::corrupt);
  CHECK(one(R"("F32")", "[2]", "[0,4]", 4) == Errc::corrupt);
  CHECK(one(R"("F32")", "[1]", "[0,4]", 5) == Errc::corrupt);  // Bytes that belong to no tensor.
  CHECK(one(R"("F32")", "[2]", "[0,8]", 4) == Errc::corrupt);  // Data cut off.
  CHECK(one(R"("F32")", "[[[[1]]]]", "[0,4]", 4) == Errc::corrupt);
  CHECK(refusal(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                    "a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                8)
            .code() == Errc::corrupt);
  CHECK(refusal(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
                    "b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                8)
            .code() == Errc::corrupt);  // Overlapping.
  CHECK(refusal(R"({"__metadata__":{"a":1}})", 0).code() == Errc::corrupt);
  CHECK(refusal(R"({"__metadata__":[]})", 0).code() == Errc::corrupt);
  CHECK(refusal(std::string(100'000, '['), 0).code() == Errc::corrupt);

  std::vector<std::byte> huge(16);
  store<std::uint64_t>(huge, 0, ~0ull);
  MemoryFile file(huge);
  CHECK(read_safetensors_header(file).error().code() == Errc::corrupt);
  MemoryFile shorter(std::vector<std::byte>(7));
  CHECK(read_safetensors_header(shorter).error().code() == Errc::corrupt);
}

TEST_CASE("what a header has twice, too few or too many of is refused and named") {
  const auto message = [](std::string_view fields, std::size_t data_bytes) {
    return refusal(R"({"a":{)" + std::string(fields) + "}}", data_bytes).message();
  };
  const std::string wrong_fields =
      "safetensors: tensor a: must have exactly dtype, shape and data_offsets";
  const std::string rest = R"("shape":[1],"data_offsets":[0,4])";
  CHECK(message(R"("dtype":"F32","dtype":"F16",)" + rest, 4) == wrong_fields);
  CHECK(message(rest, 4) == wrong_fields);
  CHECK(message(R"("dtype":"F32","more":1,)" + rest, 4) == wrong_fields);
  CHECK(message(R"("dtype":"F32","shape":[1],"data_offsets":[4])", 4) ==
        "safetensors: tensor a: data_offsets is not a pair of numbers");
  CHECK(message(R"("dtype":"F32","shape":[99999999999999],"data_offsets":[0,4])", 4) ==
        "safetensors: tensor a: shape has an invalid size");
  CHECK(refusal(R"({"a\n":{},"a\n":{}})", 0).message().starts_with("safetensors: tensor a?: "));

  std::string many = "{";
  for (std::size_t i = 0; i <= limits::tensors_max; ++i)
    many += fmt::format(R"("{}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}},)", i);
  many.back() = '}';
  CHECK(refusal(many, 0).code() == Errc::too_large);
  CHECK(refusal(many, 0).message() ==
        fmt::format("safetensors: more than {} tensors", limits::tensors_max));
}

TEST_CASE("what a header has beyond a limit is refused before it is kept") {
  const auto scanned = [](const std::string& text) {
    const auto header = scan_safetensors_header(text);
    if (header) return std::string();
    CHECK(header.error().code() == Errc::too_large);
    return header.error().message();
  };
  const auto with_shape = [](std::size_t dimensions) {
    std::string shape = "1";
    for (std::size_t i = 1; i < dimensions; ++i) shape += ",1";
    return R"({"a":{"dtype":"F32","shape":[)" + shape + R"(],"data_offsets":[0,4]}})";
  };
  CHECK(scanned(with_shape(limits::dimensions_max)).empty());
  CHECK(scanned(with_shape(limits::dimensions_max + 1)) == "tensor a has more than 16 dimensions");

  const auto with_name = [](std::size_t bytes) {
    return R"({")" + std::string(bytes, 'n') +
           R"(":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})";
  };
  CHECK(scanned(with_name(limits::tensor_name_bytes_max)).empty());
  CHECK(scanned(with_name(limits::tensor_name_bytes_max + 1)).ends_with("more than 512 bytes"));

  const auto with_metadata = [](std::size_t entries) {
    std::string text = R"({"__metadata__":{"0":"")";
    for (std::size_t i = 1; i < entries; ++i) text += fmt::format(R"(,"{}":"")", i);
    return text + "}}";
  };
  CHECK(scanned(with_metadata(limits::metadata_entries_max)).empty());
  CHECK(scanned(with_metadata(limits::metadata_entries_max + 1)) ==
        "__metadata__ has more than 10000 entries");
}

TEST_CASE("every truncation and every flipped bit gives an error or a layout that fits the file") {
  const Layout layout = layout_of({{"w", {3}}, {"b", {2}}});
  const std::vector<std::byte> bytes =
      raw(safetensors_header(layout, {{"k", "v"}}, 8) + std::string(layout.bytes(), '\0'));
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    MemoryFile file({bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n)});
    CHECK_FALSE(read_safetensors_header(file).has_value());
  }
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    auto flipped = bytes;
    flipped[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    MemoryFile file(flipped);
    if (const auto info = read_safetensors_header(file)) CHECK(info->layout.bytes() == 20);
  }
}
