// SPDX-License-Identifier: Apache-2.0
// The state of a codec: it survives serialization, damaged bytes are refused, and powersgd improves
// with it from round to round.
#include "shared/codec/core/codec_state.hpp"

#include "tests/codec/codec_support.hpp"

#include "kernels/generic/philox.hpp"
#include "shared/base/io/digest.hpp"
#include "tests/support/distortion.hpp"

#include <limits>

using namespace fl;
using namespace fl::codec;
using namespace fl::testing;

namespace {

CodecState some_state() {
  CodecState state;
  state.set("powersgd/w", {1, -2, 3});
  state.set("a", {});
  state.set("powersgd/b", {0.5f});
  return state;
}

/// Replaces the last 16 bytes by the digest of the bytes before them.
std::vector<std::byte> sealed(std::vector<std::byte> bytes) {
  const std::string digest = Digest::of(Bytes(bytes).first(bytes.size() - 16)).raw();
  std::ranges::copy(bytes_of(std::string_view(digest)), bytes.end() - 16);
  return bytes;
}

std::vector<std::byte> encode_with(CodecState* state, const char* spec, const Layout& layout,
                                   std::span<const float> x, std::uint64_t seed) {
  std::vector<std::byte> bytes;
  VectorSink sink(bytes);
  codec_of(spec)->encode(layout, x, seed, sink, 256, state).value();
  return bytes;
}

/// A 40 x 64 matrix with slowly falling singular values.
std::vector<float> slow_spectrum() {
  const std::vector<float> left = normal(40 * 40, 1);
  const std::vector<float> right = normal(40 * 64, 2);
  std::vector<float> out(40 * 64);
  for (std::size_t k = 0; k < 40; ++k) {
    const float size = 1 / std::sqrt(1.0f + static_cast<float>(k));
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] += size * left[k * 40 + i / 64] * right[k * 64 + i % 64];
    }
  }
  return out;
}

}  // namespace

TEST_CASE("a state is the same after it was written and parsed") {
  const CodecState state = some_state();
  CHECK(state.is_changed());
  const CodecState back = CodecState::parse(state.bytes()).value();
  CHECK_FALSE(back.is_changed());
  CHECK(back.bytes() == state.bytes());
  CHECK(std::ranges::equal(back.find("powersgd/w"), std::vector<float>{1, -2, 3}));
  CHECK(back.find("a").empty());
  CHECK(back.find("powersgd").empty());
  CHECK(CodecState::parse(CodecState().bytes()).value().bytes() == CodecState().bytes());
}

TEST_CASE("a damaged state is refused; with a correct digest it is refused or finite") {
  const auto bytes = some_state().bytes();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const std::vector<std::byte> cut(bytes.begin(),
                                     bytes.begin() + static_cast<std::ptrdiff_t>(size));
    const auto parsed = CodecState::parse(cut);
    REQUIRE_FALSE(parsed.has_value());
    CHECK(parsed.error().code() == Errc::corrupt);
    if (size >= 16) CHECK_FALSE(CodecState::parse(sealed(cut)).has_value());
  }
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    auto flipped = bytes;
    flipped[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    CHECK_FALSE(CodecState::parse(flipped).has_value());
    const auto parsed = CodecState::parse(sealed(flipped));
    if (!parsed) CHECK(parsed.error().code() == Errc::corrupt);
    if (parsed) {
      for (const float v : parsed->find("powersgd/w")) REQUIRE(std::isfinite(v));
    }
  }
  auto longer = bytes;
  longer.push_back(std::byte{0});
  CHECK(CodecState::parse(sealed(longer)).error().message() ==
        "codec state: there are bytes behind the last entry");
  auto many = bytes;
  store(many, 4, std::uint32_t{4});
  CHECK(CodecState::parse(sealed(many)).error().message() == "codec state: an entry is cut off");
  auto wide = bytes;
  store(wide, 8 + 4, std::numeric_limits<std::uint64_t>::max());
  CHECK(CodecState::parse(sealed(wide)).error().message() ==
        "codec state: an entry is longer than what is left");
}

TEST_CASE("an empty state gives the same bytes as no state, and few codecs change it") {
  const Layout layout = layout_of({{"w", {40, 64}}, {"b", {40}}});
  const std::vector<float> x = normal(layout.elements(), 3);
  for (const std::string& spec : specs_to_test()) {
    CAPTURE(spec);
    CodecState state;
    CHECK(encode_with(&state, spec.c_str(), layout, x, 7) ==
          encode_with(nullptr, spec.c_str(), layout, x, 7));
    CHECK(state.is_changed() ==
          (spec.starts_with("powersgd") || spec.starts_with("ema-threshold")));
  }
}

TEST_CASE(
    "with its state powersgd's error falls from round to round below the error without a state") {
  const Layout layout = layout_of({{"w", {40, 64}}});
  const std::vector<float> x = slow_spectrum();
  CodecState state;
  std::vector<double> warm;
  double cold = 0;
  constexpr std::uint64_t rounds = 20;
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    // As if the program restarted in each round.
    state = CodecState::parse(state.bytes()).value();
    warm.push_back(nmse(x, decode(encode_with(&state, "powersgd:4", layout, x, round), layout)));
    cold += nmse(x, decode(encode_with(nullptr, "powersgd:4", layout, x, round), layout)) / rounds;
    if (round > 1) CHECK(warm.back() < warm[warm.size() - 2] * (1 + 1e-6));
  }
  CHECK(warm.back() < 0.9 * warm.front());
  CHECK(warm.back() < 0.9 * cold);
}

TEST_CASE("powersgd uses a state of another rank, and ignores one of another layout or of zeros") {
  const Layout layout = layout_of({{"w", {40, 64}}});
  const std::vector<float> x = slow_spectrum();
  CodecState state;
  for (std::uint64_t round = 1; round <= 10; ++round) {
    encode_with(&state, "powersgd:4", layout, x, round);
  }
  const auto loss = [&](const char* spec, CodecState start) {
    return nmse(x, decode(encode_with(&start, spec, layout, x, 77), layout));
  };
  CHECK(loss("powersgd:2", state) < loss("powersgd:2", {}));
  CHECK(loss("powersgd:6", state) < loss("powersgd:6", {}));
  CodecState other;
  other.set("powersgd/w", {1, 2, 3});
  CHECK(loss("powersgd:4", other) == loss("powersgd:4", {}));
  // After a matrix of zeros powersgd starts from a random matrix, not from zeros.
  CodecState zeros;
  encode_with(&zeros, "powersgd:4", layout, std::vector<float>(x.size()), 1);
  CHECK(std::ranges::all_of(zeros.find("powersgd/w"), [](float v) { return v == 0; }));
  CHECK(loss("powersgd:4", zeros) == loss("powersgd:4", {}));
}
