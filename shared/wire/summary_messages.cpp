// SPDX-License-Identifier: Apache-2.0
#include "shared/wire/summary_messages.hpp"

#include <fmt/format.h>

namespace fl {

void write_summaries(std::span<const ColumnSummary> summaries, wire::Ready& ready) {
  for (const ColumnSummary& one : summaries) {
    ready.add_value_counts(one.count);
    ready.add_value_means(one.mean);
    ready.add_value_squares(one.squares);
  }
}

Result<std::vector<ColumnSummary>> read_summaries(const wire::Ready& ready) {
  const int columns = ready.value_counts_size();
  if (ready.value_means_size() != columns || ready.value_squares_size() != columns) {
    return Error(Errc::invalid_input,
                 fmt::format("{} counts, {} means and {} squares of values are told", columns,
                             ready.value_means_size(), ready.value_squares_size()));
  }
  std::vector<ColumnSummary> summaries;
  summaries.reserve(static_cast<std::size_t>(columns));
  for (int i = 0; i < columns; ++i)
    summaries.push_back({ready.value_counts(i), ready.value_means(i), ready.value_squares(i)});
  return summaries;
}

}  // namespace fl
