// SPDX-License-Identifier: Apache-2.0
// GroupNames: numbers the groups of a data set while a reader finds their names. One thread at a
// time.
#pragma once

#include "client/learn/data/dataset.hpp"
#include "shared/base/error.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace fl {

inline constexpr std::size_t groups_max = 1 << 20;
inline constexpr std::size_t group_name_bytes_max = 1 << 10;

class GroupNames {
 public:
  /// The next example belongs to the group `name`. Errors: too_large beyond the limits above.
  [[nodiscard]] Result<void> add(std::string_view name);
  /// Writes `groups` and `group_names`, in the order of the names' bytes.
  void finish(DataSet& set);

 private:
  std::map<std::string, std::uint32_t, std::less<>> numbers_;  // In the order of their coming.
  std::vector<std::uint32_t> groups_;
};

}  // namespace fl
