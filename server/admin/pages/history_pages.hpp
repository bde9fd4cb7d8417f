// SPDX-License-Identifier: Apache-2.0
// The JSON of the pages about the history. Pure functions of the store, on the thread that reads
// it. Names of fields are the database's columns; bytes, seconds and Unix seconds; what is unknown
// is null. A page that ends before its list does has the key of the next one under "next".
//
// What belongs to one client and says something of its data (the loss of its training, the norm of
// its update, how many examples it has) is there only with `show_clients`. The spread is not:
// its figures are means of limits::admin_group_min clients or more.
#pragma once

#include "server/admin/pages/query.hpp"
#include "server/history/store.hpp"

#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace fl::server {

struct HistoryPage {
  std::string_view path;                    // "/api/runs".
  std::span<const std::string_view> names;  // The names that may follow "?".
  Result<std::string> (*text)(Store& store, const AddressQuery& query, bool show_clients);
};

/// All pages of the history.
[[nodiscard]] std::span<const HistoryPage> history_pages();

/// Means of neighbours: the values, in order, cut into at most five groups of `group_min` or more.
/// None if there are fewer values than that.
[[nodiscard]] std::vector<double> group_means(std::vector<double> values, std::size_t group_min);

}  // namespace fl::server
