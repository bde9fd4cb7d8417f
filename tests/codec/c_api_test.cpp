// SPDX-License-Identifier: Apache-2.0
// The C interface gives the same payloads, values and errors as the C++ library.
#include "shared/codec/c_api.h"

#include "shared/codec/encode/feedback.hpp"
#include "tests/codec/codec_support.hpp"

#include <sstream>

using namespace fl;
using namespace fl::codec;
using namespace fl::testing;

namespace {

constexpr const char* lines = "w 40 100\nw.bias 1500\nbn.running_mean 30\n";
const Layout& layout() {
  static const Layout made =
      layout_of({{"w", {40, 100}}, {"w.bias", {1500}}, {"bn.running_mean", {30}}});
  return made;
}

struct FreeCoder {
  void operator()(flc_coder* coder) const { flc_coder_free(coder); }
};
using Coder = std::unique_ptr<flc_coder, FreeCoder>;

/// A sending client. It passes a residual and a velocity only if flc_keeps() asks for them.
struct Sender {
  Coder coder{flc_coder_new(lines)};
  std::vector<float> residual = std::vector<float>(layout().elements());
  std::vector<float> velocity = std::vector<float>(layout().elements());
  double nmse = -1;

  std::vector<std::byte> encode(const std::string& spec, std::uint32_t round, std::uint64_t seed,
                                const std::vector<float>& x) {
    const std::int32_t keeps = flc_keeps(spec.c_str());
    REQUIRE(keeps >= 0);
    std::uint64_t bytes = 0;
    const std::uint8_t* const payload =
        flc_coder_encode(coder.get(), spec.c_str(), round, seed, seed + 1, x.data(),
                         (keeps & FLC_RESIDUAL) != 0 ? residual.data() : nullptr,
                         (keeps & FLC_VELOCITY) != 0 ? velocity.data() : nullptr, 1, &bytes, &nmse);
    if (payload == nullptr) return {};
    const Bytes all(reinterpret_cast<const std::byte*>(payload), bytes);
    return {all.begin(), all.end()};
  }
};

const std::uint8_t* data_of(const std::vector<std::byte>& bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes.data());
}

bool says(std::string_view words) {
  return std::string_view(flc_error()).find(words) != std::string_view::npos;
}

}  // namespace

TEST_CASE("C: for every codec, the payloads of three rounds are the C++ library's") {
  for (const std::string& plain : specs_to_test()) {
    for (const std::string& spec : {plain, plain + "+ef"}) {
      CAPTURE(spec);
      Sender sender;
      const auto codec = codec_of(spec);
      CodecState state;
      std::vector<float> residual(layout().elements());
      for (std::uint32_t round = 1; round <= 3; ++round) {
        auto x = normal(layout().elements(), round);
        const auto payload = sender.encode(spec, round, round + 7, x);
        if (codec->error_feedback()) add_residual(x, residual);
        std::vector<std::byte> expected;
        VectorSink sink(expected);
        codec->encode(layout(), x, CodeInputs(round + 7, round + 8), sink, 0, &state).value();
        CHECK(payload == expected);
        const auto decoded = decode(expected, layout());
        std::vector<float> out(layout().elements());
        CHECK(flc_coder_decode(sender.coder.get(), data_of(payload), payload.size(), out.data(),
                               1) == 0);
        CHECK(out == decoded);
        double lost = 0;
        double power = 0;
        for (std::size_t i = 0; i < x.size(); ++i) {
          lost += std::pow(double{x[i]} - decoded[i], 2);
          power += std::pow(double{x[i]}, 2);
          residual[i] = x[i] - decoded[i];
        }
        CHECK(sender.nmse == doctest::Approx(lost / power));
        if (codec->error_feedback()) CHECK(sender.residual == residual);
      }
    }
  }
}

TEST_CASE("C: momentum applies to parameters only, and a payload can be taken back") {
  Sender sender;
  const std::string spec = "topk:0.1,dense_below=0+dgc:0.5";
  CHECK(flc_keeps(spec.c_str()) == (FLC_RESIDUAL | FLC_VELOCITY));
  const std::size_t first_statistic = layout().tensors().back().offset;
  std::vector<float> x(layout().elements(), 1.0F);
  sender.encode(spec, 1, 1, x);
  const auto payload = sender.encode(spec, 2, 1, x);
  const auto sent = decode(payload, layout());
  // Statistics are sent unchanged in each round. Values that were not sent in round 1 are sent with
  // their momentum.
  for (std::size_t i = first_statistic; i < sent.size(); ++i) CHECK(sent[i] == 1);
  CHECK(std::ranges::count(sent, 2.5F) == 400 + 150);
  const std::vector<float> before = sender.residual;
  REQUIRE(flc_coder_take_back(sender.coder.get(), data_of(payload), payload.size(),
                              sender.residual.data(), 1) == 0);
  for (std::size_t i = 0; i < sent.size(); ++i)
    CHECK(sender.residual[i] == (i < first_statistic ? before[i] + sent[i] : 0));
}

