// SPDX-License-Identifier: Apache-2.0
// A codec with a device gives the same bytes and errors as on the CPU, whatever the device does.
// The device here runs the GPU kernels' bodies on the CPU (host_codec_device.hpp).
#include "tests/kernels/host_codec_device.hpp"

#include "tests/codec/codec_support.hpp"

#include <fmt/format.h>

#include <limits>

using namespace fl;
using namespace fl::testing;
using twins::HostCodecDevice;

namespace {

struct CodedByDevice {
  Result<std::vector<std::byte>> bytes;
  std::uint64_t results;  // Number of results that the device has given.
  bool is_there;          // Whether the codec still has the device afterwards.
};

enum class Vector { is_there, is_here };

CodedByDevice encode_on(std::unique_ptr<HostCodecDevice> device, const Codec& codec,
                        const Layout& layout, std::span<const float> x, std::uint32_t block,
                        Vector vector = Vector::is_there) {
  DeviceCoder coder(std::move(device));
  std::vector<std::byte> bytes;
  VectorSink sink(bytes);
  CodecState state;
  const DeviceCopy copy = {.coder = &coder,
                           .values = vector == Vector::is_there ? x.data() : nullptr};
  const auto size = codec.encode(layout, x, 7, sink, block, &state, 2, copy);
  const auto out = [&]() -> Result<std::vector<std::byte>> {
    if (!size) return size.error();
    return bytes;
  };
  return {out(), coder.results(), coder.is_there()};
}

CodedByDevice encode_on(const Codec& codec, const Layout& layout, std::span<const float> x,
                        std::uint32_t block, Vector vector = Vector::is_there) {
  return encode_on(std::make_unique<HostCodecDevice>(), codec, layout, x, block, vector);
}

constexpr std::uint32_t small_block = adaptive_levels_max + 1;

/// About 130 small blocks in three batches, with some small tensors.
Layout many_blocks() {
  return layout_of({{"w", {40, 13'000}}, {"w.bias", {200}}, {"b", {3}}, {"v", {30'123}}});
}

}  // namespace

TEST_CASE("with a device every codec gives the CPU's payload") {
  const Layout layout = many_blocks();
  const std::vector<float> x = normal(layout.elements(), 3);
  for (const std::string& spec : specs_to_test()) {
    CAPTURE(spec);
    const auto codec = codec_of(spec);
    const auto coded = encode_on(*codec, layout, x, small_block);
    CHECK(coded.bytes.value() == encode(*codec, layout, x, 7, small_block));
    CHECK(coded.is_there);
  }
}

