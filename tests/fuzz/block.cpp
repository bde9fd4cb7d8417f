// One block of a payload: u16 its elements less one, then its bytes, of any method. Where these may
// be a large block's (shared/codec/blocks/large_block.hpp), it is decoded a second time with
// sixteen times as many.
#include "shared/codec/core/compressor.hpp"

#include "tests/fuzz/rows.hpp"

using namespace fl;

namespace {

/// What compressor.hpp allows; a sparse block holds one of any method.
bool may_be_infinite(BlockFormat id) {
  switch (id) {
    case BlockFormat::fp32:
    case BlockFormat::fp16:
    case BlockFormat::bf16:
    case BlockFormat::fp32_coded:
    case BlockFormat::fp16_coded:
    case BlockFormat::bf16_coded:
    case BlockFormat::kbit:
    case BlockFormat::kbit_rans:
    case BlockFormat::eden:
    case BlockFormat::eden_rans:
    case BlockFormat::eden_mixed:
    case BlockFormat::eden_mixed_rans:
    case BlockFormat::sparse:
    case BlockFormat::randk:
    case BlockFormat::parts: return true;
    default: return false;
  }
}

bool may_be_large(BlockFormat id) {
  switch (id) {
    case BlockFormat::parts:
    case BlockFormat::sparse:
    case BlockFormat::randk:
    case BlockFormat::ecuq_dither_runs:
    case BlockFormat::ecuq_centroid_runs: return true;
    default: return false;
  }
}

void decode(Bytes block, std::size_t elements) {
  DecodeScratch scratch;  // The second row finds in it what the first has left.
  const auto values = fuzz::decode_with_all_rows(elements, [&](std::span<float> out) {
    auto decoded = decode_block(block, out, scratch);
    FL_ASSERT(decoded || decoded.error().code() == Errc::corrupt);
    return decoded;
  });
  if (values && !may_be_infinite(static_cast<BlockFormat>(block[0]))) {
    FL_ASSERT(std::ranges::all_of(*values, [](float v) { return std::isfinite(v); }));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Bytes input = std::as_bytes(std::span(data, size));
  if (size < sizeof(std::uint16_t)) return 0;
  const std::size_t elements = load<std::uint16_t>(input) + std::size_t{1};
  const Bytes block = input.subspan(sizeof(std::uint16_t));
  decode(block, elements);
  if (!block.empty() && may_be_large(static_cast<BlockFormat>(block[0])))
    decode(block, 16 * elements);
  return 0;
}
