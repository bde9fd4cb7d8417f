# SPDX-License-Identifier: Apache-2.0
"""Some peers stop half-way. The server goes on with the others and drops the silent ones in
time."""

import signal
import threading
import time
import unittest

import raw_peer
from federation import FederationTest, wait_until

HANDSHAKE_MAX_S = 15  # limits::handshake_max
LIVENESS_MAX_S = 60  # limits::liveness_max
GRACE_S = 7  # Time for closing (limits::close_max) and for a busy machine.


class Stalls(FederationTest):
    names = ("a", "b", "c", "half", "hello", "ready")

    def half_handshake(self):
        stream = raw_peer.tcp(self.federation)
        stream.sendall(raw_peer.client_hello()[:40])
        return stream

    def half_request(self):
        stream = raw_peer.tls(self.federation, "half")
        stream.sendall(raw_peer.UPGRADE[:40])
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
            "silence after connect": (lambda: raw_peer.tcp(self.federation), HANDSHAKE_MAX_S),
            "half a TLS handshake": (self.half_handshake, HANDSHAKE_MAX_S),
            "half an HTTP request": (self.half_request, HANDSHAKE_MAX_S),
            "no Hello": (lambda: raw_peer.upgraded(self.federation, "half"), HANDSHAKE_MAX_S),
            "no Ready, no pong": (
                lambda: raw_peer.upgraded(self.federation, "hello", raw_peer.HELLO),
                LIVENESS_MAX_S,
            ),
            "half-open in a round": (
                lambda: raw_peer.upgraded(
                    self.federation, "ready", raw_peer.HELLO, raw_peer.READY
                ),
                LIVENESS_MAX_S,
            ),
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


if __name__ == "__main__":
    unittest.main()
