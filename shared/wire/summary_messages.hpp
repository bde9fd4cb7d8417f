// SPDX-License-Identifier: Apache-2.0
// Summaries of columns (shared/params/column_summary.hpp) as fields of Ready, both ways. They check
// no values: check_summaries() does. Pure functions; any thread.
#pragma once

#include "proto/wire.pb.h"
#include "shared/base/error.hpp"
#include "shared/params/column_summary.hpp"

#include <span>
#include <vector>

namespace fl {

void write_summaries(std::span<const ColumnSummary> summaries, wire::Ready& ready);
/// Reads the summaries. Errors: invalid_input, if the three fields have different lengths.
[[nodiscard]] Result<std::vector<ColumnSummary>> read_summaries(const wire::Ready& ready);

}  // namespace fl
