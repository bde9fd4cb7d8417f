// bfloat16, the upper half of a float: 8 bits of precision, the range of fp32.
#include "shared/codec/blocks/half_block.hpp"
#include "shared/codec/spec/table.hpp"

namespace fl {

namespace {

constexpr SixteenBits bf16_format = {.name = "bf16",
                                     .id = BlockFormat::bf16,
                                     .coded_id = BlockFormat::bf16_coded,
                                     .append = &append_floats<bf16_words>,
                                     .read = &read_floats<bf16_words>,
                                     .max = 0x1.fep127f,
                                     .to = &Kernels::to_bf16,
                                     .from = &Kernels::from_bf16};

}  // namespace

CompressorResult parse_bf16(const SpecParts& parts) {
  FL_CHECK(check_plain(parts));
  return make_sixteen_bits(bf16_format);
}

Result<void> decode_bf16(Bytes body, bool is_coded, std::span<float> out, DecodeScratch& scratch) {
  return decode_sixteen_bits(bf16_format, body, is_coded, out, scratch);
}

}  // namespace fl
