// SPDX-License-Identifier: Apache-2.0
// The table of remedies fits the texts of events, as the server's sources write them.
#include "server/admin/pages/remedies.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace fl::test {
namespace {

/// All sources of the server but the table itself. Literals that go on in the next line are joined.
std::string sources() {
  std::string all;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(FL_SOURCE_FOLDER "/server")) {
    if (entry.path().extension() != ".cpp" || entry.path().filename() == "remedies.cpp") continue;
    std::ifstream file(entry.path());
    all.append(std::istreambuf_iterator<char>(file), {});
  }
  std::string joined;
  for (std::size_t at = 0; at < all.size(); ++at) {
    if (all[at] == '"') {
      const auto next = all.find_first_not_of(" \n", at + 1);
      if (next != all.npos && next > at + 1 && all[next] == '"') {
        at = next;
        continue;
      }
    }
    joined += all[at];
  }
  return joined;
}

}  // namespace

TEST_CASE("every remedy is of an event that the server writes") {
  const std::string text = sources();
  for (const Remedy& remedy : remedies()) {
    CAPTURE(remedy.part);
    CHECK(text.find(remedy.part) != std::string::npos);
    CHECK(!remedy.cause.empty());
    CHECK(!remedy.remedy.empty());
  }
}

TEST_CASE("an event finds its own remedy, and one that says it all has none") {
  const auto part = [](const char* text) {
    const Remedy* const found = find_remedy(text);
    return found != nullptr ? found->part : std::string_view();
  };
  CHECK(part("site-1: update refused: its norm is 12") == "update refused");
  CHECK(part("site-1: update to be repeated: digest mismatch") == "to be repeated");
  CHECK(part("round 3: the deadline passed without a, b") == "the deadline passed without");
  CHECK(part("site-1 is here: trainer, 600 examples").empty());
}

}  // namespace fl::test
