// SPDX-License-Identifier: Apache-2.0
#include "shared/base/io/bus_signal.hpp"

#include "shared/base/async/mutex.hpp"
#include "shared/base/error.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>

namespace fl {

namespace {

std::array<std::atomic<BusRepair>, 4> repairs;
Mutex adding;
struct sigaction before {};  // What SIGBUS did before.

bool is_repaired(const void* address) {
  return std::ranges::any_of(repairs, [address](const std::atomic<BusRepair>& slot) {
    const BusRepair repair = slot.load();
    return repair != nullptr && repair(address);
  });
}

void on_signal(int signal, siginfo_t* info, void* context) {
  const int saved = errno;
  const bool is_well = is_repaired(info->si_addr);
  errno = saved;
  if (is_well) return;
  // The signal is not about a mapping of ours: does what it would have done without us.
  if ((before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction != nullptr)
    return before.sa_sigaction(signal, info, context);
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
    return before.sa_handler(signal);
  ::sigaction(signal, &before, nullptr);  // The instruction runs again and ends the program.
}

void install() {
  struct sigaction action {};
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  action.sa_sigaction = on_signal;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, &before);
}

}  // namespace

void add_bus_repair(BusRepair repair) {
  const MutexLock lock(adding);
  auto slot = repairs.begin();
  for (; slot != repairs.end() && slot->load() != nullptr; ++slot)
    if (slot->load() == repair) return;
  FL_ASSERT(slot != repairs.end());
  slot->store(repair);
  if (slot == repairs.begin()) install();
}

}  // namespace fl
