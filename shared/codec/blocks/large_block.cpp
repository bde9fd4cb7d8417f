// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/blocks/large_block.hpp"

#include "kernels/kernels.hpp"
#include "shared/codec/blocks/decode.hpp"
#include "shared/codec/blocks/sparse_block.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace fl::codec {

namespace {

/// Calls use(number of the part, index of its first element in the block, its elements) for each
/// part.
template <class Use>
Result<void> for_each_part(std::size_t elements, const Use& use) {
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < elements; begin += part_elements_max) {
    FL_CHECK(use(number++, begin, std::min<std::size_t>(part_elements_max, elements - begin)));
  }
  return {};
}

Block part_of(const Block& block, std::size_t begin, std::size_t elements) {
  return {.tensor = block.tensor,
          .elements = static_cast<std::uint32_t>(elements),
          .first = block.first + begin,
          .flat = block.flat + begin};
}

/// Writes a block in parts. encode_part(index of the part's first element, its elements, bytes)
/// replaces `bytes` by the part's bytes.
template <class Encode>
Result<void> encode_parts(std::size_t elements, std::vector<std::byte>& out,
                          const Encode& encode_part) {
  out.assign(1 + part_count(elements) * sizeof(std::uint32_t),
             static_cast<std::byte>(BlockFormat::parts));
  std::vector<std::byte> bytes;
  return for_each_part(
      elements, [&](std::size_t number, std::size_t begin, std::size_t count) -> Result<void> {
        FL_CHECK(encode_part(begin, count, bytes));
        store(MutableBytes(out), 1 + number * sizeof(std::uint32_t),
              static_cast<std::uint32_t>(bytes.size()));
        out.insert(out.end(), bytes.begin(), bytes.end());
        return {};
      });
}

Error bad_parts(std::string_view what) { return {Errc::corrupt, std::string(what)}; }

}  // namespace

Result<void> for_each_coded_part(Bytes body, std::size_t elements, const UsePart& use) {
  const std::size_t table_bytes = part_count(elements) * sizeof(std::uint32_t);
  if (body.size() < table_bytes) return bad_parts("the sizes of the parts are cut off");
  Bytes rest = body.subspan(table_bytes);
  FL_CHECK(for_each_part(
      elements, [&](std::size_t number, std::size_t begin, std::size_t count) -> Result<void> {
        const auto size = load<std::uint32_t>(body, number * sizeof(std::uint32_t));
        if (size > rest.size())
          return bad_parts(
              fmt::format("part {} has {} bytes, but only {} are left", number, size, rest.size()));
        const auto used = use(rest.first(size), begin, count);
        if (!used) return used.error().at(fmt::format("part {}", number));
        rest = rest.subspan(size);
        return {};
      }));
  return rest.empty() ? success() : bad_parts("there are bytes after the last part");
}

Result<void> decode_parts(Bytes body, std::span<float> out, DecodeScratch& scratch) {
  return for_each_coded_part(body, out.size(),
                             [&](Bytes part, std::size_t begin, std::size_t count) {
                               return decode_block(part, out.subspan(begin, count), scratch);
                             });
}

namespace {

/// Encodes at most part_elements_max values. If `leaves_out_zeros` and many values are zeros, it
/// writes a sparse block of the others.
Result<void> encode_part(const Compressor& compressor, bool leaves_out_zeros,
                         std::span<const float> x, const Scan& scan, const Layout& layout,
                         const Block& block, std::uint64_t seed, const CompressorPlan& plan,
                         EncodeScratch& scratch, std::vector<std::byte>& out) {
  const auto is_zero = [](float v) { return std::bit_cast<std::uint32_t>(v) == 0; };
  const auto zeros = leaves_out_zeros ? std::ranges::count_if(x, is_zero) : 0;
  if (zeros > 0 && zeros * 16 >= std::ssize(x)) {
    Selected others;
    for (std::uint32_t i = 0; i < x.size(); ++i) {
      if (is_zero(x[i])) continue;
      others.room.push_back(i);
      others.values.push_back(x[i]);
    }
    others.indices = others.room;
    FL_CHECK(encode_selected(others, compressor, layout, block, seed, {}, scratch, out));
    if (out.size() <= compressor.block_bytes_max(x.size())) return {};
  }
  return compressor.encode(x, scan, layout, block, seed, plan, scratch, out);
}

Result<void> encode_any(const Compressor& compressor, bool leaves_out_zeros,
                        std::span<const float> x, const Scan& scan, const Layout& layout,
                        const Block& block, std::uint64_t seed, const CompressorPlan& plan,
                        EncodeScratch& scratch, std::vector<std::byte>& out) {
  if (x.size() <= part_elements_max)
    return encode_part(compressor, leaves_out_zeros, x, scan, layout, block, seed, plan, scratch,
                       out);
  FL_TRY(const bool is_whole,
         compressor.encode_large(x, scan, layout, block, seed, plan, scratch, out));
  if (is_whole) return {};
  return encode_parts(
      x.size(), out, [&](std::size_t begin, std::size_t count, std::vector<std::byte>& bytes) {
        const auto part = x.subspan(begin, count);
        return encode_part(compressor, leaves_out_zeros, part, kernels().scan(part.data(), count),
                           layout, part_of(block, begin, count), seed, plan, scratch, bytes);
      });
}

}  // namespace

Result<void> encode_all_values(const Compressor& compressor, std::span<const float> x,
                               const Scan& scan, const Layout& layout, const Block& block,
                               std::uint64_t seed, const CompressorPlan& plan,
                               EncodeScratch& scratch, std::vector<std::byte>& out) {
  return encode_any(compressor, false, x, scan, layout, block, seed, plan, scratch, out);
}

Result<void> encode_block(const Compressor& compressor, std::span<const float> x, const Scan& scan,
                          const Layout& layout, const Block& block, std::uint64_t seed,
                          const CompressorPlan& plan, EncodeScratch& scratch,
                          std::vector<std::byte>& out) {
  return encode_any(compressor, compressor.leaves_out_zeros(), x, scan, layout, block, seed, plan,
                    scratch, out);
}

Result<void> encode_selected_block(const Selected& selected, const Compressor& quantizer,
                                   const Layout& layout, const Block& block, std::uint64_t seed,
                                   const CompressorPlan& plan, EncodeScratch& scratch,
                                   std::vector<std::byte>& out) {
  if (selected.values.size() <= sparse_values_max(block.elements))
    return encode_selected(selected, quantizer, layout, block, seed, plan, scratch, out);
  // The key of random indices is for a whole block. randk selects so many only in smaller blocks:
  // see Selector::sends_few().
  FL_ASSERT(!selected.key);
  std::size_t done = 0;
  Selected here;
  return encode_parts(
      block.elements, out,
      [&](std::size_t begin, std::size_t count, std::vector<std::byte>& bytes) -> Result<void> {
        const auto rest = selected.indices.subspan(done);
        const auto end = std::ranges::lower_bound(rest, begin + count);
        const auto these = rest.first(static_cast<std::size_t>(end - rest.begin()));
        here.room.clear();
        for (const std::uint32_t index : these)
          here.room.push_back(index - static_cast<std::uint32_t>(begin));
        here.indices = here.room;
        const auto values = std::span(selected.values).subspan(done, these.size());
        here.values.assign(values.begin(), values.end());
        done += these.size();
        return encode_selected(here, quantizer, layout, part_of(block, begin, count), seed, plan,
                               scratch, bytes);
      });
}

}  // namespace fl::codec
