#include "shared/codec/selector.hpp"

#include <algorithm>

namespace fl {

SelectionPlan Selector::plan(const Layout&, std::span<const float>,
                             std::span<const std::uint32_t>) const {
  return {};
}

void select_by(Cutoff& cutoff, std::span<const float> x, Selected& out) {
  out.key.reset();
  out.room.resize(std::max(out.room.size(), x.size()));
  out.indices = std::span(out.room).first(select_largest(x, cutoff, out.room.data()));
  out.values.resize(out.indices.size());
  for (std::size_t i = 0; i < out.values.size(); ++i) out.values[i] = x[out.indices[i]];
}

}  // namespace fl
