// SPDX-License-Identifier: Apache-2.0
// TLS between two ends in one process, over a pair of connected sockets: which clients and which
// servers are accepted, and which TLS parameters are used.
#include "tests/identity/tls_world.hpp"

#include <openssl/ssl.h>
#include <boost/asio/detached.hpp>

namespace fl {
namespace {

using namespace fl::test;

using Role = net::ssl::stream_base::handshake_type;

/// One handshake, then one byte in each direction, the server's first: in TLS 1.3 a client must
/// read to learn whether the server accepted its certificate.
class Meeting {
 public:
  Meeting(net::ssl::context& server_side, net::ssl::context& client_side)
      : sockets(socket_pair(io)),
        server(std::move(sockets.first), server_side),
        client(std::move(sockets.second), client_side) {
    net::co_spawn(io, meet(server, Role::server, server_ec), net::detached);
    net::co_spawn(io, meet(client, Role::client, client_ec), net::detached);
    io.run();
  }

  [[nodiscard]] bool succeeded() const { return !server_ec && !client_ec; }
  [[nodiscard]] Error client_error() { return handshake_error(client.ssl(), client_ec, "here:1"); }

  net::io_context io;
  std::pair<net::ip::tcp::socket, net::ip::tcp::socket> sockets;
  TlsStream server;
  TlsStream client;
  boost::system::error_code server_ec;
  boost::system::error_code client_ec;

