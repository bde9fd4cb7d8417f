// SPDX-License-Identifier: Apache-2.0
// Each rule gives what another library, byzfl, gives: make_golden.py wrote golden.txt with it.
#include "server/sums/aggregate_rule.hpp"
#include "tests/server/sums/rows_in_memory.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::server;
namespace {

struct Input {
  std::vector<std::vector<float>> updates;
  std::vector<float> center;
};

std::vector<float> read_row(std::istream& in, std::size_t elements) {
  std::vector<float> row(elements);
  for (float& value : row) {
    in >> value;
    REQUIRE(in.good());
  }
  return row;
}

TEST_CASE("each robust rule gives what byzfl gives, to 1e-6") {
  std::ifstream in(FL_GOLDEN_FILE);
  std::map<std::string, Input> inputs;
  int cases = 0;
  std::string word;
  while (in >> word) {
    std::string name;
    in >> name;
    Input& input = inputs[name];
    if (word == "input") {
      std::size_t rows = 0;
      std::size_t elements = 0;
      in >> rows >> elements;
      while (input.updates.size() + 1 < rows) input.updates.push_back(read_row(in, elements));
      input.center = read_row(in, elements);
      continue;
    }
    REQUIRE(word == "case");
    std::string spec;
    in >> spec;
    CAPTURE(name);
    CAPTURE(spec);
    const std::size_t elements = input.center.size();
    const std::vector<float> wanted = read_row(in, elements);
    const auto rule = parse_aggregate(spec);
    REQUIRE(rule);
    const auto result = aggregate(*rule, input.updates, elements, input.center);
    for (std::size_t i = 0; i < elements; ++i)
      CHECK(std::fabs(double{result[i]} - wanted[i]) <=
            1e-6 * std::fmax(1.0, std::fabs(wanted[i])));
    ++cases;
  }
  CHECK(inputs.size() == 4);
  CHECK(cases == 4 * 30);
}

}  // namespace
}  // namespace fl::test
