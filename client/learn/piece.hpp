// SPDX-License-Identifier: Apache-2.0
// Piece: where a stretch of a model's vector lies in the part of it that a process has. Pure
// arithmetic; any thread.
#pragma once

#include <cstdint>
#include <vector>

namespace fl {

/// A stretch of a model's vector of parameters, and where it begins in a part that a process has.
struct Piece {
  std::int64_t begin = 0;  // The first element, in the model's vector.
  std::int64_t count = 0;
  std::int64_t at = 0;  // Where it begins in the part.
  friend bool operator==(const Piece&, const Piece&) = default;
};

/// A part of a part: `outer` says what of a model lies in a part, in the order of their places
/// there, and `inner` what of that part lies in another one. Returns what of the model does.
[[nodiscard]] std::vector<Piece> within(const std::vector<Piece>& outer,
                                        const std::vector<Piece>& inner);

/// The pieces of a part that lie in its elements [begin, begin + count), by their places there.
[[nodiscard]] std::vector<Piece> narrowed(const std::vector<Piece>& pieces, std::int64_t begin,
                                          std::int64_t count);

}  // namespace fl
