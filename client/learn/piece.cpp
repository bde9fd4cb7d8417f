// SPDX-License-Identifier: Apache-2.0
#include "client/learn/piece.hpp"

#include <algorithm>

namespace fl {

std::vector<Piece> within(const std::vector<Piece>& outer, const std::vector<Piece>& inner) {
  std::vector<Piece> found;
  for (const Piece& wanted : inner) {
    const std::int64_t end = wanted.begin + wanted.count;
    auto piece = std::ranges::partition_point(
        outer, [&](const Piece& one) { return one.at + one.count <= wanted.begin; });
    for (; piece != outer.end() && piece->at < end; ++piece) {
      const std::int64_t from = std::max(piece->at, wanted.begin);
      const std::int64_t to = std::min(piece->at + piece->count, end);
      found.push_back(
          {piece->begin + from - piece->at, to - from, wanted.at + from - wanted.begin});
    }
  }
  return found;
}

std::vector<Piece> narrowed(const std::vector<Piece>& pieces, std::int64_t begin,
                            std::int64_t count) {
  return within(pieces, {{begin, count, 0}});
}

}  // namespace fl
