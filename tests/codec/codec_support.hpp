// SPDX-License-Identifier: Apache-2.0
// Helpers of the codec tests: layouts, inputs, the codecs to test, and encoding to memory.
#pragma once

#include "kernels/kernels.hpp"
#include "shared/base/io/file.hpp"
#include "shared/codec/blocks/decode.hpp"
#include "shared/codec/encode/codec.hpp"
#include "shared/codec/payload/reader.hpp"
#include "shared/codec/spec/parser.hpp"
#include "shared/codec/spec/table.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace fl::testing {

using namespace fl::codec;

/// The suite of test cases that need many samples. They run no code that other cases do not run, so
/// sanitizer builds leave them out (fl_test() in deploy/cmake/options.cmake).
inline const doctest::test_suite statistics{"statistics"};

/// A file in memory.
class MemoryFile final : public File {
 public:
  explicit MemoryFile(std::vector<std::byte> bytes = {}) : bytes_(std::move(bytes)) {}

  Result<std::size_t> read_at(std::uint64_t offset, MutableBytes out) override {
    if (offset >= bytes_.size()) return std::size_t{0};
    const std::size_t count = std::min<std::size_t>(out.size(), bytes_.size() - offset);
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset), count, out.begin());
    return count;
  }
  Result<void> write_at(std::uint64_t offset, Bytes bytes) override {
    bytes_.resize(std::max<std::size_t>(bytes_.size(), offset + bytes.size()));
    std::ranges::copy(bytes, bytes_.begin() + static_cast<std::ptrdiff_t>(offset));
    return {};
  }
  Result<void> truncate(std::uint64_t bytes) override {
    bytes_.resize(bytes);
    return {};
  }
  Result<std::uint64_t> size() override { return bytes_.size(); }
  Result<void> sync() override { return {}; }
  void start_writeback(std::uint64_t, std::uint64_t) override {}

  [[nodiscard]] const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

inline Layout layout_of(const std::vector<TensorSpec>& specs) {
  return Layout::make(specs).value();
}
inline Layout flat_layout(std::int64_t n) { return layout_of({{"w", {n}}}); }

/// Specs for every row of the codec table, with the extreme settings, and some composed specs.
inline std::vector<std::string> specs_to_test() {
  std::vector<std::string> specs;
  for (const CodecRow& row : codec_rows()) specs.emplace_back(row.example);
  for (const char* more :
       {"qsgd:1",
        "qsgd:2,bucket=1",
        "qsgd:7,bucket=100,norm=l2",
        "qsgd:1000,norm=l2",
        "qsgd:32767,bucket=65536",
        "kbit:2",
        "kbit:3,scale=channel",
        "kbit:2,mode=affine",
        "kbit:5,scale=channel,mode=affine",
        "kbit:8,mode=affine",
        "terngrad,clip=0",
        "terngrad,clip=1.5",
        "eden:1",
        "eden:3",
        "eden:4",
        "eden:0.3",
        "eden:1.5",
        "eden:3.875",
        "randk:0.5,dense_below=0+eden:1",
        "powersgd:1",
        "powersgd:3,min_ratio=1",
        "gradzip:1",
        "gradzip:2,min_ratio=1.5",
        "gradzip:1,projection=own",
        "lanes:2",
        "lanes:16",
        "randk:0.3,dense_below=0+lanes:16",
        "countsketch:3x10000,k=900",
        "countsketch:5x2000,recovery=own",
        "ecuq:0.1",
        "ecuq:0.1,mode=centroid",
        "ecuq:0.5",
        "ecuq:1",
        "ecuq:8",
        "ecuq:1,mode=centroid",
        "ecuq:4.5,mode=centroid",
        "topk:0.3,dense_below=0+ecuq:3",
        "topk:0.05,scope=global,dense_below=0+qsgd:4",
        "topk:0.5,dense_below=0+fp16",
        "topk:1,dense_below=0+qsgd:7",
        "randk:0.1,dense_below=0",
        "randk:0.3,dense_below=0+qsgd:7",
        "threshold:0.5,dense_below=0",
        "threshold:0,dense_below=0+qsgd:1",
        "ema-threshold:0.05,dense_below=0+qsgd:4",
        "w=topk:0.3,dense_below=0+qsgd:4;*.bias=none;*=randk:0.2,dense_below=0+fp16"}) {
    specs.emplace_back(more);
  }
  return specs;
}

inline std::shared_ptr<const Codec> codec_of(std::string_view spec) {
  return parse_codec(spec).value();
}

inline std::vector<std::byte> encode(const Codec& codec, const Layout& layout,
                                     std::span<const float> x, std::uint64_t seed = 1,
                                     std::uint32_t block_elements = block_elements_of_codec) {
  std::vector<std::byte> bytes;
  VectorSink sink(bytes);
  const auto size = codec.encode(layout, x, seed, sink, block_elements);
  CHECK(size.value() == bytes.size());
  return bytes;
}

inline std::vector<float> decode(const std::vector<std::byte>& payload, const Layout& layout) {
  SpanSource source(payload);
  auto reader = PayloadReader::open(source, payload.size(), layout).value();
  std::vector<float> out(layout.elements());
  reader.decode_all(out).value();
  return out;
}

/// Checks that every kernel row encodes x to the same payload and decodes it to the same values.
inline void check_rows_agree(std::string_view spec, const Layout& layout, std::span<const float> x,
                             std::uint32_t block_elements = block_elements_of_codec) {
  CAPTURE(spec);
  const Kernels& best = kernels();
  std::vector<std::byte> payload;
  std::vector<float> values;
  for (const Kernels* row : all_kernels()) {
    force_kernels(*row);
    const auto bytes = encode(*codec_of(spec), layout, x, 1, block_elements);
    const auto back = decode(bytes, layout);
    if (payload.empty()) {
      payload = bytes;
      values = back;
    }
    CHECK(bytes == payload);
    CHECK(back == values);
  }
  force_kernels(best);
}

/// Standard normal values times `scale`.
inline std::vector<float> normal(std::size_t n, std::uint64_t seed, float scale = 1.0f) {
  std::vector<float> x(n);
  kernels().gaussian(seed, 0, 0, x.data(), n);
  for (float& v : x) v *= scale;
  return x;
}

/// Laplace values: the difference of two exponential values, each a sum of two squared normal
/// values.
inline std::vector<float> laplace(std::size_t n, std::uint64_t seed) {
  const std::vector<float> a = normal(4 * n, seed);
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) {
    const float* v = a.data() + 4 * i;
    x[i] = v[0] * v[0] + v[1] * v[1] - v[2] * v[2] - v[3] * v[3];
  }
  return x;
}

}  // namespace fl::testing
