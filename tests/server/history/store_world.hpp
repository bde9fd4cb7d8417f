// SPDX-License-Identifier: Apache-2.0
// A store on a disk in memory, for the store's tests.
#pragma once

#include "server/history/store.hpp"
#include "tests/server/history/records.hpp"
#include "tests/support/mem_files.hpp"
#include "tests/support/print_result.hpp"
#include "tests/support/sqlite_files_vfs.hpp"

#include <doctest/doctest.h>
#include <sqlite3.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace fl::test {

using namespace fl::server;

/// The store, and the same store opened again.
struct StoreWorld {
  MemFiles files;
  SqliteFilesVfs vfs{"store-test", files};
  std::unique_ptr<Store> store;

  StoreWorld() { reopen(); }
  void reopen() {
    store.reset();
    store = Store::open({.path = "/history.sqlite", .vfs = vfs.name(), .exclusive = true}).value();
  }

  /// A running run with `clients` asked in round 1.
  RunId run = 0;
  std::vector<TaskRecord> start_round(std::vector<std::string> clients) {
    run = store->runs().create(some_run()).value().id;
    store->rounds().set_initial_model(run, some_checkpoint(0)).value();
    return open(1, std::move(clients));
  }
  std::vector<TaskRecord> open(Round round, std::vector<std::string> clients) {
    std::vector<TaskRecord> tasks;
    for (auto& client : clients) tasks.push_back(some_task(client));
    return store->rounds().open(run, some_round(round), tasks).value();
  }
  RoundSummary summary_of(Round round) {
    return store->summaries().rounds(run).value().at(round - 1);
  }
  std::string text(const char* sql) {
    sqlite3_stmt* statement = nullptr;
    FL_ASSERT(sqlite3_prepare_v2(store->raw(), sql, -1, &statement, nullptr) == SQLITE_OK);
    FL_ASSERT(sqlite3_step(statement) == SQLITE_ROW);
    const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(statement, 0));
    std::string found = bytes == nullptr ? "NULL" : bytes;
    sqlite3_finalize(statement);
    return found;
  }
};

template <class T>
Errc code_of(const Result<T>& result) {
  REQUIRE(!result.has_value());
  return result.error().code();
}

}  // namespace fl::test
