// Work without an order, divided among threads for as long as one call takes.
#pragma once

#include <cstddef>
#include <functional>

namespace fl {

/// `wanted`, or for 0 one for each core.
[[nodiscard]] int threads_for(int wanted);

/// Calls use(lane, begin, end) for runs of [0, count), of `run` indices but for the last one: each
/// run once, in ascending order in a lane, and in as many lanes, numbered from 0, as there are
/// threads, the caller's among them. A thread that can't be started is done without. `use` throws
/// nothing.
void for_each_run(
    std::size_t count, std::size_t run, int threads,
    const std::function<void(std::size_t lane, std::size_t begin, std::size_t end)>& use);

}  // namespace fl
