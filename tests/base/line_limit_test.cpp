// SPDX-License-Identifier: Apache-2.0
// Lines that a peer can cause: the first few of a kind pass, the others are counted, and one kind
// does not push out another.
#include "shared/base/line_limit.hpp"

#include <doctest/doctest.h>

#include <string>

namespace fl::test {
namespace {

using namespace std::chrono_literals;

constexpr LineLimit::Limits few{.lines_max = 3, .window = 60s, .kinds_max = 4};

TEST_CASE("the first lines of a kind pass, the rest is counted, and then it begins anew") {
  const TimePoint now{};
  LineLimit lines(few);
  int passed = 0;
  for (int i = 0; i < 100; ++i) passed += lines.passes("noise", now) ? 1 : 0;
  CHECK(passed == 3);
  CHECK(lines.passes("news", now));
  CHECK(lines.take_left_out(now + 59s).empty());  // The window is not over.
  const auto left_out = lines.take_left_out(now + 60s);
  REQUIRE(left_out.size() == 1);
  CHECK(left_out[0].kind == "noise");
  CHECK(left_out[0].lines == 97);
  CHECK(to_string(left_out[0]) == "noise: 97 more within 60 s");
  CHECK(lines.take_left_out(now + 60s).empty());
  CHECK(lines.passes("noise", now));
}

TEST_CASE("lines pass again when their window has ended, also when nobody asks what was left out") {
  const TimePoint now{};
  LineLimit lines(few);
  for (int i = 0; i < 10; ++i) static_cast<void>(lines.passes("noise", now));
  CHECK_FALSE(lines.passes("noise", now + 59s));
  CHECK(lines.passes("noise", now + 60s));
  CHECK(lines.passes("noise", now + 80s));
  CHECK(lines.passes("noise", now + 119s));
  CHECK_FALSE(lines.passes("noise", now + 119s));
  CHECK(lines.passes("noise", now + 120s));
  const auto left_out = lines.take_left_out(now + 120s);
  REQUIRE(left_out.size() == 1);
  CHECK(left_out[0].lines == 8 + 1);
}

TEST_CASE("what could not be told comes again, and not twice") {
  const TimePoint now{};
  LineLimit lines(few);
  for (int i = 0; i < 10; ++i) static_cast<void>(lines.passes("noise", now));
  lines.put_back(lines.take_left_out(now + 60s));
  CHECK(lines.passes("noise", now + 61s));  // It has a window of its own.
  const auto left_out = lines.take_left_out(now + 62s);
  REQUIRE(left_out.size() == 1);
  CHECK(left_out[0].kind == "noise");
  CHECK(left_out[0].lines == 7);
  CHECK(lines.take_left_out(now + 63s).empty());
}

TEST_CASE("too many kinds share one count, so that memory does not grow") {
  const TimePoint now{};
  LineLimit lines(few);
  int passed = 0;
  for (int i = 0; i < 100; ++i) passed += lines.passes("kind " + std::to_string(i), now) ? 1 : 0;
  CHECK(passed == 4 + 3);
  const auto left_out = lines.take_left_out(now + 60s);
  REQUIRE(left_out.size() == 1);
  CHECK(left_out[0].lines == 93);
}

}  // namespace
}  // namespace fl::test
