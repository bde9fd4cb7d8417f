// SPDX-License-Identifier: Apache-2.0
// The switch that ends the calls of a rank's groups.
#include "client/site/abort_switch.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace fl::test {

using namespace fl::site;

TEST_CASE("an abort ends the calls of the request that goes on, and of no other") {
  AbortSwitch abort;
  std::vector<std::string> ended;
  const auto note = [&](const std::string& reason) { ended.push_back(reason); };
  const AbortSwitch::Hold hold(abort, note);
  { const AbortSwitch::Hold gone(abort, note); }
  abort.begin(7);
  CHECK(!abort.is_on());
  CHECK(!abort.reason());

  abort.abort(6, "of the request before");
  CHECK(!abort.is_on());
  abort.abort(7, "rank 1 is lost");
  CHECK(abort.reason() == "rank 1 is lost");
  abort.abort(7, "rank 2 is lost too");  // The first reason stays.
  CHECK(abort.reason() == "rank 1 is lost");
  CHECK(ended == std::vector<std::string>{"rank 1 is lost"});
  {
    const AbortSwitch::Hold late(abort, note);
    CHECK(ended.size() == 2);
  }

  abort.begin(8);
  CHECK(!abort.is_on());
  // It may come before the request has been taken from the queue.
  abort.abort(9, "rank 3 is lost");
  CHECK(!abort.is_on());
  abort.begin(9);
  CHECK(abort.reason() == "rank 3 is lost");
  CHECK(ended.size() == 3);
  abort.begin(10);
  CHECK(!abort.reason());
}

}  // namespace fl::test
