// SPDX-License-Identifier: Apache-2.0
#include "server/sums/rules/rule_table.hpp"

#include "shared/base/spec/spec_text.hpp"

namespace fl::server {

// The functions in the rows. Each is defined in its rule's file.
MakeCoordinateRule make_median, make_trimmed;
MakeWeighingRule make_krum, make_multikrum, make_geomedian, make_centered_clip;

namespace {

// The order of the rows is the order in help.
constexpr RuleRow table[] = {
    {.name = "mean", .usage = "mean", .example = "mean"},
    {.name = "median", .usage = "median", .example = "median", .make_by_coordinate = make_median},
    {.name = "trimmed",
     .usage = "trimmed:F",
     .example = "trimmed:1",
     .make_by_coordinate = make_trimmed},
    {.name = "krum", .usage = "krum[:F]", .example = "krum:1", .make_weighing = make_krum},
    {.name = "multikrum",
     .usage = "multikrum:F,M",
     .example = "multikrum:1,3",
     .make_weighing = make_multikrum},
    {.name = "geomedian",
     .usage = "geomedian",
     .example = "geomedian",
     .make_weighing = make_geomedian},
    {.name = "centered-clip",
     .usage = "centered-clip:TAU",
     .example = "centered-clip:40",
     .make_weighing = make_centered_clip},
};

}  // namespace

std::span<const RuleRow> rule_rows() { return table; }

std::string robust_rule_usages() {
  return alternatives(
      table, [](const RuleRow& row) { return row.is_mean() ? std::string_view() : row.usage; });
}

std::string weighing_rule_names() {
  return alternatives(table, [](const RuleRow& row) {
    return row.make_weighing == nullptr ? std::string_view() : row.name;
  });
}

}  // namespace fl::server