TEST_CASE("ecuq on a device gives the CPU's payload at all rates and block sizes") {
  // Blocks for both kinds of streams, with and without a remainder.
  const Layout layout = layout_of(
      {{"large", {65'536}}, {"part", {20'001}}, {"small", {16'383}}, {"few", {77}}, {"one", {1}}});
  for (const char* mode : {"dither", "centroid"}) {
    for (const char* rate : {"0.3", "0.7", "1.5", "2", "4", "8"}) {
      const std::string spec = fmt::format("ecuq:{},mode={}", rate, mode);
      CAPTURE(spec);
      const auto codec = codec_of(spec);
      for (const auto& x : {normal(layout.elements(), 5), laplace(layout.elements(), 5),
                            normal(layout.elements(), 6, 1e-40f)}) {
        const auto coded = encode_on(*codec, layout, x, block_elements_default);
        CHECK(coded.bytes.value() == encode(*codec, layout, x, 7));
        CHECK(coded.is_there);
      }
      // At these rates the CPU codes blocks: few levels are not 0, or many values are beyond the
      // last level.
      if (std::string_view(rate) == "0.3" || std::string_view(rate) == "8") continue;
      const auto coded =
          encode_on(*codec, layout, normal(layout.elements(), 5), block_elements_default);
      CHECK(coded.results >= 3);
    }
  }
}

TEST_CASE("quantizers with a scale give the CPU's payload at all sizes and scales") {
  const Layout layout = layout_of(
      {{"large", {65'536}}, {"part", {20'001}}, {"small", {16'383}}, {"few", {77}}, {"one", {1}}});
  auto normals = normal(layout.elements(), 5);
  std::fill_n(normals.begin() + 70'000, 1000, 0.0f);  // A bucket of zeros.
  for (const char* spec : {"qsgd:1",
                           "qsgd:7",
                           "qsgd:127",
                           "qsgd:7,bucket=300",
                           "qsgd:7,bucket=65536",
                           "kbit:2",
                           "kbit:4",
                           "kbit:8",
                           "terngrad",
                           "terngrad,clip=0.7",
                           "terngrad,clip=0",
                           "qsgd:7+ef",
                           "qsgd:100,bucket=300+ef",
                           "qsgd:1,bucket=65536+ef",
                           "qsgd:15,bucket=65536+ef",
                           "qsgd:127,bucket=65536+ef",
                           "qsgd:3,bucket=65536,norm=l2+ef",
                           "kbit:2+ef",
                           "kbit:4+ef",
                           "kbit:6+ef",
                           "kbit:8+ef",
                           "terngrad+ef",
                           "sign",
                           "sign+ef"}) {
    CAPTURE(std::string(spec));
    const auto codec = codec_of(spec);
    REQUIRE(codec->is_for_device(layout, true));
    for (const auto& x :
         {normals, laplace(layout.elements(), 5), normal(layout.elements(), 6, 1e-40f),
          normal(layout.elements(), 6, 1e30f), normal(layout.elements(), 6, 0x1p-101f),
          normal(layout.elements(), 6,
                 0x1p-102f)}) {  // Some largest values are near the minimum of nearest_scale().
      const auto coded = encode_on(*codec, layout, x, block_elements_default);
      CHECK(coded.bytes.value() == encode(*codec, layout, x, 7));
      CHECK(coded.is_there);
    }
    const auto coded = encode_on(*codec, layout, normals, block_elements_default);
    CHECK(coded.results >= 3);
  }
}

TEST_CASE("eden gives the CPU's payload at whole and fractional numbers of bits") {
  const Layout layout = layout_of({{"large", {3, 65'536}}, {"part", {20'001}}, {"small", {4096}}});
  for (const char* spec :
       {"eden:2", "eden:3", "eden:4", "eden:1.5", "eden:3.3", "eden:2+ef", "eden:1.25+ef", "eden:1",
        "eden:1+ef", "eden:0.5", "eden:0.7+ef", "eden:0.05"}) {
    CAPTURE(std::string(spec));
    const auto codec = codec_of(spec);
    auto odd = normal(layout.elements(), 5);
    std::fill_n(odd.begin(), 65'536, 0.0f);
    odd[70'000] = 1e6f;
    for (const auto& x :
         {normal(layout.elements(), 5), laplace(layout.elements(), 5), odd,
          normal(layout.elements(), 6, 1e-40f), normal(layout.elements(), 6, 1e30f)}) {
      const auto coded = encode_on(*codec, layout, x, block_elements_default);
      CHECK(coded.bytes.value() == encode(*codec, layout, x, 7));
      CHECK(coded.is_there);
    }
    const auto coded =
        encode_on(*codec, layout, normal(layout.elements(), 5), block_elements_default);
    CHECK(coded.results == 3);
  }
}

TEST_CASE("blocks that a device can't code are coded by the CPU") {
  constexpr std::size_t block = 5120;
  const Layout layout = layout_of({{"w", {60, block}}, {"w.bias", {200}}, {"v", {30, block}}});
  const auto plain = normal(layout.elements(), 4);
  auto odd = plain;
  std::fill_n(odd.begin() + 3 * block, 5 * block, 0.0f);                      // Zeros
  std::fill_n(odd.begin() + 10 * block, 2 * block, -0.0f);                    // of both signs.
  for (std::size_t i = 15 * block; i < 25 * block; i += 1500) odd[i] = 5000;  // Outliers.
  std::fill_n(odd.begin() + 30 * block, block, 1.0f);                         // One level only.
  for (std::size_t i = 35 * block; i < 39 * block; ++i) odd[i] *= 1e-3f;      // Few levels.
  for (const char* spec :
       {"ecuq:4", "ecuq:2", "ecuq:4,mode=centroid", "w=ecuq:2;v=ecuq:5;*=none"}) {
    CAPTURE(std::string(spec));
    const auto codec = codec_of(spec);
    const auto all = encode_on(*codec, layout, plain, block);
    const auto some = encode_on(*codec, layout, odd, block);
    CHECK(some.bytes.value() == encode(*codec, layout, odd, 7, block));
    CHECK(some.is_there);
    CHECK(all.results >= 90);
    CHECK(some.results <= 90 - 5 - 2 - 10);
    CHECK(some.results >= 60);
  }
}

TEST_CASE("with a device a value that can't be sent gives the same error as on the CPU") {
  const Layout layout = many_blocks();
  for (const char* spec : {"ecuq:4", "topk:0.01+qsgd:8", "threshold:2+qsgd:8",
                           "w=powersgd:2;*=ecuq:4", "w=gradzip:2;*=ecuq:4"}) {
    CAPTURE(std::string(spec));
    const auto codec = codec_of(spec);
    for (const float bad : {std::numeric_limits<float>::infinity(), -0x1.fp127f,
                            std::numeric_limits<float>::quiet_NaN()}) {
      for (const std::size_t at : {std::size_t{5}, std::size_t{150'000}, std::size_t{250'000}}) {
        auto x = normal(layout.elements(), 4);
        x[at] = bad;
        std::vector<std::byte> bytes;
        VectorSink sink(bytes);
        const auto wanted = codec->encode(layout, x, 7, sink, small_block);
        const auto coded = encode_on(*codec, layout, x, small_block);
        REQUIRE(wanted.has_error());
        REQUIRE(coded.bytes.has_error());
        CHECK(coded.bytes.error().message() == wanted.error().message());
      }
    }
  }
}

TEST_CASE("a vector that is not on the device is copied there if the device can code it") {
  const Layout layout = many_blocks();
  const std::vector<float> x = normal(layout.elements(), 3);
  for (const char* spec :
       {"ecuq:4", "topk:0.01+qsgd:8", "w=powersgd:2;*=none", "randk:0.1", "sign"}) {
    CAPTURE(std::string(spec));
    const auto codec = codec_of(spec);
    const auto coded = encode_on(*codec, layout, x, small_block, Vector::is_here);
    CHECK(coded.bytes.value() == encode(*codec, layout, x, 7, small_block));
    CHECK((coded.results > 0) == codec->is_for_device(layout, false));
  }
}

TEST_CASE("a vector is not copied to the device if the device can't code it") {
  const Layout layout = many_blocks();
  const std::vector<float> x = normal(layout.elements(), 3);
  for (const char* spec :
       {"none", "sign", "sign+ef", "randk:0.1", "randk:0.1+ecuq:4", "qsgd:8,norm=l2", "qsgd:1000",
        "qsgd:8,bucket=32", "qsgd:8,bucket=32+ef", "kbit:4,mode=affine+ef", "kbit:4,scale=channel",
        "countsketch:5x4000,recovery=own", "v=topk:0.1;*=none", "v=powersgd:2;*=none"}) {
    CAPTURE(std::string(spec));
    CHECK_FALSE(codec_of(spec)->is_for_device(layout, false));
    std::size_t copies = 0;
    auto device = std::make_unique<HostCodecDevice>();
    device->copies = &copies;
    encode_on(std::move(device), *codec_of(spec), layout, x, small_block, Vector::is_here);
    CHECK(copies == 0);
  }
}

TEST_CASE("a device selects the same elements as the CPU") {
  const Layout layout = layout_of({{"w", {700, 800}}, {"b", {3}}, {"v", {70'000}}, {"u", {1}}});
  const auto plain = normal(layout.elements(), 8);
  auto tied = plain;  // Few different magnitudes, many of them 0.
  for (float& v : tied) v = std::round(v * 2);
  const std::vector<float> zeros(layout.elements());
  for (const char* spec :
       {"topk:0.01", "topk:0.3+qsgd:7", "topk:0.001,scope=global", "topk:0.01,dense_below=0",
        "threshold:0.5", "threshold:0", "ema-threshold:0.01", "w=topk:0.01;v=threshold:1;*=fp16",
        "topk:0.001,scope=global,dense_below=0+ecuq:2"}) {
    CAPTURE(std::string(spec));
    const auto codec = codec_of(spec);
    for (const auto& x : {plain, tied, zeros}) {
      for (const std::uint32_t block : {small_block, block_elements_of_codec}) {
        const auto coded = encode_on(*codec, layout, x, block);
        CHECK(coded.bytes.value() == encode(*codec, layout, x, 7, block));
        CHECK(coded.is_there);
        CHECK(coded.results > 0);
      }
    }
  }
}

TEST_CASE("batches of any size give the CPU's payload") {
  const Layout layout = many_blocks();
  const auto x = normal(layout.elements(), 3);
  for (const char* spec : {"ecuq:4", "kbit:4", "eden:1", "topk:0.01+qsgd:7"}) {
    CAPTURE(std::string(spec));
    const auto wanted = encode(*codec_of(spec), layout, x, 7, small_block);
    for (const std::size_t blocks : {1u, 7u, 1000u}) {
      CAPTURE(blocks);
      auto device = std::make_unique<HostCodecDevice>();
      device->blocks_of_batch = blocks;
      const auto coded = encode_on(std::move(device), *codec_of(spec), layout, x, small_block);
      CHECK(coded.bytes.value() == wanted);
      CHECK(coded.is_there);
    }
  }
}

TEST_CASE("a device selects from a batch in parts that it has room for") {
  const Layout layout = layout_of({{"w", {2100, 2100}}, {"b", {3}}});
  REQUIRE(layout.elements() > device_select_max);
  std::vector<float> x(layout.elements());
  kernels().gaussian(5, 0, 0, x.data(), x.size());
  for (float& v : x) v = std::round(v * 16);  // With ties at the cutoff.
  const auto codec = codec_of("topk:0.001");
  auto device = std::make_unique<HostCodecDevice>();
  device->blocks_of_batch = 1000;
  std::size_t selections = 0;
  device->results = &selections;
  const auto coded = encode_on(std::move(device), *codec, layout, x, block_elements_of_codec);
  CHECK(coded.bytes.value() == encode(*codec, layout, x, 7, block_elements_of_codec));
  CHECK(coded.is_there);
  CHECK(selections == 2);
}

TEST_CASE("a vector that lies on a device that was given up is coded on the CPU") {
  const Layout layout = many_blocks();
  const auto x = normal(layout.elements(), 3);
  const auto codec = codec_of("ecuq:4");
  DeviceCoder coder(std::make_unique<HostCodecDevice>());
  coder.give_up("the test says so");
  std::vector<std::byte> bytes;
  VectorSink sink(bytes);
  CodecState state;
  codec->encode(layout, x, 7, sink, small_block, &state, 1, {.coder = &coder, .values = x.data()})
      .value();
  CHECK(bytes == encode(*codec, layout, x, 7, small_block));
}

TEST_CASE("with a device a codec's state is the same as on the CPU from round to round") {
  const Layout layout = layout_of({{"w", {300, 400}}, {"v", {40, 500}}, {"b", {3}}});
  for (const char* spec : {"ema-threshold:0.01", "powersgd:2", "gradzip:3", "powersgd:3+ef"}) {
    CAPTURE(std::string(spec));
    const auto codec = codec_of(spec);
    DeviceCoder coder(std::make_unique<HostCodecDevice>());
    CodecState there;
    CodecState here;
    for (std::uint64_t round = 1; round <= 3; ++round) {
      const auto x = normal(layout.elements(), round);
      const auto payload = [&](CodecState& state, const DeviceCopy& device) {
        std::vector<std::byte> bytes;
        VectorSink sink(bytes);
        codec->encode(layout, x, round, sink, 0, &state, 1, device).value();
        return bytes;
      };
      const std::uint64_t before = coder.results();
      CHECK(payload(there, {.coder = &coder, .values = x.data()}) == payload(here, {}));
      CHECK(coder.results() > before);
    }
    CHECK(coder.is_there());
  }
}

TEST_CASE("if a device fails at any call, the CPU goes on with the same payload") {
  const Layout layout = many_blocks();
  const std::vector<float> x = normal(layout.elements(), 3);
  for (const char* spec : {"ecuq:4", "topk:0.01", "w=powersgd:2;v=topk:0.01;*=ecuq:4"}) {
    CAPTURE(std::string(spec));
    const auto codec = codec_of(spec);
    const auto wanted = encode(*codec, layout, x, 7, small_block);
    bool is_done = false;
    int calls = 0;
    for (; !is_done; ++calls) {
      CAPTURE(calls);
      REQUIRE(calls < 100);
      auto device = std::make_unique<HostCodecDevice>();
      device->calls_left = calls;
      const auto coded =
          encode_on(std::move(device), *codec, layout, x, small_block, Vector::is_here);
      CHECK(coded.bytes.value() == wanted);
      is_done = coded.is_there && coded.results > 0;
    }
    CHECK(calls > 3);
  }
}

TEST_CASE("wrong results of a device are detected, and the CPU goes on without it") {
  const Layout layout = many_blocks();
  const std::vector<float> x = normal(layout.elements(), 3);
  const auto codec = codec_of("ecuq:4");
  auto device = std::make_unique<HostCodecDevice>();
  device->right_streams = 0;
  const auto coded = encode_on(std::move(device), *codec, layout, x, small_block);
  CHECK(coded.bytes.value() == encode(*codec, layout, x, 7, small_block));
  CHECK_FALSE(coded.is_there);

  auto selector = std::make_unique<HostCodecDevice>();
  selector->right_selections = 0;
  const auto selected =
      encode_on(std::move(selector), *codec_of("topk:0.01"), layout, x, small_block);
  CHECK(selected.bytes.value() == encode(*codec_of("topk:0.01"), layout, x, 7, small_block));
  CHECK_FALSE(selected.is_there);

  for (const Cutoff& wrong : {Cutoff{1, 1'000'000'000}, Cutoff{0x7f000000, 0}, Cutoff{0, 1}}) {
    CAPTURE(wrong.magnitude);
    auto finder = std::make_unique<HostCodecDevice>();
    finder->wrong_cutoff = &wrong;
    const auto found =
        encode_on(std::move(finder), *codec_of("topk:0.01+qsgd:7"), layout, x, small_block);
    CHECK(found.bytes.value() == encode(*codec_of("topk:0.01+qsgd:7"), layout, x, 7, small_block));
    CHECK_FALSE(found.is_there);
  }
  for (const char* spec : {"powersgd:2", "gradzip:2"}) {
    for (const float wrong : {0.0f, std::numeric_limits<float>::quiet_NaN()}) {
      CAPTURE(std::string(spec));
      CAPTURE(wrong);
      auto multiplier = std::make_unique<HostCodecDevice>();
      multiplier->wrong_product = wrong;
      const auto product =
          encode_on(std::move(multiplier), *codec_of(spec), layout, x, small_block);
      CHECK(product.bytes.value() == encode(*codec_of(spec), layout, x, 7, small_block));
      CHECK_FALSE(product.is_there);
    }
  }
}
