// SPDX-License-Identifier: Apache-2.0
// A server accepts a connection and then stays silent: joining gives up after
// limits::handshake_max. The test is slow, because it waits in real time.
#include "client/agent/enroll_client.hpp"
#include "shared/base/limits.hpp"
#include "tests/identity/fixture.hpp"

#include <boost/asio/ip/tcp.hpp>

namespace fl {

using namespace fl::client;
namespace {

using namespace fl::test;
using net::ip::tcp;

Awaitable<void> join(JoinToken token, Path folder, std::optional<Error>& error) {
  const auto outcome = co_await enroll_over_https(token, "", folder, posix_files());
  if (!outcome) error = outcome.error();
}

TEST_CASE("joining a silent server ends at the deadline") {
  const TemporaryFolder temp;
  net::io_context io;
  tcp::acceptor silent(io, {net::ip::make_address("127.0.0.1"), 0});
  const ServerAddress address{"127.0.0.1", silent.local_endpoint().port()};
  std::optional<Error> error;
  const TimePoint start = Clock::now();
  net::co_spawn(io, join(make_token(address, Sha256{}).value(), temp / "me", error),
                [](std::exception_ptr failure) { CHECK(!failure); });
  io.run();
  REQUIRE(error);
  CHECK(error->code() == Errc::deadline);
  CHECK(contains(error->message(), to_string(address)));
  CHECK(Clock::now() - start >= limits::handshake_max);
  CHECK(Clock::now() - start < 2 * limits::handshake_max);
}

}  // namespace
}  // namespace fl
