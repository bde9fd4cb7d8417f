// SPDX-License-Identifier: Apache-2.0
// A client that a test plays message by message. It can send what an agent never sends.
#pragma once

#include "shared/params/layout.hpp"
#include "tests/support/memory_link.hpp"

namespace fl::test {

/// Sends Hello, awaits Welcome, sends Ready.
[[nodiscard]] Awaitable<Result<void>> greet(std::shared_ptr<MemoryLink> link,
                                            std::uint64_t examples);

/// Sends Hello with the protocol's version and a codec, awaits Welcome, sends Ready. Errors:
/// conflict, with the server's reason, if it says Bye.
[[nodiscard]] Awaitable<Result<wire::Welcome>> greet_as(std::shared_ptr<MemoryLink> link,
                                                        wire::Hello hello, wire::Ready ready);

/// Returns the next Offer. Ignores other messages.
[[nodiscard]] Awaitable<Result<wire::Offer>> await_offer(std::shared_ptr<MemoryLink> link);

/// A right announcement of this payload as the update of a task.
[[nodiscard]] wire::Header begin_of(const wire::Offer& offer, std::string_view payload,
                                    std::uint64_t examples);

/// Sends `payload` in one chunk as the update, with weight 1 and its correct digest, and returns
/// the verdict. `offer` must outlive the call.
[[nodiscard]] Awaitable<Result<wire::Verdict>> upload(std::shared_ptr<MemoryLink> link,
                                                      const wire::Offer& offer,
                                                      std::string payload);

}  // namespace fl::test
