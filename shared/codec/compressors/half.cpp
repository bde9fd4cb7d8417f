// SPDX-License-Identifier: Apache-2.0
// "fp16" (IEEE binary16: 11 bits of precision, up to 65504) and "bf16" (the upper half of a
// binary32: 8 bits of precision, the range of fp32). Each value is rounded to a 16-bit number.
//
// The bytes: the numbers in order (formats 1 fp16, 4 bf16); or entropy-coded (37 fp16, 38 bf16;
// float_coder.hpp) if that is shorter.
#include "shared/codec/entropy/float_coder.hpp"
#include "shared/codec/spec/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fl::codec {

namespace {

struct HalfFormat {
  std::string_view name;
  BlockFormat plain;
  BlockFormat coded;
  bool (*append)(std::span<const std::uint16_t>, EncodeScratch&, std::vector<std::byte>&);
  Result<void> (*read)(Bytes, std::span<std::uint16_t>, DecodeScratch&);
  float max;  // The largest finite number. Larger values are an error instead of infinity.
  void (*Kernels::*to)(const float* x, std::size_t n, std::uint16_t* out);
  void (*Kernels::*from)(const std::uint16_t* x, std::size_t n, float* out);
};

constexpr HalfFormat fp16_format = {.name = "fp16",
                                    .plain = BlockFormat{1},
                                    .coded = BlockFormat{37},
                                    .append = &append_floats<fp16_words>,
                                    .read = &read_floats<fp16_words>,
                                    .max = 65504.0f,
                                    .to = &Kernels::to_half,
                                    .from = &Kernels::from_half};

constexpr HalfFormat bf16_format = {.name = "bf16",
                                    .plain = BlockFormat{4},
                                    .coded = BlockFormat{38},
                                    .append = &append_floats<bf16_words>,
                                    .read = &read_floats<bf16_words>,
                                    .max = 0x1.fep127f,
                                    .to = &Kernels::to_bf16,
                                    .from = &Kernels::from_bf16};

class Half final : public Compressor {
 public:
  explicit Half(const HalfFormat& format) : format_(format) {}

  std::string spec() const override { return std::string(format_.name); }
  bool leaves_out_zeros() const override { return true; }
  std::size_t block_bytes_max(std::size_t elements) const override {
    return 1 + elements * sizeof(std::uint16_t);
  }
  Result<void> encode(std::span<const float> x, const Scan& scan, const Layout& layout,
                      const Block& block, std::uint64_t, const CompressorPlan&,
                      EncodeScratch& scratch, std::vector<std::byte>& out) const override {
    if (scan.max_abs > format_.max) {
      const auto big = std::ranges::find_if(x, [&](float v) { return std::fabs(v) > format_.max; });
      const auto index = static_cast<std::uint64_t>(big - x.begin());
      return Error(
          Errc::invalid_input,
          fmt::format("{} is {}, but the largest magnitude of {} is {}: use another codec",
                      layout.describe(block.flat + index), *big, format_.name, format_.max));
    }
    // A separate buffer, because the bytes after the block's id are not aligned.
    std::vector<std::uint16_t> halves(x.size());
    (kernels().*format_.to)(x.data(), x.size(), halves.data());
    out.assign({static_cast<std::byte>(format_.coded)});
    if (format_.append(halves, scratch, out)) return {};
    out.resize(block_bytes_max(x.size()));
    out[0] = static_cast<std::byte>(format_.plain);
    copy_bytes(out.data() + 1, std::as_bytes(std::span(halves)).data(), out.size() - 1);
    return {};
  }

 private:
  const HalfFormat& format_;
};

CompressorResult parse_half(const HalfFormat& format, const SpecParts& parts) {
  FL_CHECK(check_plain(parts));
  return std::make_unique<Half>(format);
}

Result<void> decode_half(const HalfFormat& format, BlockFormat id, Bytes body, std::span<float> out,
                         DecodeScratch& scratch) {
  scratch.halves.resize(std::max(scratch.halves.size(), out.size()));
  if (id == format.coded) {
    FL_CHECK(format.read(body, std::span(scratch.halves).first(out.size()), scratch));
  } else {
    FL_CHECK(check_body_bytes(body, out.size() * sizeof(std::uint16_t)));
    copy_bytes(std::as_writable_bytes(std::span(scratch.halves)).data(), body.data(), body.size());
  }
  (kernels().*format.from)(scratch.halves.data(), out.size(), out.data());
  return {};
}

}  // namespace

CompressorResult parse_fp16(const SpecParts& parts) { return parse_half(fp16_format, parts); }
CompressorResult parse_bf16(const SpecParts& parts) { return parse_half(bf16_format, parts); }

Result<void> decode_fp16(BlockFormat id, Bytes body, std::span<float> out, DecodeScratch& scratch) {
  return decode_half(fp16_format, id, body, out, scratch);
}
Result<void> decode_bf16(BlockFormat id, Bytes body, std::span<float> out, DecodeScratch& scratch) {
  return decode_half(bf16_format, id, body, out, scratch);
}

}  // namespace fl::codec
