// IEEE binary16: 11 bits of precision, up to 65504.
#include "shared/codec/blocks/half_block.hpp"
#include "shared/codec/spec/table.hpp"

namespace fl {

namespace {

constexpr SixteenBits fp16_format = {.name = "fp16",
                                     .id = BlockFormat::fp16,
                                     .coded_id = BlockFormat::fp16_coded,
                                     .append = &append_floats<fp16_words>,
                                     .read = &read_floats<fp16_words>,
                                     .max = 65504.0f,
                                     .to = &Kernels::to_half,
                                     .from = &Kernels::from_half};

}  // namespace

CompressorResult parse_fp16(const SpecParts& parts) {
  FL_CHECK(check_plain(parts));
  return make_sixteen_bits(fp16_format);
}

Result<void> decode_fp16(Bytes body, bool is_coded, std::span<float> out, DecodeScratch& scratch) {
  return decode_sixteen_bits(fp16_format, body, is_coded, out, scratch);
}

}  // namespace fl
