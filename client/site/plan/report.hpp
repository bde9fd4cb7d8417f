// SPDX-License-Identifier: Apache-2.0
// Shows plans as a text for people, or as JSON.
#pragma once

#include "client/site/plan/compression.hpp"
#include "client/site/plan/search.hpp"

#include <string>
#include <vector>

namespace fl::site {

struct PlanReport {
  ModelShape shape;
  SiteMachines machines;
  PlanTraining training;
  double code_bytes_s = 0;
  int rows_max = 8;         // Plans that the text shows.
  std::vector<Plan> plans;  // The result of search_plans().
};

/// Shows no hooks if no plan fits.
[[nodiscard]] std::string plan_text(const PlanReport& report);
/// One object: "model", "plans" (bytes and seconds as numbers), "for_ranks" (the plan of the flags,
/// if ranks of this release can train by one), "hooks" of the plan "hooks_plan", "advice".
[[nodiscard]] std::string plan_json(const PlanReport& report);

}  // namespace fl::site
