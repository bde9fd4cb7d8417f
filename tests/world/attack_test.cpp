// SPDX-License-Identifier: Apache-2.0
// fl-sim's malicious clients: what they send and what they train on, by the attacks' formulas.
#include "examples/sim/attack.hpp"

#include "tests/support/guide_table.hpp"
#include "tests/support/image_data.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace fl::test {

using namespace fl::sim;
namespace {

Attack attack(std::string_view spec) { return parse_attack(spec).value(); }

TEST_CASE("each attack has a name and a kind of its own, and is in the guide") {
  std::set<std::string> told{"none"};
  for (const Cells& cells : guide_table("guide/choose-a-rule.md", "| attack |")) {
    const std::string spec = quoted_in(cells.at(0)).at(0);
    told.insert(spec);
  }
  std::set<std::string> usages;
  std::set<Attack::Kind> kinds;
  for (const AttackRow& row : attack_rows()) {
    CAPTURE(row.name);
    usages.emplace(row.usage);
    CHECK(kinds.insert(row.attack.kind).second);
    CHECK(row.usage.starts_with(row.name));
    CHECK((row.usage == row.name) != row.has_strength);
    CHECK(attack(row.name).kind == row.attack.kind);
    CHECK(attack(row.name).strength == row.attack.strength);
  }
  CHECK(usages == told);
  CHECK(attack_rows().front().attack.kind == Attack::Kind::none);
}

TEST_CASE("an attack may have a strength") {
  CHECK(attack("none").kind == Attack::Kind::none);
  CHECK(attack("sign-flip").strength == 1);
  CHECK(attack("sign-flip:4").strength == 4);
  CHECK(attack("ipm").strength == 0.5);
  CHECK(attack("alie:0.25").strength == 0.25);
  CHECK(attack("backdoor:10").strength == 10);
  CHECK(attack("label-flip").kind == Attack::Kind::label_flip);
  for (const char* const wrong :
       {"", "flip", "label-flip:2", "none:1", "ipm:", "ipm:-1", "alie:nan"}) {
    CAPTURE(std::string(wrong));
    const auto parsed = parse_attack(wrong);
    REQUIRE(parsed.has_error());
    CHECK(parsed.error().message().find("choose none, sign-flip[:S]") != std::string::npos);
  }
}

TEST_CASE("omniscient attacks send what follows from the honest updates' mean and deviation") {
  HonestUpdates honest;
  honest.add(std::vector<float>{1, 10});
  honest.add(std::vector<float>{2, 10});
  honest.add(std::vector<float>{6, 10});
  std::vector<float> out(2);
  honest.write(attack("ipm:2"), out);
  CHECK(out[0] == doctest::Approx(-6));
  CHECK(out[1] == doctest::Approx(-20));
  honest.write(attack("alie:1.5"), out);
  CHECK(out[0] == doctest::Approx(3 - 1.5 * std::sqrt((4.0 + 1 + 9) / 2)));
  CHECK(out[1] == doctest::Approx(10));
}

TEST_CASE("poisoned data have flipped labels, or a trigger in every second image") {
  const DataSet plain = images(8, 8, std::vector<std::uint8_t>(2 * 64, 1), {3, 9});
  DataSet flipped = plain;
  CHECK(poison(attack("label-flip"), flipped).has_value());
  CHECK(flipped.labels == std::vector<std::uint32_t>{6, 0});
  CHECK(pixels_of(flipped) == pixels_of(plain));
  DataSet triggered = plain;
  CHECK(poison(attack("backdoor"), triggered).has_value());
  const auto pixels = pixels_of(triggered);
  CHECK(triggered.labels == std::vector<std::uint32_t>{0, 9});
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    const bool is_trigger = i < 64 && i / 8 < 4 && i % 8 < 4;
    CHECK(int{pixels[i]} == (is_trigger ? 255 : 1));
  }
}

}  // namespace
}  // namespace fl::test
