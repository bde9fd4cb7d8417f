// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/entropy/zero_run_coder.hpp"

#include "kernels/generic/pack.hpp"
#include "kernels/generic/rans.hpp"
#include "shared/base/error.hpp"
#include "shared/codec/core/block_map.hpp"
#include "shared/codec/entropy/bits.hpp"
#include "shared/codec/entropy/index_coder.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>

namespace fl::codec {

namespace {

using Indices = std::vector<std::uint32_t>;

void append_list(const Indices& indices, std::size_t n, std::vector<std::byte>& out) {
  const std::size_t at = out.size();
  out.resize(at + sizeof(std::uint16_t));
  store(out, at, static_cast<std::uint16_t>(indices.size()));
  EncodeScratch scratch;  // The block's own scratch holds the levels.
  if (!indices.empty()) append_indices(indices, n, scratch, out);
}

/// Takes a list from the start of `bytes`. nullopt: it is damaged.
std::optional<Indices> take_list(Bytes& bytes, std::size_t n) {
  if (bytes.size() < sizeof(std::uint16_t)) return std::nullopt;
  Indices indices(load<std::uint16_t>(bytes));
  bytes = bytes.subspan(sizeof(std::uint16_t));
  if (indices.size() > n) return std::nullopt;
  if (indices.empty()) return indices;
  DecodeScratch scratch;
  const auto taken = read_indices(bytes, n, scratch, indices);
  if (!taken) return std::nullopt;
  bytes = bytes.subspan(*taken);
  return indices;
}

/// Each class's levels that are not 0, their indices within the class, and its number of elements.
struct Found {
  std::array<Indices, rans_classes_max> indices;
  std::array<std::vector<std::int16_t>, rans_classes_max> levels;
  std::array<std::uint32_t, rans_classes_max> elements{};
};

Found find_levels(std::span<const std::int16_t> x, const LevelClasses& classes) {
  Found found;
  if (classes.count == 1) {
    for_each_not_zero(x, [&](std::size_t i) {
      found.indices[0].push_back(static_cast<std::uint32_t>(i));
      found.levels[0].push_back(x[i]);
    });
    found.elements[0] = static_cast<std::uint32_t>(x.size());
    return found;
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t c = classes.of[i];
    if (x[i] != 0) {
      found.indices[c].push_back(found.elements[c]);
      found.levels[c].push_back(x[i]);
    }
    ++found.elements[c];
  }
  return found;
}

/// The indices of the levels in `from` for which is_meant(level).
template <class IsMeant>
Indices indices_where(const std::vector<std::int16_t>& from, const IsMeant& is_meant) {
  Indices indices;
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (is_meant(from[i])) indices.push_back(static_cast<std::uint32_t>(i));
  }
  return indices;
}

void append_sizes(std::vector<std::int16_t> left, std::int32_t levels,
                  std::vector<std::byte>& out) {
  for (std::int32_t size = 1; size < levels; ++size) {
    const auto is_larger = [size](std::int16_t level) { return std::abs(level) > size; };
    const Indices larger = indices_where(left, is_larger);
    append_list(larger, left.size(), out);
    if (larger.empty()) return;
    std::erase_if(left, [&](std::int16_t level) { return !is_larger(level); });
  }
}

bool read_sizes(Bytes& bytes, std::int32_t levels, std::vector<std::int16_t>& found) {
  Indices left(found.size());
  for (std::size_t i = 0; i < left.size(); ++i) left[i] = static_cast<std::uint32_t>(i);
  for (std::int32_t size = 1; size < levels; ++size) {
    const auto larger = take_list(bytes, left.size());
    if (!larger) return false;
    if (larger->empty()) return true;
    Indices next;
    for (const std::uint32_t index : *larger) next.push_back(left[index]);
    left = std::move(next);
    for (const std::uint32_t index : left) ++found[index];
  }
  return true;
}

void append_signs(const std::vector<std::int16_t>& found, bool has_classes,
                  std::vector<std::byte>& out) {
  const auto is_negative = [](std::int16_t level) { return level < 0; };
  if (has_classes) return append_list(indices_where(found, is_negative), found.size(), out);
  BitWriter writer(out);
  for (const std::int16_t level : found) writer.put(is_negative(level) ? 1 : 0, 1);
  writer.finish();
}

bool read_signs(Bytes& bytes, bool has_classes, std::vector<std::int16_t>& found) {
  const auto turn = [](std::int16_t& level) { level = static_cast<std::int16_t>(-level); };
  if (has_classes) {
    const auto negative = take_list(bytes, found.size());
    if (!negative) return false;
    for (const std::uint32_t index : *negative) turn(found[index]);
    return true;
  }
  BitReader reader(bytes);
  for (std::int16_t& level : found) {
    if (reader.take(1) == 1) turn(level);
  }
  reader.align();
  bytes = bytes.subspan(reader.bytes_taken());
  return reader.is_good();
}

}  // namespace

