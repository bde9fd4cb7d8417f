// SPDX-License-Identifier: Apache-2.0
#include "client/site/topologies/network.hpp"

#include <algorithm>
#include <cstddef>

namespace fl::site {

int Nodes::count() const { return node.empty() ? 0 : std::ranges::max(node) + 1; }

std::vector<int> Nodes::ranks_of(int number) const {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < node.size(); ++rank)
    if (node[rank] == number) ranks.push_back(static_cast<int>(rank));
  return ranks;
}

bool Nodes::is_even() const {
  const std::size_t each = ranks_of(0).size();
  for (int number = 0; number < count(); ++number)
    if (ranks_of(number).size() != each) return false;
  return count() > 1 && each > 1;
}

std::vector<int> leaders_of(const Nodes& nodes) {
  std::vector<int> leaders;
  for (int number = 0; number < nodes.count(); ++number)
    leaders.push_back(nodes.ranks_of(number).front());
  return leaders;
}

}  // namespace fl::site
