// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/readers/group_names.hpp"

#include <fmt/format.h>

#include <utility>

namespace fl {

Result<void> GroupNames::add(std::string_view name) {
  auto found = numbers_.find(name);
  if (found == numbers_.end()) {
    if (numbers_.size() == groups_max)
      return Error(Errc::too_large, fmt::format("more than {} groups", groups_max));
    if (name.size() > group_name_bytes_max) {
      return Error(Errc::too_large, fmt::format("the name of a group has {} bytes; the limit is {}",
                                                name.size(), group_name_bytes_max));
    }
    const auto number = static_cast<std::uint32_t>(numbers_.size());
    found = numbers_.emplace(name, number).first;
  }
  groups_.push_back(found->second);
  return {};
}

void GroupNames::finish(DataSet& set) {
  std::vector<std::uint32_t> sorted(numbers_.size());
  for (const auto& [name, number] : numbers_) {
    sorted[number] = static_cast<std::uint32_t>(set.group_names.size());
    set.group_names.push_back(name);
  }
  for (std::uint32_t& group : groups_) group = sorted[group];
  set.groups = std::exchange(groups_, {});
}

}  // namespace fl
