// SPDX-License-Identifier: Apache-2.0
// The table of the rules of --aggregate, one row each. To add a robust rule, write its file in this
// folder, add a row in rule_table.cpp, and add the file to CMakeLists.txt. Help, errors and tests
// follow from the rows. Constants; any thread.
#pragma once

#include "server/sums/rules/robust_rule.hpp"
#include "server/sums/rules/rule_arguments.hpp"

#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace fl::server {

/// Make a rule from its numbers. Errors: those of the arguments.
using MakeCoordinateRule =
    Result<std::shared_ptr<const CoordinateRule>>(const RuleArguments& arguments);
using MakeWeighingRule =
    Result<std::shared_ptr<const WeighingRule>>(const RuleArguments& arguments);

struct RuleRow {
  std::string_view name;
  std::string_view usage;    // The grammar, for help and errors.
  std::string_view example;  // A spec that parses.
  /// Exactly one of the two makers is set, but for the mean, which is no robust rule: the sums make
  /// it.
  MakeCoordinateRule* make_by_coordinate = nullptr;
  MakeWeighingRule* make_weighing = nullptr;

  [[nodiscard]] bool is_mean() const {
    return make_by_coordinate == nullptr && make_weighing == nullptr;
  }
};

/// All rows, in the order in which help shows them; the mean is the first.
[[nodiscard]] std::span<const RuleRow> rule_rows();

/// The usages of the robust rules: "median, trimmed:F, … or centered-clip:TAU".
[[nodiscard]] std::string robust_rule_usages();
/// The names of the rules that take updates of which most values are zeros: "krum, … or
/// centered-clip".
[[nodiscard]] std::string weighing_rule_names();

}  // namespace fl::server
