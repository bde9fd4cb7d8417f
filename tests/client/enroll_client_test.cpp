// SPDX-License-Identifier: Apache-2.0
// Joining from end to end over loopback: enroll_over_https() against a small HTTPS server that
// calls the real enroll(), and against servers that are impostors, broken or absent.
#include "client/agent/enroll_client.hpp"
#include "shared/net/http.hpp"
#include "shared/wire/tls_context.hpp"
#include "tests/identity/fixture.hpp"

#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>

namespace fl {

using namespace fl::client;
namespace {

using namespace fl::test;
using net::ip::tcp;

/// A server for one connection. It answers with `canned`, or by enroll() if that is empty, and
/// keeps the request that it received.
class OneShotServer {
 public:
  OneShotServer(net::io_context& io, Authority& authority, MemoryBook& book)
      : authority_(authority),
        book_(book),
        acceptor_(io, {net::ip::make_address("127.0.0.1"), 0}),
        context_(
            server_context(authority.issue_server({"127.0.0.1"}, Clock::unix_seconds()).value(),
                           authority)
                .value()) {}

  [[nodiscard]] ServerAddress address() const {
    return {"127.0.0.1", acceptor_.local_endpoint().port()};
  }

  void stop() { acceptor_.cancel(); }

  Awaitable<void> serve() {
    auto [accept_ec, socket] = co_await acceptor_.async_accept(as_result);
    if (accept_ec) co_return;
    TlsStream stream(std::move(socket), context_);
    const auto [handshake_ec] =
        co_await stream.async_handshake(net::ssl::stream_base::server, as_result);
    if (handshake_ec) co_return;
    HttpRequest request;
    if (co_await read_http(stream, request, enrolment_bytes_max)) co_return;
    received = request.body();
    target = request.target();
    std::string text = answer(request.body());
    co_await write_all(stream, std::move(text));
  }

  std::string canned;
  std::string received;
  std::string target;

 private:
  std::string answer(const std::string& body) {
    if (!canned.empty()) return http_answer(200, "application/json", canned);
    const auto request = parse_enrolment_request(body);
    const auto outcome = request ? enroll(authority_, book_, *request, Clock::unix_seconds())
                                 : Result<EnrolmentResponse>(request.error());
    if (outcome) return http_answer(200, "application/json", to_json(*outcome));
    return http_answer(http_status(outcome.error()), "application/json", to_json(outcome.error()));
  }

  Authority& authority_;
  MemoryBook& book_;
  tcp::acceptor acceptor_;
  net::ssl::context context_;
};

struct OnlineWorld {
  TemporaryFolder temp;
  net::io_context io;
  Authority authority = new_authority(temp / "ca");
  MemoryBook book;
  OneShotServer server{io, authority, book};

  JoinToken invite(std::string name) {
    JoinToken token = make_token(server.address(), authority.fingerprint()).value();
    book.add(token, std::move(name), Clock::unix_seconds() + 60);
    return token;
  }

  /// Joins with the token, which is passed as text, as between people. Returns when the client is
  /// done, even if the server still waits.
  Result<ClientIdentity> join(const JoinToken& token, std::string name = "") {
    std::optional<Result<ClientIdentity>> outcome;
    net::co_spawn(io, server.serve(), net::detached);
    net::co_spawn(io, join_into(outcome, parse_token(to_string(token)).value(), std::move(name)),
                  [](std::exception_ptr failure) {
                    if (failure) std::rethrow_exception(failure);
                  });
    io.restart();
    while (!outcome) REQUIRE(io.run_one() == 1);
    server.stop();
    io.run();
    return std::move(*outcome);
  }

