// SPDX-License-Identifier: Apache-2.0
#include "shared/base/documents.hpp"
#include "tests/support/temporary_folder.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

namespace fs = std::filesystem;

TEST_CASE("a page is found beside a build, a wheel, an installation and a package") {
  const std::string page = "docs/guide/data.md";
  const std::pair<const char*, const char*> layouts[] = {
      {"checkout/build/bin", "checkout"},
      {"site-packages/tributary_fl/bin", "site-packages/tributary_fl"},
      {"prefix/bin", "prefix/share/doc/tributary"},
      {"usr/lib/tributary", "usr/share/doc/tributary"}};
  for (const auto& layout : layouts) {
    const std::string programs = layout.first;
    CAPTURE(programs);
    const fl::test::TemporaryFolder folder;
    fs::create_directories(folder / programs);
    CHECK(fl::document_path("docs/guide/nonesuch.md", folder / programs) ==
          "docs/guide/nonesuch.md in the sources of Tributary");
    const fs::path file = folder / layout.second / page;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << "a page";
    CHECK(fl::document_path(page, folder / programs) == file.string());
  }
}
