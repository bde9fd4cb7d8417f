# SPDX-License-Identifier: Apache-2.0
"""Raw connections to a server, for tests of peers that stop half-way. Needs no packages."""

import base64
import contextlib
import socket
import ssl
import struct

UPGRADE = (
    b"GET /v1/session HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + base64.b64encode(bytes(16)) + b"\r\n\r\n"
)
# Header{hello{protocol: 5, codecs: "none"}} and Header{ready{train_examples: 1000}}, encoded by
# hand. Then the same of an evaluator: hello{protocol: 5, evaluator: true}, ready{holdout_examples: 10}.
HELLO = b"\x0a\x08\x08\x05\x2a\x04none"
READY = b"\x3a\x03\x08\xe8\x07"
HELLO_EVALUATOR = b"\x0a\x04\x08\x05\x18\x01"
READY_EVALUATOR = b"\x3a\x02\x10\x0a"


class Turned(Exception):
    """The server answered with HTTP instead of a session."""


def websocket_frame(header):
    """Returns one masked binary frame with one Tributary message."""
    payload = struct.pack("<I", len(header)) + header
    return bytes([0x82, 0x80 | len(payload)]) + bytes(4) + payload


def tcp(federation, source="127.0.0.1"):
    return socket.create_connection(("127.0.0.1", federation.port), 10, (source, 0))


def client_hello():
    """The first bytes of a TLS handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        hello.do_handshake()
    return outgoing.read()


def tls_context(federation, name=""):
    """With the certificate of this client, or without one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    if name:
        identity = federation.folder / name / "identity"
        context.load_verify_locations(identity / "ca.pem")
        context.load_cert_chain(identity / "cert.pem", identity / "key.pem")
    else:
        context.verify_mode = ssl.CERT_NONE
    return context


def tls(federation, name=""):
    return tls_context(federation, name).wrap_socket(tcp(federation))


def upgraded(federation, name, *headers):
    """Returns a session's stream on which these messages were sent."""
    stream = tls(federation, name)
    stream.sendall(UPGRADE)
    answer = stream.recv(4096)
    if b" 101 " not in answer:
        stream.close()
        raise Turned(answer.decode(errors="replace"))
    for header in headers:
        stream.sendall(websocket_frame(header))
    return stream
