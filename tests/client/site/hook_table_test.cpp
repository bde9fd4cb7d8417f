// SPDX-License-Identifier: Apache-2.0
// The table of hooks against itself and against the table of docs/guide/choose-a-hook.md.
#include "client/site/hooks/hook_table.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace fl::test {
namespace {

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  for (std::size_t begin = 1; begin < line.size();) {
    const std::size_t end = std::min(line.find('|', begin), line.size());
    std::string cell = line.substr(begin, end - begin);
    cell.erase(0, cell.find_first_not_of(' '));
    cell.erase(cell.find_last_not_of(' ') + 1);
    cells.push_back(std::move(cell));
    begin = end + 1;
  }
  return cells;
}

/// What stands between backquotes.
std::vector<std::string> quoted_in(const std::string& text) {
  std::vector<std::string> all;
  for (std::size_t begin = text.find('`'); begin != std::string::npos;) {
    const std::size_t end = text.find('`', begin + 1);
    REQUIRE(end != std::string::npos);
    all.push_back(text.substr(begin + 1, end - begin - 1));
    begin = text.find('`', end + 1);
  }
  return all;
}

std::string name_in(const std::string& spec) { return spec.substr(0, spec.find_first_of(": ")); }

struct GuideRow {
  std::string bits;
  std::string exchange;
};

/// The rows of the guide's table of hooks, by the names of the hooks.
std::map<std::string, GuideRow> guide_rows() {
  std::ifstream guide(FL_HOOK_GUIDE);
  std::map<std::string, GuideRow> rows;
  bool is_table = false;
  for (std::string line; std::getline(guide, line);) {
    if (line.starts_with("| hook | bits a value | exchange |")) is_table = true;
    if (!line.starts_with("|")) is_table = false;
    const auto cells = is_table ? cells_of(line) : std::vector<std::string>();
    if (cells.size() < 5 || cells[0].find('`') == std::string::npos) continue;
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
