// SPDX-License-Identifier: Apache-2.0
// The history as the admin pages show it: page by page, over a connection to the database and on a
// thread of its own. So readers, however many, never hold up a round. Any strand.
#pragma once

#include "server/admin/pages/fleet_page.hpp"
#include "server/admin/pages/history_pages.hpp"
#include "server/history/store.hpp"
#include "shared/base/async/offload.hpp"

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace fl::server {

/// A version's file on the disk.
struct VersionFile {
  std::string name;  // The name that a browser saves the file by.
  std::string file;  // The file's path, from the folder of checkpoints.
  std::uint64_t bytes = 0;
};

class AdminHistory {
 public:
  /// `path`: the database, which exists.
  static Result<std::unique_ptr<AdminHistory>> open(const std::filesystem::path& path);

  /// The JSON of one of history_pages(). `page` is one of that table.
  Awaitable<Result<std::string>> read(const HistoryPage& page, AddressQuery query,
                                      bool show_clients);
  Awaitable<Result<NewestRows>> newest_rows();
  /// The clients after `after`, by name, with `text` in their names, `clients_max` at most.
  Awaitable<Result<FleetRecords>> fleet(std::string after, std::string text, int clients_max);
  /// Finds a version's file. Without a run: the run that is shown. Without a version: the run's
  /// newest one. not_found: the version is not kept.
  Awaitable<Result<VersionFile>> find_version(std::optional<RunId> run,
                                              std::optional<Version> version);

 private:
  explicit AdminHistory(std::unique_ptr<Store> store) : store_(std::move(store)) {}

  std::unique_ptr<Store> store_;  // Opened read-only; used on the thread.
  Offload thread_{1};
};

}  // namespace fl::server
