// One block of a payload: u16 its elements less one, then its bytes, of any method.
#include "shared/codec/method.hpp"

#include "tests/fuzz/rows.hpp"

using namespace fl;

namespace {

/// What method.hpp allows; a sparse block holds one of any method.
bool may_be_infinite(MethodId id) {
  switch (id) {
    case MethodId::fp32:
    case MethodId::fp16:
    case MethodId::bf16:
    case MethodId::kbit:
    case MethodId::kbit_rans:
    case MethodId::eden:
    case MethodId::eden_rans:
    case MethodId::eden_mixed:
    case MethodId::eden_mixed_rans:
    case MethodId::sparse:
    case MethodId::randk: return true;
    default: return false;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Bytes input = std::as_bytes(std::span(data, size));
  if (size < sizeof(std::uint16_t)) return 0;
  const std::size_t elements = load<std::uint16_t>(input) + std::size_t{1};
  const Bytes block = input.subspan(sizeof(std::uint16_t));

  DecodeScratch scratch;  // The second row finds in it what the first has left.
  const auto values = fuzz::decode_with_all_rows(elements, [&](std::span<float> out) {
    auto decoded = decode_block(block, out, scratch);
    FL_ASSERT(decoded || decoded.error().code() == Errc::corrupt);
    return decoded;
  });
  if (values && !may_be_infinite(static_cast<MethodId>(block[0]))) {
    FL_ASSERT(std::ranges::all_of(*values, [](float v) { return std::isfinite(v); }));
  }
  return 0;
}
