// SPDX-License-Identifier: Apache-2.0
// How the ranks of a site are laid out in a grid (--parallel): one axis for each way of dividing a
// training. Pure; any thread.
#pragma once

#include "shared/base/error.hpp"

#include <string_view>

namespace fl::site {

struct Grid {
  int dp = 0;  // Ranks that take parts of each batch; 0: all ranks that there are.
};

/// Parses "dp=4". Errors: invalid_input for an unknown axis, for one that this release does not
/// divide along, and for a size below 1 or an axis that stands there twice.
[[nodiscard]] Result<Grid> parse_grid(std::string_view text);
/// The grid of so many ranks. Errors: invalid_input if they are not the product of the axes.
[[nodiscard]] Result<Grid> fill_grid(Grid grid, int ranks);

}  // namespace fl::site
