// SPDX-License-Identifier: Apache-2.0
// With several threads a codec gives the same bytes, values, sums and errors as with one.
#include "shared/codec/encode/feedback.hpp"

#include "tests/codec/codec_support.hpp"

#include <limits>

using namespace fl;
using namespace fl::codec;
using namespace fl::testing;

namespace {

constexpr int threads = 3;
constexpr std::uint32_t block = 256;

/// About 230 blocks: more than two batches for three threads, and the last batch is not full.
Layout many_blocks() { return layout_of({{"w", {150, 200}}, {"w.bias", {200}}, {"v", {28'123}}}); }

Result<std::vector<std::byte>> encode_by(const Codec& codec, const Layout& layout,
                                         std::span<const float> x, int by) {
  std::vector<std::byte> bytes;
  VectorSink sink(bytes);
  CodecState state;
  FL_TRY([[maybe_unused]] const std::uint64_t size,
         codec.encode(layout, x, 7, sink, block, &state, by));
  const auto kept = state.bytes();  // Compare the codec's state, too.
  bytes.insert(bytes.end(), kept.begin(), kept.end());
  return bytes;
}

}  // namespace

TEST_CASE("any number of threads gives the same payload, residual, error and values") {
  const Layout layout = many_blocks();
  const std::vector<float> x = normal(layout.elements(), 3);
  for (const std::string& spec : specs_to_test()) {
    CAPTURE(spec);
    const auto codec = codec_of(spec);
    const auto alone = encode_by(*codec, layout, x, 1).value();
    CHECK(encode_by(*codec, layout, x, threads).value() == alone);

    const auto payload = encode(*codec, layout, x, 7, block);
    SpanSource source(payload);
    auto reader = PayloadReader::open(source, payload.size(), layout).value();
    std::vector<float> values[2];
    std::vector<float> residuals[2];
    std::vector<float> velocities[2];
    double losses[2];
    double powers[2];
    for (const int way : {0, 1}) {
      const int by = way == 0 ? 1 : threads;
      values[way].resize(x.size());
      reader.decode_all(values[way], by).value();
      residuals[way].resize(x.size());
      losses[way] = keep_residual(x, reader, residuals[way], by).value().lost;
      add_decoded(residuals[way], reader, by).value();
      velocities[way] = x;
      stop_sent(velocities[way], reader, by).value();
      const CodingError error = coding_error(x, reader, by).value();
      CHECK(error.lost == losses[way]);
      powers[way] = error.power;
    }
    CHECK(values[1] == values[0]);
    CHECK(residuals[1] == residuals[0]);
    CHECK(velocities[1] == velocities[0]);
    CHECK(losses[1] == losses[0]);
    CHECK(powers[1] == powers[0]);
  }
}

TEST_CASE("if several values can't be sent, the error names the first") {
  const Layout layout = many_blocks();
  for (const char* spec : {"none", "ecuq:4", "topk:0.1+qsgd:7"}) {
    CAPTURE(spec);
    std::vector<float> x = normal(layout.elements(), 3);
    for (std::size_t i = 5'003; i < x.size(); i += 2'000)
      x[i] = std::numeric_limits<float>::infinity();
    const auto refused = encode_by(*codec_of(spec), layout, x, threads);
    REQUIRE(refused.has_error());
    CHECK(refused.error().message() == encode_by(*codec_of(spec), layout, x, 1).error().message());
    CHECK(refused.error().message().find("5003") != std::string::npos);
  }
}

TEST_CASE("if several blocks are damaged, the error names the first") {
  const Layout layout = many_blocks();
  auto payload = encode(*codec_of("ecuq:4"), layout, normal(layout.elements(), 3), 7, block);
  // Each block begins with its format id.
  for (std::size_t at = payload.size() / 3; at < payload.size(); at += 1'000)
    std::fill_n(payload.begin() + static_cast<std::ptrdiff_t>(at),
                std::min<std::size_t>(400, payload.size() - at), std::byte{0xff});
  SpanSource source(payload);
  auto reader = PayloadReader::open(source, payload.size(), layout).value();
  std::vector<float> out(layout.elements());
  const auto alone = reader.decode_all(out);
  REQUIRE(alone.has_error());
  for (int turn = 0; turn < 20; ++turn) {
    const auto refused = reader.decode_all(out, threads);
    REQUIRE(refused.has_error());
    CHECK(refused.error().message() == alone.error().message());
  }
}
