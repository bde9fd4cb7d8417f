// The TLS settings of both ends, as contexts for TlsStream. TLS 1.3 only, the
// server's own authority only (never the system's), no resumption, so that every connection shows a
// certificate that is checked now. A context may be shared by connections on any thread once it is
// made.
//
// Errors when making one: `corrupt` for a certificate or key that OpenSSL won't take.
#pragma once

#include "shared/base/async/asio.hpp"
#include "shared/identity/authority.hpp"
#include "shared/identity/client_identity.hpp"

#include <boost/asio/ssl/context.hpp>

#include <optional>

namespace fl {

/// For the server. A client may come without a certificate (it enrols); one that shows a
/// certificate must show a valid one of this authority, or the handshake fails. So a session must
/// ask peer_name(), and refuse a peer that has none.
[[nodiscard]] Result<net::ssl::context> server_context(const ServerCertificate& certificate,
                                                       const Authority& authority);

/// For an enrolled client. The server must show a certificate that its authority issued for
/// serving; its host name does not matter, as the authority certifies one server only.
[[nodiscard]] Result<net::ssl::context> client_context(const ClientIdentity& identity);

/// For enrolment, when the authority is known by its fingerprint (spki_fingerprint) only: the
/// server must show a certificate for serving, and with it the authority's that it leads to.
[[nodiscard]] Result<net::ssl::context> pinning_client_context(const Sha256& fingerprint);

/// Sends the host's name in the hello, in clear, for proxies that route by it. Not for IP
/// addresses.
void set_server_name(SSL& ssl, const std::string& host);

/// The name and the serial number in the peer's certificate, of a connection whose handshake is
/// done; none when the peer showed no certificate.
[[nodiscard]] std::optional<std::string> peer_name(const SSL& ssl);
[[nodiscard]] std::optional<std::string> peer_serial(const SSL& ssl);

/// For clients: why a handshake failed, in plain words: unauthenticated when a certificate was
/// refused, by us or by the server; unavailable otherwise. In TLS 1.3 the server's refusal arrives
/// after the client's end of the handshake, as an error of the first read; that error may be given
/// here too. `server` is HOST:PORT, for the sentence.
[[nodiscard]] Error handshake_error(const SSL& ssl, const boost::system::error_code& ec,
                                    std::string_view server);

}  // namespace fl