 private:
  /// On failure the socket closes, so that the other end does not wait.
  static Awaitable<void> meet(TlsStream& stream, Role role, boost::system::error_code& ec) {
    char byte = 'x';
    const auto buffer = net::buffer(&byte, 1);
    std::tie(ec) = co_await stream.async_handshake(role, as_result);
    for (const bool write : {role == Role::server, role == Role::client}) {
      if (ec) break;
      if (write) std::tie(ec, std::ignore) = co_await stream.async_write_some(buffer, as_result);
      if (!write) std::tie(ec, std::ignore) = co_await stream.async_read_some(buffer, as_result);
    }
    if (ec) stream.close();
  }
};

TEST_CASE("an enrolled client is known by name and serial, over TLS 1.3 with preferred ciphers") {
  TlsWorld world;
  net::ssl::context client = client_context(world.alice).value();
  Meeting meeting(world.server, client);
  REQUIRE(meeting.succeeded());
  SSL& ssl = meeting.server.ssl();
  CHECK(peer_name(ssl) == "alice");
  CHECK(peer_serial(ssl) == serial_hex(*parse_certificate(world.alice.certificate_pem()).value()));
  CHECK(SSL_version(&ssl) == TLS1_3_VERSION);
  CHECK(std::string(SSL_get_cipher_name(&ssl)) == "TLS_AES_128_GCM_SHA256");
  CHECK(SSL_get_negotiated_group(&ssl) == NID_X25519);
}

TEST_CASE("a key exchange other than X25519 is refused") {
  TlsWorld world;
  net::ssl::context client = client_context(world.alice).value();
  REQUIRE(SSL_CTX_set1_groups_list(client.native_handle(), "P-256:X448") == 1);
  Meeting meeting(world.server, client);
  CHECK(!meeting.succeeded());
}

TEST_CASE("a client without a certificate passes TLS, but has no name") {
  TlsWorld world;
  net::ssl::context client = world.pinning();
  Meeting meeting(world.server, client);
  REQUIRE(meeting.succeeded());
  CHECK(!peer_name(meeting.server.ssl()));
  CHECK(!peer_serial(meeting.server.ssl()));
}

TEST_CASE("sessions can't be resumed") {
  TlsWorld world;
  net::ssl::context client = client_context(world.alice).value();
  Meeting meeting(world.server, client);
  REQUIRE(meeting.succeeded());
  CHECK(SSL_SESSION_is_resumable(SSL_get0_session(&meeting.client.ssl())) == 0);
}

TEST_CASE("clients with a foreign, expired or server certificate are refused") {
  TlsWorld world;
  const auto refused = [&](net::ssl::context client) {
    Meeting meeting(world.server, client);
    CHECK(meeting.server_ec);
    CHECK(meeting.client_ec);
    CHECK(meeting.client_error().code() == Errc::unauthenticated);
    CHECK(!peer_name(meeting.server.ssl()));
  };
  // A key and certificate for "alice" from another authority, at a client that trusts our server.
  const Authority other = new_authority(world.temp / "other-ca");
  new_identity(other, world.temp / "mallory", "alice");
  const auto swap_in = [&](const Path& folder) {
    net::ssl::context client = world.pinning();
    client.use_certificate_chain_file((folder / "cert.pem").string());
    client.use_private_key_file((folder / "key.pem").string(), net::ssl::context::pem);
    return client;
  };
  refused(swap_in(world.temp / "mallory"));

  new_identity(world.authority, world.temp / "old", "alice", world.now - 91 * day_s);
  refused(swap_in(world.temp / "old"));

  std::filesystem::create_directory(world.temp / "server");
  write_text(world.temp / "server/cert.pem", world.certificate.chain_pem);
  write_text(world.temp / "server/key.pem", world.certificate.key_pem);
  refused(swap_in(world.temp / "server"));

  // This context with the right certificate is accepted.
  net::ssl::context right = swap_in(world.temp / "alice");
  CHECK(Meeting(world.server, right).succeeded());
}

TEST_CASE("while the authority is changed, members of the old and of the new one are accepted") {
  TlsWorld world;
  REQUIRE(world.authority.begin_rotation(posix_files(), world.temp / "ca", world.now, ""));
  const auto certificate = world.authority.issue_server({"localhost"}, world.now).value();
  net::ssl::context server = server_context(certificate, world.authority).value();
  net::ssl::context old = client_context(world.alice).value();
  CHECK(Meeting(server, old).succeeded());
  const auto request = ClientIdentity::request_certificate(posix_files(), world.alice.folder());
  const auto issued = world.authority.issue_client("alice", request.value(), world.now).value();
  REQUIRE(world.alice.finish_renewing(posix_files(), issued.pem, world.authority.trusted_pem()));
  net::ssl::context renewed = client_context(world.alice).value();
  CHECK(Meeting(server, renewed).succeeded());
  net::ssl::context joining = world.pinning();
  CHECK(Meeting(server, joining).succeeded());
  // Then the old one is dropped.
  REQUIRE(world.authority.finish_rotation(posix_files(), world.temp / "ca"));
  const auto next = world.authority.issue_server({"localhost"}, world.now).value();
  net::ssl::context after = server_context(next, world.authority).value();
  CHECK(Meeting(after, renewed).succeeded());
  CHECK(!Meeting(after, old).succeeded());
}

TEST_CASE("members know a server that is certified by an intermediate, and are known by it") {
  TlsWorld world;
  net::ssl::context old = client_context(world.alice).value();
  const Path folder = world.temp / "ca";
  const std::string key = take_key_away(world.authority, folder, world.now).value();
  const auto make_server = [&] {
    const auto certificate = world.authority.issue_server({"localhost"}, world.now).value();
    return server_context(certificate, world.authority).value();
  };
  const auto renew = [&] {
    const auto request = ClientIdentity::request_certificate(posix_files(), world.alice.folder());
    const auto issued = world.authority.issue_client("alice", request.value(), world.now).value();
    return world.alice.finish_renewing(posix_files(), issued.pem, world.authority.trusted_pem());
  };
  net::ssl::context server = make_server();
  CHECK(Meeting(server, old).succeeded());
  net::ssl::context joining = world.pinning();
  CHECK(Meeting(server, joining).succeeded());
  REQUIRE(renew());
  net::ssl::context first = client_context(world.alice).value();
  CHECK(Meeting(server, first).succeeded());
  // Members of the first intermediate are known after it was replaced, and know the server.
  write_text(folder / "ca.key", key);
  REQUIRE(take_key_away(world.authority, folder, world.now));
  net::ssl::context next = make_server();
  CHECK(Meeting(next, old).succeeded());
  CHECK(Meeting(next, first).succeeded());
  REQUIRE(renew());
  net::ssl::context second = client_context(world.alice).value();
  CHECK(Meeting(next, second).succeeded());
  // An intermediate of another authority is a stranger's.
  TlsWorld other;
  REQUIRE(take_key_away(other.authority, other.temp / "ca", other.now));
  const auto foreign = other.authority.issue_server({"localhost"}, other.now).value();
  net::ssl::context impostor = server_context(foreign, other.authority).value();
  CHECK(!Meeting(impostor, second).succeeded());
  CHECK(!Meeting(impostor, joining).succeeded());
}

TEST_CASE("TLS 1.2 is refused") {
  TlsWorld world;
  net::ssl::context client(net::ssl::context::tlsv12_client);
  client.set_verify_mode(net::ssl::verify_none);
  Meeting meeting(world.server, client);
  CHECK(meeting.server_ec);
  CHECK(meeting.client_ec);
}

TEST_CASE("a server of another authority is refused by enrolled and by joining clients") {
  TlsWorld world;
  const Authority other = new_authority(world.temp / "other-ca");
  const auto other_certificate = other.issue_server({"localhost"}, world.now).value();
  net::ssl::context impostor = server_context(other_certificate, other).value();

  net::ssl::context enrolled = client_context(world.alice).value();
  Meeting first(impostor, enrolled);
  CHECK(first.client_ec);
  CHECK(first.server_ec);
  CHECK(first.client_error().code() == Errc::unauthenticated);

  net::ssl::context joining = world.pinning();
  Meeting second(impostor, joining);
  CHECK(second.server_ec);
  CHECK(second.client_error().code() == Errc::unauthenticated);
  CHECK(contains(
      second.client_error().message(),
      "the server at here:1 is not the one that this join token was made for: its fingerprint "
      "differs"));
}

TEST_CASE("an impostor is refused even if it shows the right authority's certificate too") {
  TlsWorld world;
  const Authority other = new_authority(world.temp / "other-ca");
  ServerCertificate forged = other.issue_server({"localhost"}, world.now).value();
  forged.chain_pem += world.authority.certificate_pem();
  net::ssl::context impostor = server_context(forged, world.authority).value();
  for (const bool pinned : {false, true}) {
    net::ssl::context client = pinned ? world.pinning() : client_context(world.alice).value();
    Meeting meeting(impostor, client);
    CHECK(meeting.server_ec);
    CHECK(meeting.client_error().code() == Errc::unauthenticated);
  }
}

TEST_CASE("a server with a client's certificate is refused") {
  TlsWorld world;
  const ClientIdentity mallory = new_identity(world.authority, world.temp / "mallory", "mallory");
  const ServerCertificate borrowed{
      mallory.key_pem(), mallory.certificate_pem() + mallory.ca_pem(), {}};
  net::ssl::context impostor = server_context(borrowed, world.authority).value();
  for (const bool pinned : {false, true}) {
    net::ssl::context client = pinned ? world.pinning() : client_context(world.alice).value();
    Meeting meeting(impostor, client);
    CHECK(meeting.server_ec);
    CHECK(meeting.client_error().code() == Errc::unauthenticated);
    CHECK(contains(meeting.client_error().message(), "purpose"));
  }
}

TEST_CASE("a joining client refuses a server that does not send its authority's certificate") {
  TlsWorld world;
  ServerCertificate bare = world.certificate;
  bare.chain_pem = to_pem(*parse_certificate(bare.chain_pem).value()).value();
  net::ssl::context silent = server_context(bare, world.authority).value();
  SSL_CTX_set_mode(silent.native_handle(), SSL_MODE_NO_AUTO_CHAIN);
  net::ssl::context client = world.pinning();
  Meeting meeting(silent, client);
  CHECK(contains(meeting.client_error().message(), "fingerprint differs"));
}

TEST_CASE("no context is made from a certificate and a wrong key, or from nonsense") {
  TlsWorld world;
  ServerCertificate bad = world.certificate;
  bad.key_pem = world.alice.key_pem();
  CHECK(server_context(bad, world.authority).error().code() == Errc::corrupt);
  bad.key_pem = "nonsense";
  CHECK(server_context(bad, world.authority).error().code() == Errc::corrupt);
  bad.chain_pem = "nonsense";
  CHECK(server_context(bad, world.authority).error().code() == Errc::corrupt);
}

}  // namespace
}  // namespace fl
