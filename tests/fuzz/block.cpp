// SPDX-License-Identifier: Apache-2.0
// Fuzzes one block of a payload. The input is a u16, the number of elements minus one, then the
// block's bytes in any block format. If the format allows large blocks
// (shared/codec/blocks/large_block.hpp), the bytes are decoded a second time, as sixteen times as
// many elements.
#include "shared/codec/blocks/decode.hpp"
#include "shared/codec/blocks/lane_block.hpp"
#include "shared/codec/blocks/sparse_block.hpp"

#include "tests/fuzz/rows.hpp"

using namespace fl;
using namespace fl::codec;

namespace {

/// The server adds a sparse block's values at these places, so they must ascend and be inside.
void check_indices(Bytes block, std::size_t elements) {
  DecodeScratch scratch;
  const auto selected = read_selected(block, elements, scratch).value();
  std::size_t least = 0;
  for (const std::uint32_t index : selected.indices) {
    FL_ASSERT(index >= least && index < elements);
    least = index + std::size_t{1};
  }
}

/// The server reads the tally of a block that it has decoded before.
void check_tally(Bytes block, std::size_t elements, bool is_decoded) {
  for (const LaneStep step : {LaneStep(), LaneStep::at_least(0.1)}) {
    LaneTally sum;
    const auto added = add_lane_tally(block, elements, step, sum);
    FL_ASSERT(added || (!is_decoded && added.error().code() == Errc::corrupt));
    FL_ASSERT(sum.values <= elements);
  }
}

void decode(Bytes block, std::size_t elements) {
  DecodeScratch scratch;  // Shared, so that each row finds what the row before left in it.
  const auto values = fuzz::decode_with_all_rows(elements, [&](std::span<float> out) {
    auto decoded = decode_block(block, out, scratch);
    FL_ASSERT(decoded || decoded.error().code() == Errc::corrupt);
    return decoded;
  });
  if (values && format_row(block).is_finite)
    FL_ASSERT(std::ranges::all_of(*values, [](float v) { return std::isfinite(v); }));
  if (values && format_row(block).read != nullptr) check_indices(block, elements);
  check_tally(block, elements, values.has_value());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Bytes input = std::as_bytes(std::span(data, size));
  if (size < sizeof(std::uint16_t)) return 0;
  const std::size_t elements = load<std::uint16_t>(input) + std::size_t{1};
  const Bytes block = input.subspan(sizeof(std::uint16_t));
  decode(block, elements);
  if (!block.empty() && format_row(block).may_be_large) decode(block, 16 * elements);
  return 0;
}
