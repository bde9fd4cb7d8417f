// SPDX-License-Identifier: Apache-2.0
// The invariants that must hold after every run of a world, whatever happened in it. The checks
// follow the definitions, not the engine's code: they compute each round's sum again from the
// uploads that the server's history names as accepted.
#pragma once

#include "tests/world/world.hpp"

namespace fl::test {

/// Checks all invariants. The error says what is wrong, and in which round, task or client.
[[nodiscard]] Result<void> check(World& world);

/// Returns the digest of the last version from the server's history.
[[nodiscard]] Result<Digest> final_digest(World& world);

/// The history of a world that has ended. open() removes the disk's faults first.
struct History {
  std::unique_ptr<SqliteFilesVfs> vfs;  // Must outlive the store.
  std::unique_ptr<Store> store;
  RunRecord run;

  static Result<History> open(World& world);
};

}  // namespace fl::test
