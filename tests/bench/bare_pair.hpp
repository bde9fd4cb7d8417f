// SPDX-License-Identifier: Apache-2.0
// The baseline of the round benchmark: a bare Beast TLS 1.3 WebSocket connection on loopback
// between two processes, with the same socket and stream settings as fl-server. It only moves
// bytes: no disk, no digests, no protocol.
#pragma once

#include <cstdint>

namespace fl::bench {

/// Returns the seconds to move `bytes_down` one way and then `bytes_up` the other, in 1 MiB
/// messages. Forks a process.
double bare_pair_seconds(std::uint64_t bytes_down, std::uint64_t bytes_up);

}  // namespace fl::bench