 private:
  Awaitable<void> join_into(std::optional<Result<ClientIdentity>>& outcome, JoinToken token,
                            std::string name) {
    outcome.emplace(co_await enroll_over_https(token, name, temp / "me", posix_files()));
  }
};

TEST_CASE("an invited client joins, and what it stored lets it in") {
  OnlineWorld world;
  const auto joined = world.join(world.invite("alice"));
  REQUIRE_MESSAGE(joined.has_value(), joined.error().message());
  CHECK(joined->name() == "alice");
  CHECK(joined->server() == world.server.address());
  CHECK(world.server.target == enrolment_target);
  CHECK(world.book.serials.at("alice") ==
        serial_hex(*parse_certificate(joined->certificate_pem()).value()));
  CHECK(client_context(ClientIdentity::load(posix_files(), world.temp / "me").value()));

  // Joining with a second token replaces the identity.
  const JoinToken second = world.invite("alice");
  const auto again = world.join(second);
  REQUIRE_MESSAGE(again.has_value(), again.error().message());
  CHECK(again->token_id() == second.id_hex());
  CHECK(again->key_pem() != joined->key_pem());
  CHECK(world.book.serials.at("alice") ==
        serial_hex(*parse_certificate(again->certificate_pem()).value()));
}

TEST_CASE("the user sees the server's own message when it refuses") {
  OnlineWorld world;
  const JoinToken token = world.invite("alice");
  const auto refused = world.join(token, "bob");
  REQUIRE(!refused);
  CHECK(refused.error().code() == Errc::unauthenticated);
  CHECK(contains(refused.error().message(), "for client \"alice\", not for \"bob\""));
  CHECK(!ClientIdentity::is_present(posix_files(), world.temp / "me"));
  CHECK(world.join(token, "alice"));
}

TEST_CASE("the secret is not sent to a server whose fingerprint differs") {
  OnlineWorld world;
  JoinToken token = world.invite("alice");
  token.ca_fingerprint[31] ^= 1;
  const auto refused = world.join(token);
  REQUIRE(!refused);
  CHECK(refused.error().code() == Errc::unauthenticated);
  CHECK(contains(refused.error().message(),
                 "the server at " + to_string(world.server.address()) +
                     " is not the one that this join token was made for: its fingerprint differs"));
  CHECK(contains(refused.error().message(), "issued by '/CN=Tributary authority'"));
  CHECK(world.server.received.empty());
}

TEST_CASE("nothing is stored after an invalid answer or one from another authority") {
  OnlineWorld world;
  const Authority other = new_authority(world.temp / "other-ca");
  const std::string certificate =
      other.issue_client("alice", new_request_pem(), Clock::unix_seconds())->pem;
  const auto refused = [&](std::string answer, Errc code) {
    world.server.canned = std::move(answer);
    const auto outcome = world.join(world.invite("alice"));
    REQUIRE(!outcome);
    CHECK(outcome.error().code() == code);
    CHECK(!ClientIdentity::is_present(posix_files(), world.temp / "me"));
  };
  refused("<html>", Errc::protocol);
  refused(std::string(enrolment_bytes_max + 1, 'x'), Errc::protocol);
  refused(to_json(EnrolmentResponse{certificate, other.certificate_pem(), "alice"}),
          Errc::unauthenticated);
  refused(to_json(EnrolmentResponse{certificate, world.authority.certificate_pem(), "alice"}),
          Errc::unauthenticated);
  refused(to_json(EnrolmentResponse{"none", world.authority.certificate_pem(), "alice"}),
          Errc::corrupt);
}

TEST_CASE("joining an absent server is unavailable, with its address in the message") {
  OnlineWorld world;
  tcp::acceptor closed(world.io, {net::ip::make_address("127.0.0.1"), 0});
  JoinToken token = world.invite("alice");
  token.server.port = closed.local_endpoint().port();
  closed.close();
  const auto refused = world.join(token);
  REQUIRE(!refused);
  CHECK(refused.error().code() == Errc::unavailable);
  CHECK(contains(refused.error().message(), to_string(token.server)));

  token.server = {"no-such-host.invalid", 1};
  const auto unknown = world.join(token);
  REQUIRE(!unknown);
  CHECK(unknown.error().code() == Errc::unavailable);
  CHECK(contains(unknown.error().message(), "no-such-host.invalid:1"));
}

TEST_CASE("an HTTP answer says when it was made, and dates are read as they are written") {
  CHECK(http_date(784111777) == "Sun, 06 Nov 1994 08:49:37 GMT");
  CHECK(parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT") == 784111777);
  for (const char* text :
       {"", "yesterday", "Sun, 06 Nov 1994 08:49:37", "Sun, 06 Nov 1994 08:49:37 GMT!"})
    CHECK(!parse_http_date(text));
  CHECK(contains(http_answer(200, "text/plain", ""), "\r\nDate: "));
}

}  // namespace
}  // namespace fl
