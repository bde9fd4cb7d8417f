// SPDX-License-Identifier: Apache-2.0
// An example of a new codec: this file, one row of the table (row.txt), and a line of CMake.
//
// "toy:S" rounds each value to the nearest of 2 S + 1 levels; the last level is the block's largest
// magnitude. The bytes of a block: the step as binary32, then the level of each element as a signed
// byte.
#include "shared/codec/spec/table.hpp"

#include <fmt/format.h>

#include <cmath>

namespace fl::codec {

namespace {

constexpr BlockFormat toy_steps{200};

class Toy final : public Compressor {
 public:
  explicit Toy(std::int32_t levels) : levels_(levels) {}

  std::string spec() const override { return fmt::format("toy:{}", levels_); }
  std::size_t block_bytes_max(std::size_t elements) const override {
    return 1 + sizeof(float) + elements;
  }
  Result<void> encode(std::span<const float> x, const Scan& scan, const Layout&, const Block&,
                      std::uint64_t, const CompressorPlan&, EncodeScratch&,
                      std::vector<std::byte>& out) const override {
    const float step = scan.max_abs / static_cast<float>(levels_);
    out.resize(block_bytes_max(x.size()));
    out[0] = static_cast<std::byte>(toy_steps);
    store(MutableBytes(out), 1, step);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const long steps = step > 0 ? std::lround(x[i] / step) : 0;
      out[1 + sizeof step + i] = static_cast<std::byte>(static_cast<std::int8_t>(steps));
    }
    return {};
  }

 private:
  std::int32_t levels_;
};

}  // namespace

CompressorResult parse_toy(const SpecParts& parts) {
  FL_CHECK(check_has_argument(parts, "toy needs its number of levels here, such as toy:100"));
  FL_TRY(const std::int32_t levels, parse_whole_argument(parts, "the levels of toy", 1, 127));
  FL_CHECK(check_no_settings(parts));
  return std::make_unique<Toy>(levels);
}

Result<void> decode_toy(BlockFormat, Bytes body, std::span<float> out, DecodeScratch&) {
  FL_CHECK(check_body_bytes(body, sizeof(float) + out.size()));
  const auto step = load<float>(body);
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = step * static_cast<float>(load<std::int8_t>(body, sizeof step + i));
  return {};
}

}  // namespace fl::codec
