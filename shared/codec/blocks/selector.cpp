// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/blocks/selector.hpp"

#include "shared/base/error.hpp"
#include "shared/codec/device/device_coder.hpp"

#include <algorithm>
#include <cmath>

namespace fl::codec {

SelectionPlan Selector::plan(const VectorToPlan&) const { return {}; }

Cutoff* Selector::cutoff_of(std::uint32_t, SelectionPlan&) const { return nullptr; }

void Selector::select(std::span<const float> x, const Block& block, std::uint64_t,
                      SelectionPlan& plan, Selected& out) const {
  Cutoff* const cutoff = cutoff_of(block.tensor, plan);
  FL_ASSERT(cutoff != nullptr);
  select_by(*cutoff, x, out);
}

void select_by(Cutoff& cutoff, std::span<const float> x, Selected& out) {
  out.key.reset();
  out.room.resize(std::max(out.room.size(), x.size()));
  out.indices = std::span(out.room).first(select_largest(x, cutoff, out.room.data()));
  out.values.resize(out.indices.size());
  for (std::size_t i = 0; i < out.values.size(); ++i) out.values[i] = x[out.indices[i]];
}

// The factor 1 - 2^-50 undoes the rounding of the fraction to binary: 0.07 of 100 is 7, not 8.
std::uint64_t share_of(std::uint64_t elements, double fraction) {
  const double share = fraction * static_cast<double>(elements) * (1 - 0x1p-50);
  return static_cast<std::uint64_t>(std::ceil(share));
}

Cutoff largest_share(std::span<const std::span<const float>> runs, double fraction,
                     DeviceVector* device) {
  std::uint64_t elements = 0;
  for (const auto& run : runs) elements += run.size();
  if (elements == 0) return {.magnitude = 0, .ties = 0};
  const std::uint64_t k = share_of(elements, fraction);
  std::optional<Cutoff> found;
  if (device != nullptr) found = device->find_largest(runs, k);
  Cutoff cutoff = found ? *found : find_largest(runs, k);
  if (cutoff.magnitude == 0) cutoff.ties = 0;  // Zeros need not be sent: the rest decodes to 0.
  return cutoff;
}

}  // namespace fl::codec
