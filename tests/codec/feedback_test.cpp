// Error feedback loses nothing: what was sent and what is left sum to what was to be sent.
#include "shared/codec/feedback.hpp"

#include "codec_support.hpp"

using namespace fl;
using namespace fl::testing;

TEST_CASE("over 50 rounds, sent + residual = sum of updates, for every codec") {
  const Layout layout = layout_of({{"a", {700}}, {"b", {33}}});
  for (const std::string& spec : specs_to_test()) {
    CAPTURE(spec);
    const auto codec = codec_of(spec + "+ef");
    std::vector<float> residual(layout.elements());
    std::vector<double> wanted(layout.elements());
    std::vector<double> sent(layout.elements());
    for (std::uint64_t round = 0; round < 50; ++round) {
      std::vector<float> update = normal(layout.elements(), round);
      for (std::size_t i = 0; i < update.size(); ++i) wanted[i] += update[i];
      add_residual(update, residual);
      const auto payload = encode(*codec, layout, update, round, 256);
      SpanSource source(payload);
      auto reader = PayloadReader::open(source, payload.size(), layout).value();
      keep_residual(update, reader, residual).value();
      const auto decoded = decode(payload, layout);
      for (std::size_t i = 0; i < sent.size(); ++i) sent[i] += decoded[i];
    }
    for (std::size_t i = 0; i < sent.size(); ++i) {
      // Every round rounds two fp32 operations on values below 2^6 or so.
      CHECK(std::fabs(sent[i] + residual[i] - wanted[i]) < 50 * 2 * 0x1p-18);
    }
  }
}

TEST_CASE("the squared error is that of the decoded values, over all blocks") {
  const Layout layout = layout_of({{"a", {700}}, {"b", {33}}});
  const std::vector<float> update = normal(layout.elements(), 2);
  const auto payload = encode(*codec_of("qsgd:3"), layout, update, 5, 256);
  const auto decoded = decode(payload, layout);
  double wanted = 0;
  for (std::size_t i = 0; i < update.size(); ++i) {
    wanted += std::pow(static_cast<double>(update[i]) - decoded[i], 2);
  }
  SpanSource source(payload);
  auto reader = PayloadReader::open(source, payload.size(), layout).value();
  CHECK(wanted > 1);
  CHECK(squared_error(update, reader).value() == doctest::Approx(wanted));
}

TEST_CASE("put_back makes a refused payload unsent, also when x and residual share memory") {
  const Layout layout = flat_layout(1000);
  const std::vector<float> update = normal(1000, 1);
  const auto payload = encode(*codec_of("qsgd:1"), layout, update);
  SpanSource source(payload);
  auto reader = PayloadReader::open(source, payload.size(), layout).value();
  std::vector<float> residual = update;
  keep_residual(residual, reader, residual).value();
  CHECK(residual != update);
  put_back(residual, reader).value();
  for (std::size_t i = 0; i < residual.size(); ++i) {
    CHECK(std::fabs(residual[i] - update[i]) < 1e-5f);
  }
}
