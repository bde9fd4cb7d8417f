// A client that a test plays by hand, message by message: it can say what no agent says.
#pragma once

#include "shared/params/layout.hpp"
#include "tests/support/memory_link.hpp"

namespace fl::test {

/// Hello, Welcome, Ready.
[[nodiscard]] Awaitable<Result<void>> greet(std::shared_ptr<MemoryLink> link,
                                            std::uint64_t examples);

/// The next Offer; other messages are ignored.
[[nodiscard]] Awaitable<Result<wire::Offer>> await_offer(std::shared_ptr<MemoryLink> link);

/// Sends `payload` in one chunk as the update, of weight 1, with the digest that it has. `offer`
/// must outlive the call.
[[nodiscard]] Awaitable<Result<wire::Verdict>> upload(std::shared_ptr<MemoryLink> link,
                                                      const wire::Offer& offer,
                                                      std::string payload);

}  // namespace fl::test
