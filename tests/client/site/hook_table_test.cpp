// SPDX-License-Identifier: Apache-2.0
// The table of hooks against itself and against the table of docs/guide/choose-a-hook.md.
#include "client/site/hooks/hook_table.hpp"
#include "tests/support/guide_table.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <map>
#include <set>
#include <string>

namespace fl::test {

using namespace fl::site;
namespace {

std::string name_in(const std::string& spec) { return spec.substr(0, spec.find_first_of(": ")); }

struct GuideRow {
  std::string bits;
  std::string exchange;
};

/// The rows of the guide's table of hooks, by the names of the hooks.
std::map<std::string, GuideRow> guide_rows() {
  std::map<std::string, GuideRow> rows;
  for (const Cells& cells : guide_table("guide/choose-a-hook.md", "| hook | bits a value |")) {
    REQUIRE(cells.size() >= 5);
    const std::string python = "hooks.codec";
    for (const std::string& spec : quoted_in(cells[0])) {
      if (spec == "tributary_fl") continue;
      const std::string name = spec == python ? python : name_in(spec);
      CHECK(rows.emplace(name, GuideRow{cells[1], cells[2]}).second);
    }
  }
  return rows;
}

std::string word_of(HookExchange exchange) {
  switch (exchange) {
    case HookExchange::gather: return "gather";
    case HookExchange::parts: return "parts";
    default: return "all-reduce";
  }
}

TEST_CASE("each hook has a name and a grammar of its own, and costs of its own settings") {
  std::set<std::string_view> names;
  for (const HookRow& row : hook_rows()) {
    CAPTURE(row.name);
    CHECK(names.insert(row.name).second);
    CHECK(find_hook(row.name) == &row);
    CHECK(row.usage.starts_with(row.name));
    CHECK_FALSE(row.costs.empty());
    for (const HookCost& cost : row.costs) {
      const std::string name = name_in(std::string(cost.spec));
      CHECK((name == row.name || name == fmt::format("hooks.{}", row.name)));
      CHECK((cost.bits > 0) != (cost.bits_by_size != nullptr));
      CHECK(cost.bits_of({.gradient_bits = 32, .hidden = 64, .values = 1e6}) > 0);
    }
  }
  CHECK(find_hook("nosuch") == nullptr);
}

TEST_CASE("the guide has the hooks of the table, with what each sends") {
  auto rows = guide_rows();
  const HookSizes sizes{.gradient_bits = 32, .hidden = 1000, .values = 1e6};
  for (const HookRow& hook : hook_rows()) {
    for (const HookCost& cost : hook.costs) {
      const std::string name = name_in(std::string(cost.spec));
      CAPTURE(name);
      REQUIRE(rows.contains(name));
      const GuideRow& row = rows[name];
      CHECK(row.exchange.find(word_of(cost.exchange)) != std::string::npos);
      if (name == "codec" || name == "hooks.codec") {
        CHECK(row.bits == "as the codec says");
      } else if (name.ends_with("powersgd")) {  // "43 R / h", "64 R / √n"; here R is 4.
        const double over = name == "powersgd" ? sizes.hidden : 1000;
        CHECK(std::stod(row.bits) * 4 / over == doctest::Approx(cost.bits_of(sizes)).epsilon(0.01));
      } else if (row.bits.ends_with(" F")) {
        CHECK(std::stod(row.bits) * 0.01 == doctest::Approx(cost.bits));
      } else if (row.bits.starts_with("16 or 32")) {
        CHECK(cost.bits_of(sizes) == sizes.gradient_bits);
        const bool seldom = cost.exchange == HookExchange::seldom;
        const auto words = fmt::format("in every {}th step", post_local_steps);
        CHECK(seldom == row.bits.ends_with(words));
      } else {
        CHECK(std::stod(row.bits) == cost.bits);
      }
    }
  }
  for (const HookRow& hook : hook_rows()) rows.erase(std::string(hook.name));
  rows.erase("hooks.codec");
  for (const auto& [name, row] : rows)
    FAIL_CHECK("the guide has a hook that there is not: " << name);
}

}  // namespace
}  // namespace fl::test
