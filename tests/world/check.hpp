// What must hold after every run of a world, whatever happened in it. Written against the
// definitions, not the code: sums are made anew from the uploads that the server's history says it
// accepted.
#pragma once

#include "tests/world/world.hpp"

namespace fl::test {

/// All of the below; an error says what is wrong, and where.
[[nodiscard]] Result<void> check(World& world);

/// The digest of the last version, from the server's history.
[[nodiscard]] Result<Digest> final_digest(World& world);

/// The history of a world that has ended, with the disk's faults taken back.
struct History {
  std::unique_ptr<SqliteFilesVfs> vfs;  // Outlives the store.
  std::unique_ptr<Store> store;
  RunRecord run;

  static Result<History> open(World& world);
};

}  // namespace fl::test
