// SPDX-License-Identifier: Apache-2.0
#include "server/app/open_store.hpp"

#include "server/app/newer_files.hpp"
#include "shared/base/io/file.hpp"
#include "shared/base/state_lock.hpp"

#include <fmt/format.h>

namespace fl::server {

Result<std::unique_ptr<Store>> open_store(const std::filesystem::path& state, bool read_only) {
  Store::Options store;
  store.path = state / "history.sqlite";
  store.read_only = read_only;
  store.migrates = false;  // Only a server's start migrates.
  if (!read_only && posix_files().exists(state)) FL_CHECK(check_state_folder(state));
  if (!posix_files().exists(store.path)) {
    // A folder without read permission looks empty: opening the file tells the two cases apart.
    const auto opened = posix_files().open(store.path, OpenMode::read);
    if (!opened && opened.error().code() != Errc::not_found) return opened.error();
    return Error(
        Errc::not_found,
        fmt::format(
            "{} has no history: start fl-server there first, or name another folder with --state",
            state.string()));
  }
  // Opening the history for writing would already change it, so that its missing part fits no more.
  if (!read_only) FL_CHECK(check_nothing_newer(state));
  return Store::open(store);
}

}  // namespace fl::server
