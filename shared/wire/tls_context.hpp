// SPDX-License-Identifier: Apache-2.0
// The TLS settings of both ends, as contexts for TlsStream. Only TLS 1.3 is used. The only trusted
// authority is the server's own, never the system's. There is no session resumption, so the
// certificates are checked on every connection. Connections on any thread may share a context.
//
// Making a context fails with `corrupt` if OpenSSL rejects a certificate or key.
#pragma once

#include "shared/base/async/asio.hpp"
#include "shared/identity/authority.hpp"
#include "shared/identity/client_identity.hpp"

#include <boost/asio/ssl/context.hpp>

#include <optional>

namespace fl {

/// Makes the server's context. A client may connect without a certificate, to enrol. If it has one,
/// this authority must have issued it, or the handshake fails. So a session must call peer_name()
/// and reject a peer without a name.
[[nodiscard]] Result<net::ssl::context> server_context(const ServerCertificate& certificate,
                                                       const Authority& authority);

/// Makes an enrolled client's context. The server must have a server certificate of the client's
/// authority. The host name is not checked, because the authority certifies one server only.
[[nodiscard]] Result<net::ssl::context> client_context(const ClientIdentity& identity);

/// Makes the context for enrolment, when the client knows only the authority's fingerprint
/// (spki_fingerprint()). The server must send a server certificate and the certificate of the
/// authority that issued it.
[[nodiscard]] Result<net::ssl::context> pinning_client_context(const Sha256& fingerprint);

/// Sends the host name unencrypted in the TLS ClientHello (SNI), for proxies that route by it.
/// Don't call it with an IP address.
void set_server_name(SSL& ssl, const std::string& host);

/// The name and the serial number in the peer's verified certificate, after the handshake. None if
/// the peer sent no certificate.
[[nodiscard]] std::optional<std::string> peer_name(const SSL& ssl);
[[nodiscard]] std::optional<std::string> peer_serial(const SSL& ssl);
/// When the peer's certificate ends, in Unix seconds; 0: there is none.
[[nodiscard]] double peer_certificate_end(const SSL& ssl);

/// Whether the server has shown a certificate of an authority that is not the federation's: often a
/// firewall on the way that opens TLS connections.
[[nodiscard]] bool shows_foreign_certificate(const SSL& ssl);

/// For clients: explains why a handshake failed. The code is unauthenticated if this client or the
/// server rejected a certificate, else unavailable. In TLS 1.3 the server's rejection arrives after
/// the client's handshake has ended, as an error of the first read; pass that error here too.
/// `server` is HOST:PORT, for the message.
[[nodiscard]] Error handshake_error(const SSL& ssl, const boost::system::error_code& ec,
                                    std::string_view server);

}  // namespace fl
