// SPDX-License-Identifier: Apache-2.0
// How the ranks of a site are laid out in a grid (--parallel): one axis for each way of dividing a
// training. Pure; any thread.
#pragma once

#include "client/site/mesh.hpp"
#include "client/site/site_options.hpp"
#include "shared/base/error.hpp"

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fl::site {

struct Grid {
  int dp = 0;  // Parts of each batch; 0: as many as there are ranks for.
  int tp = 1;  // Ranks that have each part together, with parts of the layers (tensor parallelism).
               // They follow each other, so they are on one machine where the launcher fills one
               // after the other.
  int cp = 1;  // Such groups of ranks that have each part's texts together, with parts of the
               // tokens (context parallelism). They follow each other, too.
  int ep = 1;  // The ranks of dp and cp, in their order, form groups of so many, of which each has
               // some of the experts (expert parallelism).
  int pp = 1;  // The ranks of a pipeline, through which each part goes. All that have the first
               // layers come first, so that pipelines may go from machine to machine.

  /// The ranks of one part of a batch.
  [[nodiscard]] std::int64_t for_part() const { return std::int64_t{tp} * cp * pp; }
  /// The ranks that need each other for a pass: fewer can't take one.
  [[nodiscard]] std::int64_t together() const;
};

/// Parses "dp=4,tp=2,cp=2,ep=2,pp=2". Errors: invalid_input for an unknown axis, for a size below
/// 1, and for an axis that stands there twice.
[[nodiscard]] Result<Grid> parse_grid(std::string_view text);
/// The grid of --parallel; without that flag all ranks share batches. Errors: those of
/// parse_grid().
[[nodiscard]] inline Result<Grid> grid_of(const SiteOptions& options) {
  return options.parallel.empty() ? Grid() : parse_grid(options.parallel);
}
/// The grid of so many ranks. Errors: invalid_input if they are not the product of the axes, or ep
/// does not divide that of dp and cp.
[[nodiscard]] Result<Grid> fill_grid(Grid grid, int ranks);
/// Where the ranks of a filled grid lie: those of tp follow each other, groups of them those of cp,
/// of these those of dp, and so on to pp.
[[nodiscard]] Mesh mesh_of(const Grid& grid);
/// As mesh_of(), with the ranks of dp and cp in two other dimensions: "ep", along which experts
/// differ, and "replicas", along which they are the same.
[[nodiscard]] Mesh experts_mesh_of(const Grid& grid);
/// How many of `ranks` ranks a group takes, when others are lost: those that have all layers and
/// all parts of these and of texts.
[[nodiscard]] std::size_t usable_ranks(const Grid& grid, std::size_t ranks);

}  // namespace fl::site
