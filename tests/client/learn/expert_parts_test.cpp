// SPDX-License-Identifier: Apache-2.0
#include "client/learn/expert_parts.hpp"

#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <string>

namespace fl {
namespace {

std::string refusal_of(const std::string& model, std::int64_t ranks) {
  const auto checked = check_experts(parse_model(model).value(), model, {.ranks = ranks});
  return checked ? "" : checked.error().message();
}

const std::string six = "transformer:layers=2,width=16,heads=4,context=8,experts=6";

}  // namespace

TEST_CASE("experts that can't be divided are refused with the number that does not fit") {
  for (const std::int64_t ranks : {1, 2, 3, 6}) CHECK(refusal_of(six, ranks).empty());
  CHECK(refusal_of(six, 4) ==
        "--parallel ep=4 can't divide model " + six + ": its 6 experts are no multiple of 4");
  CHECK(refusal_of("mlp", 1).empty());
  for (const char* const model : {"mlp", "transformer:layers=2,width=16,heads=4"})
    CHECK(refusal_of(model, 2).find("it has no experts") != std::string::npos);
}

TEST_CASE("tokens go to experts in one hop or two") {
  CHECK(parse_expert_way("direct").value() == ExpertWay::direct);
  CHECK(parse_expert_way("two-hops").value() == ExpertWay::two_hops);
  CHECK(parse_expert_way("hops").error().message() == "'hops' is neither direct nor two-hops");
}

}  // namespace fl
