// One block of a payload: u16 its elements less one, then its bytes, of any method. Where these may
// be a large block's (shared/codec/blocks/large_block.hpp), it is decoded a second time with
// sixteen times as many.
#include "shared/codec/core/compressor.hpp"

#include "tests/fuzz/rows.hpp"

using namespace fl;

namespace {

/// What method.hpp allows; a sparse block holds one of any method.
bool may_be_infinite(MethodId id) {
  switch (id) {
    case MethodId::fp32:
    case MethodId::fp16:
    case MethodId::bf16:
    case MethodId::fp32_coded:
    case MethodId::fp16_coded:
    case MethodId::bf16_coded:
    case MethodId::kbit:
    case MethodId::kbit_rans:
    case MethodId::eden:
    case MethodId::eden_rans:
    case MethodId::eden_mixed:
    case MethodId::eden_mixed_rans:
    case MethodId::sparse:
    case MethodId::randk:
    case MethodId::parts: return true;
    default: return false;
  }
}

bool may_be_large(MethodId id) {
  switch (id) {
    case MethodId::parts:
    case MethodId::sparse:
    case MethodId::randk:
    case MethodId::ecuq_dither_runs:
    case MethodId::ecuq_centroid_runs: return true;
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
  if (values && !may_be_infinite(static_cast<MethodId>(block[0]))) {
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
  if (!block.empty() && may_be_large(static_cast<MethodId>(block[0]))) decode(block, 16 * elements);
  return 0;
}
