#include "shared/codec/selector.hpp"

#include <algorithm>
#include <cmath>

namespace fl {

SelectionPlan Selector::plan(const Layout&, std::span<const float>, std::span<const std::uint32_t>,
                             CodecState*) const {
  return {};
}

// The factor takes back what the fraction was rounded up by: 0.07 of 100 is 7, not 8.
std::uint64_t share_of(std::uint64_t elements, double fraction) {
  const double share = fraction * static_cast<double>(elements) * (1 - 0x1p-50);
  return static_cast<std::uint64_t>(std::ceil(share));
}

Cutoff largest_share(std::span<const std::span<const float>> runs, double fraction) {
  std::uint64_t elements = 0;
  for (const auto& run : runs) elements += run.size();
  if (elements == 0) return {.magnitude = 0, .ties = 0};
  Cutoff cutoff = find_largest(runs, share_of(elements, fraction));
  if (cutoff.magnitude == 0) cutoff.ties = 0;  // What is not sent decodes to 0 too.
  return cutoff;
}

void select_by(Cutoff& cutoff, std::span<const float> x, Selected& out) {
  out.key.reset();
  out.room.resize(std::max(out.room.size(), x.size()));
  out.indices = std::span(out.room).first(select_largest(x, cutoff, out.room.data()));
  out.values.resize(out.indices.size());
  for (std::size_t i = 0; i < out.values.size(); ++i) out.values[i] = x[out.indices[i]];
}

}  // namespace fl
