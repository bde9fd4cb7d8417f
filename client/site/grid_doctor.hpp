// SPDX-License-Identifier: Apache-2.0
// The lines of `fl-client site doctor` about the grid of a site's ranks (--parallel): whether a
// model can be divided so, and on which machines the ranks are that take each pass together. Pure;
// any thread.
#pragma once

#include "client/learn/context_parts.hpp"
#include "client/learn/pipeline_parts.hpp"
#include "client/learn/tensor_parts.hpp"
#include "client/site/doctor.hpp"
#include "client/site/grid.hpp"

#include <string>
#include <vector>

namespace fl::site {

/// How ranks are to train.
struct GridPlan {
  Grid grid;  // Filled, for as many ranks as there are facts.
  bool divides_tokens = false;
  ContextWay way = ContextWay::ring;
  PipelineDivision stages = {};
  std::string model = {};  // "": not known.
};

/// The lines; none for a grid whose ranks take passes by themselves. `facts`: in the order of the
/// ranks. `bytes_per_s`: the links that were measured (SiteMeasurement); empty if none were.
[[nodiscard]] DoctorLines diagnose_grid(const GridPlan& plan, const std::vector<RankFacts>& facts,
                                        const std::vector<std::vector<double>>& bytes_per_s = {});

}  // namespace fl::site
