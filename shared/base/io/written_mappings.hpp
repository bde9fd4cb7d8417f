// SPDX-License-Identifier: Apache-2.0
// Mappings of files that a library writes to: SQLite's index of its WAL (history.sqlite-shm). Where
// a file system copies on write (btrfs), or under a quota, a full disk may have no room for a page
// that is written again. The kernel then sends SIGBUS. Other processes use the same page, so
// nothing else can stand in its place: the thread waits until there is room, as all of the program
// does on a full disk.
#pragma once

#include <cstddef>

namespace fl {

/// How many such mappings a process may have; more of them are not watched.
inline constexpr std::size_t written_mappings_max = 1024;

/// Watches a mapping from now on. The first call of a process takes SIGBUS. Any thread.
void watch_written_mapping(const void* at, std::size_t bytes);
/// Ends that, before the mapping is removed. Nothing happens if it is not watched. Any thread.
void forget_written_mapping(const void* at);

/// What the handler of SIGBUS does: if the address lies in a watched mapping, and its page can be
/// read, waits for limits::full_disk_pause and returns true. A page that can't even be read is
/// missing for good.
bool wait_for_written_page(const void* address);

/// Whether a thread waits for such a page. Any thread.
[[nodiscard]] bool a_written_page_waits();

}  // namespace fl
