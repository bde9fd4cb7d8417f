// SPDX-License-Identifier: Apache-2.0
// What a program makes of flags that it has read again.
#include "shared/flags/given_flags.hpp"

#include <doctest/doctest.h>

#include <array>

namespace fl::test {

namespace {

constexpr std::array<std::string_view, 1> live{"--token"};

}  // namespace

TEST_CASE("live flags are followed from now on, and told once") {
  GivenFlags followed{{"--token", "a"}};
  const GivenFlags now{{"--token", "b"}, {"--verbose", "true"}};
  CHECK(follow_flags(followed, now, live).text() ==
        "read the flags again, changed: --token, the log has more lines (--verbose)");
  CHECK(followed == now);
  CHECK(follow_flags(followed, now, live).text() == "read the flags again: nothing changes now");
  CHECK(follow_flags(followed, {}, live).text() ==
        "read the flags again, changed: --token, the log has fewer lines (no --verbose)");
  CHECK(followed.empty());
}

TEST_CASE("flags that need a restart are told until they are as before") {
  const GivenFlags begin{{"--gone", "1"}, {"--other", "1"}, {"--same", "1"}};
  GivenFlags followed = begin;
  const GivenFlags now{{"--new", "1"}, {"--other", "2"}, {"--same", "1"}};
  for (int i = 0; i < 2; ++i) {
    CHECK(follow_flags(followed, now, live).text() ==
          "read the flags again: nothing changes now; only a restart changes --gone, --other, "
          "--new");
  }
  CHECK(followed == begin);
  CHECK(follow_flags(followed, begin, live).need_restart.empty());
}

}  // namespace fl::test
