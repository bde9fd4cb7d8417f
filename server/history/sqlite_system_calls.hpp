// SPDX-License-Identifier: Apache-2.0
// Stands between SQLite's own file system (its VFS "unix") and the kernel, for what SQLite itself
// does not do: it forgets why a write failed, so that a quota (EDQUOT) or the limit of a file's
// size (EFBIG) looks like a broken disk; and it ends the program where a full disk has no room for
// a page of its shared memory (written_mappings.hpp). Databases in another VFS are not touched.
#pragma once

namespace fl::server {

/// Call it before each connection is opened. Any thread.
void watch_sqlite_system_calls();

/// The errno of this thread's last system call of SQLite that should have made, extended or written
/// a file and failed, or 0. It is forgotten with that.
[[nodiscard]] int take_sqlite_errno();

}  // namespace fl::server