TEST_CASE("C: a codec's warm-up depends on the round") {
  Sender early;
  Sender late;
  const std::string spec = "topk:0.01,from=0.25,over=4,dense_below=0";
  const auto x = normal(layout().elements(), 3);
  CHECK(early.encode(spec, 1, 1, x).size() > 4 * late.encode(spec, 9, 1, x).size());
}

TEST_CASE("C: flc_names() lists the library's codecs without delta") {
  std::istringstream names(flc_names());
  std::size_t count = 0;
  for (std::string name; names >> name; ++count) {
    CHECK(name != delta_codec);
    CHECK(std::ranges::find(codec_rows(), name, &CodecRow::name) != codec_rows().end());
  }
  CHECK(count >= 16);
  CHECK(flc_version() == FLC_VERSION);
}

TEST_CASE("C: a name with blanks, line breaks and backslashes is one name") {
  const Layout named =
      layout_of({{"lead I\n2", {40, 100}}, {"a\\s", {1500}}, {"Größe running_mean", {30}}});
  const Coder coder(flc_coder_new("lead\\sI\\n2 40 100\na\\\\s 1500\nGröße\\srunning_mean 30"));
  REQUIRE(coder);
  const auto payload = encode(*codec_of("ecuq:2"), named, normal(named.elements(), 1), 1);
  std::vector<float> out(named.elements());
  CHECK(flc_coder_decode(coder.get(), data_of(payload), payload.size(), out.data(), 1) == 0);
  const Coder other(flc_coder_new("lead 40 100\na 1500\nGröße 30"));
  CHECK(flc_coder_decode(other.get(), data_of(payload), payload.size(), out.data(), 1) == -1);
}

TEST_CASE("C: wrong arguments are refused with a reason") {
  for (const auto& [text, words] : std::vector<std::pair<const char*, const char*>>{
           {"w 4x", "'4x' is not a size, in the line of w"},
           {"w -1", "size -1"},
           {"w 3\nw 3", "two tensors"},
           {"\nw 3", "empty name"},
           {"w\\x 3", "a backslash in the name w\\x must be \\\\"},
           {"w\\ 3", "a backslash in the name w\\"},
           {"w\xff 3", "not valid UTF-8"},
           {"w 99999999999999999999", "is not a size"}}) {
    const std::string layout_text = text;
    CAPTURE(layout_text);
    CHECK(flc_coder_new(text) == nullptr);
    CHECK(says(words));
  }
  CHECK(flc_keeps("zip") == -1);
  CHECK(says("zip"));
  Sender sender;
  CHECK(flc_coder_elements(sender.coder.get()) == layout().elements());
  auto x = normal(layout().elements(), 1);
  std::uint64_t bytes = 0;
  const auto refused = [&](const char* spec, float* residual) {
    return flc_coder_encode(sender.coder.get(), spec, 1, 1, 1, x.data(), residual, nullptr, 1,
                            &bytes, nullptr) == nullptr;
  };
  CHECK(refused("ecuq:2+ef", nullptr));
  CHECK(says("flc_keeps"));
  CHECK(refused("topk:0.1+dgc:0.9", sender.residual.data()));
  CHECK(refused("delta+ecuq:2", nullptr));
  CHECK(refused("ecuq:nine", nullptr));
  x[4001] = std::nanf("");
  CHECK(refused("ecuq:2", nullptr));
  CHECK(says("w.bias[1]"));
  x[4001] = 0;

  auto payload = sender.encode("ecuq:2", 1, 1, x);
  std::vector<float> out(layout().elements());
  CHECK(flc_coder_decode(sender.coder.get(), data_of(payload), payload.size() - 1, out.data(), 1) ==
        -1);
  payload[8] ^= std::byte{1};
  CHECK(flc_coder_take_back(sender.coder.get(), data_of(payload), payload.size(), out.data(), 1) ==
        -1);
  CHECK(says("layout"));
}