bool append_runs(std::span<const std::int16_t> x, std::int32_t levels, std::vector<std::byte>& out,
                 const LevelClasses& classes) {
  FL_ASSERT(levels >= 1 && levels <= rans_levels_max && x.size() <= block_elements_max);
  FL_ASSERT(classes.count == 1 || classes.of.size() == x.size());
  const auto zeros = static_cast<std::size_t>(std::ranges::count(x, 0));
  if (!is_for_runs(x.size(), zeros)) return false;
  const std::size_t before = out.size();
  const Found found = find_levels(x, classes);
  std::vector<std::int16_t> together;
  for (std::size_t c = classes.count; c-- > 0;) {
    append_list(found.indices[c], found.elements[c], out);
    together.insert(together.end(), found.levels[c].begin(), found.levels[c].end());
  }
  append_sizes(together, levels, out);
  append_signs(together, classes.count > 1, out);
  if (out.size() - before < packed_bytes(x.size(), levels)) return true;
  out.resize(before);
  return false;
}

std::optional<FewLevels> read_few(Bytes bytes, std::int32_t levels, std::size_t elements) {
  auto indices = take_list(bytes, elements);
  if (!indices || !is_for_runs(elements, elements - indices->size())) return std::nullopt;
  std::vector<std::int16_t> found(indices->size(), 1);
  if (!read_sizes(bytes, levels, found) || !read_signs(bytes, false, found) || !bytes.empty())
    return std::nullopt;
  return FewLevels{.indices = std::move(*indices), .levels = std::move(found)};
}

bool read_runs(Bytes bytes, std::int32_t levels, std::span<std::int16_t> out,
               const LevelClasses& classes) {
  FL_ASSERT(levels >= 1 && levels <= rans_levels_max && classes.count <= rans_classes_max);
  FL_ASSERT(classes.count == 1 || classes.of.size() == out.size());
  if (classes.count == 1) {
    const auto few = read_few(bytes, levels, out.size());
    if (!few) return false;
    std::ranges::fill(out, std::int16_t{0});
    for (std::size_t i = 0; i < few->indices.size(); ++i) out[few->indices[i]] = few->levels[i];
    return true;
  }
  std::array<std::size_t, rans_classes_max> elements{};
  for (const std::uint8_t c : classes.of) ++elements[c];
  std::array<Indices, rans_classes_max> indices;
  std::size_t count = 0;
  for (std::size_t c = classes.count; c-- > 0;) {
    auto list = take_list(bytes, elements[c]);
    if (!list) return false;
    indices[c] = std::move(*list);
    count += indices[c].size();
  }
  // No encoder sends so many levels. Decoding could take long: a list of all elements for each
  // size.
  if (!is_for_runs(out.size(), out.size() - count)) return false;
  std::vector<std::int16_t> found(count, 1);
  if (!read_sizes(bytes, levels, found) || !read_signs(bytes, true, found) || !bytes.empty())
    return false;

  std::ranges::fill(out, std::int16_t{0});
  std::array<std::size_t, rans_classes_max> level{};  // Each class's next level in `found`.
  for (std::size_t c = classes.count; c-- > 1;) level[c - 1] = level[c] + indices[c].size();
  // An index that no element has ends each list.
  std::array<const std::uint32_t*, rans_classes_max> next{};
  for (std::size_t c = 0; c < classes.count; ++c) {
    indices[c].push_back(block_elements_max);
    next[c] = indices[c].data();
  }
  std::array<std::uint32_t, rans_classes_max> place{};
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t c = classes.of[i];
    if (place[c]++ != *next[c]) continue;
    out[i] = found[level[c]++];
    ++next[c];
  }
  return true;
}

}  // namespace fl::codec
