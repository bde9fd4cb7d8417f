// SPDX-License-Identifier: Apache-2.0
#include "client/agent/parts_values.hpp"

#include <algorithm>

namespace fl::client {

namespace {

/// Cuts elements [first, first + count) of the whole model where they pass from one vector to the
/// other. Calls work(is_personal, element of that vector, place in the range, count) for each cut.
template <class Work>
Result<void> for_each_cut(const RunLayout& layout, std::uint64_t first, std::size_t count,
                          const Work& work) {
  const std::uint64_t end = first + count;
  std::uint64_t at = 0;         // Where a stretch begins in the whole model,
  std::uint64_t travelled = 0;  // and in its own vector.
  std::uint64_t stayed = 0;
  for (const auto& [is_personal, elements] : layout.stretches) {
    std::uint64_t& own = is_personal ? stayed : travelled;
    const std::uint64_t from = std::max(first, at);
    const std::uint64_t to = std::min(end, at + elements);
    if (from < to)
      FL_CHECK(work(is_personal, own + (from - at), static_cast<std::size_t>(from - first),
                    static_cast<std::size_t>(to - from)));
    own += elements;
    at += elements;
    if (at >= end) break;
  }
  return {};
}

}  // namespace

ReadValues read_from(std::span<const float> values) {
  return [values](std::uint64_t first, std::span<float> out) -> Result<void> {
    std::ranges::copy(values.subspan(first, out.size()), out.begin());
    return {};
  };
}

ReadValues read_zeros() {
  return [](std::uint64_t, std::span<float> out) -> Result<void> {
    std::ranges::fill(out, 0.0F);
    return {};
  };
}

WriteValues drop_values() {
  return [](std::uint64_t, std::span<const float>) { return success(); };
}

Result<void> PartsSource::read(std::uint64_t first, std::span<float> out) const {
  FL_ASSERT(first + out.size() <= elements());
  return for_each_cut(
      layout_, first, out.size(),
      [&](bool is_personal, std::uint64_t element, std::size_t place, std::size_t count) {
        return (is_personal ? stays_ : travels_)(element, out.subspan(place, count));
      });
}

Result<void> PartsSink::write(std::uint64_t first, std::span<const float> values) {
  FL_ASSERT(first + values.size() <= layout_.model_elements + layout_.personal_elements);
  return for_each_cut(
      layout_, first, values.size(),
      [&](bool is_personal, std::uint64_t element, std::size_t place, std::size_t count) {
        return (is_personal ? stays_ : travels_)(element, values.subspan(place, count));
      });
}

}  // namespace fl::client
