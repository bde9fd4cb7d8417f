// The yardstick of the round benchmark: one bare Beast TLS 1.3 WebSocket connection on loopback
// between two processes, with the same socket and stream settings as ours, that moves bytes and
// does nothing else: no disk, no digests, no protocol.
#pragma once

#include <cstdint>

namespace fl::bench {

/// Seconds to move `bytes_down` one way and then `bytes_up` the other, in 1 MiB messages. Forks.
double bare_pair_seconds(std::uint64_t bytes_down, std::uint64_t bytes_up);

}  // namespace fl::bench
