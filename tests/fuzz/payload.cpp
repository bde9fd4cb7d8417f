// SPDX-License-Identifier: Apache-2.0
// Fuzzes a whole payload, with the layout of the golden payloads (tests/codec/golden_test.cpp).
#include "server/sums/accumulator.hpp"
#include "shared/codec/payload/reader.hpp"
#include "shared/codec/spec/parser.hpp"

#include "tests/fuzz/golden_layout.hpp"
#include "tests/fuzz/rows.hpp"

using namespace fl;
using namespace fl::codec;
using namespace fl::server;
using fl::fuzz::golden_layout;

namespace {

constexpr std::uint64_t golden_seed = 0x1234567890abcdef;

Result<void> decode(Bytes payload, std::span<float> out) {
  SpanSource source(payload);
  FL_TRY(PayloadReader reader, PayloadReader::open(source, payload.size(), golden_layout()));
  return reader.decode_all(out);
}

/// The sketches of the golden payload, which has small blocks.
SummedSketches sketches() {
  static const auto codec = parse_codec("countsketch:5x4000").value();
  SummedSketches out = codec->summed_sketches(golden_layout());
  out.block_elements = block_elements_min;
  return out;
}

/// Adds the payload, and again in its final units. If that fails, at whatever block, the sums must
/// be 0 again.
void add(Bytes payload) {
  static Accumulator sums(golden_layout(), 1 << 20, golden_seed, sketches());
  SpanSource source(payload);
  auto reader = PayloadReader::open(source, payload.size(), golden_layout());
  if (!reader) return;
  const auto added = sums.add(*reader, 3);
  const bool is_added = added.has_value();
  if (is_added) sums.count(*added);
  FL_ASSERT(!sums.broken());
  const auto settled = sums.settle([&](const Accumulator::AddUpdate& again) {
    return is_added ? again(*reader, 3, nullptr) : success();
  });
  FL_ASSERT(settled);
  std::vector<float> mean(golden_layout().elements());
  sums.mean(0, 1, mean);
  if (is_added) {
    sums.reset(1, golden_seed, sketches());
    return;
  }
  FL_ASSERT(std::ranges::all_of(mean, [](float v) { return v == 0; }));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Bytes payload = std::as_bytes(std::span(data, size));
  const auto values =
      fuzz::decode_with_all_rows(golden_layout().elements(), [&](std::span<float> out) {
        auto decoded = decode(payload, out);
        FL_ASSERT(decoded || decoded.error().code() == Errc::corrupt ||
                  decoded.error().code() == Errc::conflict);
        return decoded;
      });
  add(payload);
  if (values) FL_ASSERT(std::ranges::all_of(*values, [](float v) { return std::isfinite(v); }));
  return 0;
}
