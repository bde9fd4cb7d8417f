// SPDX-License-Identifier: Apache-2.0
// The kernel reports a page of a mapped file that it can't give by the signal SIGBUS, which ends a
// program. Parts of the program that map files add a function here that puts it right.
#pragma once

namespace fl {

/// Makes good for what hit this address, so that the instruction can run again; false: the address
/// is not its own. It runs in the handler of a signal, in any thread.
using BusRepair = bool (*)(const void* address);

/// Adds a repair, once for each; it stays. The first call of a process takes SIGBUS. Where no
/// repair helps, the signal does what it did before. Any thread.
void add_bus_repair(BusRepair repair);

}  // namespace fl
