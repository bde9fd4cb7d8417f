// SPDX-License-Identifier: Apache-2.0
// Says whether the process keeps memory that libtorch has freed on the host. The last call counts,
// for all threads. Only glibc can be told.
#pragma once

namespace fl {

/// Keeps it. Every step allocates and frees the same tensors; returning their pages to the kernel
/// and asking for them again would take a third of a small model's time.
void keep_freed_memory();

/// Gives it back. What ranks bring together and drop again is of many sizes, and heaps would keep
/// room for several times as much as is used at a time. So would a module whose layers give their
/// memory back one by one.
void return_freed_memory();

}  // namespace fl
