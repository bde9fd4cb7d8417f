# SPDX-License-Identifier: Apache-2.0
"""Some peers stop half-way. The server goes on with the others and drops the silent ones in
time."""

import base64
import signal
import socket
import ssl
import struct
import threading
import time
import unittest

from federation import FederationTest, wait_until

HANDSHAKE_MAX_S = 15  # limits::handshake_max
LIVENESS_MAX_S = 60  # limits::liveness_max
GRACE_S = 7  # Time for closing (limits::close_max) and for a busy machine.

UPGRADE = (
    b"GET /v1/session HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + base64.b64encode(bytes(16)) + b"\r\n\r\n"
)
# Header{hello{protocol: 3, codecs: "none"}} and Header{ready{train_examples: 1000}}, encoded by
# hand.
HELLO = b"\x0a\x08\x08\x03\x2a\x04none"
READY = b"\x3a\x03\x08\xe8\x07"


def websocket_frame(header):
    """Returns one masked binary frame with one Tributary message."""
    payload = struct.pack("<I", len(header)) + header
    return bytes([0x82, 0x80 | len(payload)]) + bytes(4) + payload


class Stalls(FederationTest):
    names = ("a", "b", "c", "half", "hello", "ready")

    def tcp(self):
        return socket.create_connection(("127.0.0.1", self.federation.port), 10)

    def tls(self, name):
        identity = self.federation.folder / name / "identity"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(identity / "ca.pem")
        context.load_cert_chain(identity / "cert.pem", identity / "key.pem")
        return context.wrap_socket(self.tcp())

    def upgraded(self, name, *headers):
        stream = self.tls(name)
        stream.sendall(UPGRADE)
        answer = stream.recv(4096)
        assert b" 101 " in answer, answer
        for header in headers:
            stream.sendall(websocket_frame(header))
        return stream

    def half_handshake(self):
        stream = self.tcp()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        hello = ssl.create_default_context().wrap_bio(
            incoming, outgoing, server_hostname="localhost"
        )
        try:
            hello.do_handshake()
        except ssl.SSLWantReadError:
            pass
        stream.sendall(outgoing.read()[:40])
        return stream

    def half_request(self):
        stream = self.tls("half")
        stream.sendall(UPGRADE[:40])
        return stream

    def open_for(self, stream):
        """Returns the seconds until the server closes. Ignores what the server sends before."""
        began = time.monotonic()
        stream.settimeout(LIVENESS_MAX_S + 2 * GRACE_S)
        try:
            while stream.recv(65536):
                pass
        except TimeoutError:
            return float("inf")
        except OSError:
            pass
        stream.close()
        return time.monotonic() - began

    def test_silent_peers_are_dropped_and_the_others_go_on(self):
        self.federation = self.make()
        # The silent client "ready" is sampled, and at the deadline another client is asked instead.
        # The run has so many rounds that the server is there to the end of the test.
        flags = "--new-run --model synthetic:1000 --min-clients 3 --rounds 100000"
        flags += " --clients-per-round 3 --deadline 3"
        server = self.federation.server(*flags.split())
        clients = [self.federation.client(name) for name in ("a", "b")]
        server.wait_for("initial model")
        peers = {
            "silence after connect": (self.tcp, HANDSHAKE_MAX_S),
            "half a TLS handshake": (self.half_handshake, HANDSHAKE_MAX_S),
            "half an HTTP request": (self.half_request, HANDSHAKE_MAX_S),
            "no Hello": (lambda: self.upgraded("half"), HANDSHAKE_MAX_S),
            "no Ready, no pong": (lambda: self.upgraded("hello", HELLO), LIVENESS_MAX_S),
            "half-open in a round": (lambda: self.upgraded("ready", HELLO, READY), LIVENESS_MAX_S),
        }
        took, threads = {}, []
        for what, (connect, _) in peers.items():
            stream = connect()
            threads.append(
                threading.Thread(target=lambda w=what, s=stream: took.update({w: self.open_for(s)}))
            )
            threads[-1].start()
        server.wait_for("round 1/100000: asked 3 of 3 clients")

        clients.append(self.federation.client("c"))
        wait_until("rounds are done", lambda: self.federation.rounds_done() >= 4, 40)
        for client in clients:
            client.signal(signal.SIGINT)
            self.expect_exit(client, limit_s=10)
        self.assertIn("asked c in place of another", server.stderr())
        for thread in threads:
            thread.join()
        print(
            "dropped after "
            + ", ".join(f"{seconds:.1f} s ({what})" for what, seconds in took.items())
        )
        for what, (_, limit) in peers.items():
            self.assertLess(took[what], limit + GRACE_S, what)
            self.assertGreater(took[what], limit / 2, f"{what}: the server must have patience")
        self.assertTrue(server.running(), str(server))

    def test_many_silent_connections_leave_room(self):
        self.federation = self.make()
        server = self.federation.server(
            "--new-run", "--model", "synthetic:1000", "--min-clients", 3, "--rounds", 2
        )
        silent = [self.tcp() for _ in range(200)]
        self.addCleanup(lambda: [stream.close() for stream in silent])
        for program in [self.federation.client(name) for name in self.names[:3]] + [server]:
            self.expect_exit(program, limit_s=20)


if __name__ == "__main__":
    unittest.main()
