// SPDX-License-Identifier: Apache-2.0
// docs/design/schema.sql shows readers the tables as all migrations together have made them.
#include "server/history/sqlite.hpp"
#include "server/history/store.hpp"
#include "tests/support/print_result.hpp"
#include "tests/support/temporary_folder.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace fl::test {

using namespace fl::server;

TEST_CASE("docs/design/schema.sql is the schema of a new history") {
  TemporaryFolder folder;
  REQUIRE(Store::open({.path = folder / "history.sqlite"}));
  const auto db = Database::open({.path = folder / "history.sqlite", .read_only = true}).value();
  std::string schema =
      "-- The schema of history.sqlite, made by its migrations (server/history/schema.cpp), which "
      "say\n"
      "-- more. The views are for queries of your own: docs/guide/history.md.\n";
  const auto statements =
      db->query(
            "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"
            " ORDER BY type = 'view', tbl_name, type <> 'table', type, name",
            [](const Row& row) { return std::string(row.text(0)); })
          .value();
  for (const auto& statement : statements) schema += "\n" + statement + ";\n";

  const std::string path = FL_SOURCE_FOLDER "/docs/design/schema.sql";
  // FL_GOLDEN_REWRITE=1 writes it where it is missing.
  if (std::getenv("FL_GOLDEN_REWRITE") != nullptr && !std::filesystem::exists(path))
    std::ofstream(path) << schema;
  std::ifstream file(path);
  REQUIRE(file.is_open());
  std::stringstream shown;
  shown << file.rdbuf();
  CHECK(shown.str() == schema);
}

}  // namespace fl::test
