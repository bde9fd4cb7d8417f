// SPDX-License-Identifier: Apache-2.0
// What holds for every data set that a reader makes, whatever it read.
#pragma once

#include "client/learn/data/dataset.hpp"
#include "shared/base/error.hpp"

#include <algorithm>
#include <cmath>

namespace fl::fuzz {

inline void check_set(const DataSet& set) {
  FL_ASSERT(set.size() > 0);
  for (const std::int64_t side : set.shape) FL_ASSERT(side > 0);
  if (set.kind != DataSet::Kind::text)
    FL_ASSERT(set.inputs.bytes().size() == set.size() * set.row_bytes());
  if (set.kind == DataSet::Kind::values) {
    for (const float value : set.inputs.as<float>()) FL_ASSERT(!std::isinf(value));
  }
  FL_ASSERT(set.labels.empty() == (set.classes == 0));
  FL_ASSERT(set.labels.empty() || set.labels.size() == set.size());
  for (const std::uint32_t label : set.labels) FL_ASSERT(label < set.classes);
  FL_ASSERT(set.targets.size() == std::uint64_t{set.size()} * set.outputs);
  for (const float target : set.targets) FL_ASSERT(std::isfinite(target));
  FL_ASSERT(set.groups.empty() || set.groups.size() == set.size());
  for (const std::uint32_t group : set.groups) FL_ASSERT(group < set.group_names.size());
  FL_ASSERT(std::ranges::is_sorted(set.group_names));
}

/// The errors with which reading any bytes may end.
inline void check_error(const Error& error) {
  FL_ASSERT(error.code() == Errc::corrupt || error.code() == Errc::invalid_input ||
            error.code() == Errc::too_large);
  FL_ASSERT(!error.message().empty());
}

}  // namespace fl::fuzz
