# SPDX-License-Identifier: Apache-2.0
"""Strangers hold connections without end, and a member opens too many. The run goes on, enrolled
clients come in, and new ones can enrol."""

import contextlib
import json
import socket
import ssl
import time
import unittest

import raw_peer
from federation import FederationTest, wait_until

IN_TIME_S = 5  # 2 s are promised; this machine may be busy.


class Strangers(FederationTest):
    names = ("a", "b", "late", "greedy")

    def begin(self, files_max=0):
        self.federation = self.make()
        flags = "--new-run --model synthetic:1000 --min-clients 2 --rounds 100000 --deadline 20 --admin 127.0.0.1:0"
        self.server = self.federation.server(*flags.split(), files_max=files_max)
        self.clients = [self.federation.client(name) for name in ("a", "b")]
        self.expect_rounds()

    def expect_rounds(self):
        before = self.federation.rounds_done()
        wait_until("rounds go on", lambda: self.federation.rounds_done() > before + 2)
        self.assertTrue(self.server.running(), str(self.server))

    def expect_welcome(self, name, limit_s=IN_TIME_S):
        began = time.monotonic()
        self.clients.append(self.federation.client(name))
        self.server.wait_for(f"{name} is here")
        self.assertLess(time.monotonic() - began, limit_s)

    def hold(self, streams):
        self.addCleanup(lambda: [stream.close() for stream in streams])
        return streams

    def test_silent_connections_leave_room(self):
        self.begin()
        self.hold([raw_peer.tcp(self.federation) for _ in range(700)])
        self.expect_welcome("late")
        self.federation.join("newcomer")
        self.expect_rounds()
        self.server.wait_for("connections were ended before they authenticated")
        told = self.server.stderr().count("ended before they authenticated")
        self.assertLess(told, 30, "each is a line")

    def test_the_admin_port_answers_probes_and_writes_few_lines(self):
        self.begin()
        host, port = self.server.ready["admin"].split(":")

        def connect():
            stream = socket.create_connection((host, int(port)), timeout=30)
            self.hold([stream])
            return stream

        for _ in range(40):
            connect().sendall(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for _ in range(300):
            connect()
        for _ in range(3):
            stream = connect()
            stream.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            self.assertTrue(stream.recv(100).startswith(b"HTTP/1.1 200 "))
        self.expect_rounds()
        self.assertLess(self.server.stderr().count("admin pages: "), 30, "each is a line")

    def fill(self, first, count, sources):
        """Holds this many connections that send `first` and no more; closed ones stay closed."""
        streams = self.hold([])
        for number in range(count):
            streams.append(raw_peer.tcp(self.federation, sources[number % len(sources)]))
            with contextlib.suppress(OSError):
                streams[-1].sendall(first)

    def test_half_handshakes_leave_room(self):
        """More than may be open, from the members' address and from others."""
        self.begin()
        hello = raw_peer.client_hello()
        self.fill(hello[: len(hello) // 2], 1500, [f"127.0.0.{n}" for n in range(1, 41)])
        self.expect_welcome("late")
        self.expect_rounds()

    def test_handshakes_that_stop_leave_room(self):
        """A ClientHello on each of more connections than may shake hands."""
        self.begin()
        self.fill(raw_peer.client_hello(), 400, ["127.0.0.2", "127.0.0.3"])
        self.expect_welcome("late")
        self.expect_rounds()

    def send_junk(self):
        """Sends junk in a session, until the server has read it."""
        said = "is not valid protobuf"
        with raw_peer.upgraded(
            self.federation, "greedy", raw_peer.HELLO, raw_peer.READY
        ) as stream:
            self.server.wait_for("greedy is here")
            before = self.server.stderr().count(said)
            stream.sendall(raw_peer.websocket_frame(b"\xff" * 100))
            wait_until("the junk is read", lambda: self.server.stderr().count(said) > before)

    def test_a_member_that_sends_junk_waits_before_it_comes_back(self):
        self.begin()
        before = self.federation.rounds_done()
        with self.assertRaisesRegex(raw_peer.Turned, "broke the protocol [1-9] times"):
            for _ in range(10):  # One that comes too late for a pause makes the next one longer.
                self.send_junk()
                time.sleep(0.1)  # The session may need a moment to end.
        # The round does not wait for it until its deadline: another is asked.
        wait_until("rounds go on", lambda: self.federation.rounds_done() > before + 2)
        tasks = self.federation.query("SELECT state FROM task WHERE client = 'greedy'")
        self.assertNotIn("offered", [state for (state,) in tasks])
        self.expect_welcome("greedy", limit_s=30)

    def test_more_connections_than_files(self):
        self.begin(files_max=300)
        began = time.monotonic()
        streams = self.hold([])
        while time.monotonic() - began < 4:  # Connections that are closed are opened anew.
            with contextlib.suppress(OSError):
                streams.append(raw_peer.tcp(self.federation))
            for stream in streams[-50:]:
                stream.setblocking(False)
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    if stream.recv(1) == b"":
                        stream.close()
            streams[:] = [stream for stream in streams if stream.fileno() >= 0]
            if len(streams) > 400:
                streams.pop(0).close()
        self.expect_welcome("late")
        self.expect_rounds()

    def test_one_member_does_not_take_all_places(self):
        self.begin(files_max=300)  # Places for 86 sessions.
        held, turned = self.hold([]), 0
        for _ in range(40):  # Fewer than the sessions that a member may begin at once.
            try:
                held.append(
                    raw_peer.upgraded(self.federation, "greedy", raw_peer.HELLO)
                )
            except (raw_peer.Turned, OSError) as error:
                self.assertIn("'greedy' has 4 sessions", str(error))
                turned += 1
        self.assertGreater(turned, 0)
        self.expect_welcome("late")
        # The oldest session makes room: who holds the others can't keep the member out.
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with contextlib.suppress(raw_peer.Turned):
                self.hold([raw_peer.upgraded(self.federation, "greedy", raw_peer.HELLO)])
                break
        # Each time that it is turned away it waits longer, so it may come some seconds after the place.
        self.expect_welcome("greedy", limit_s=30)
        self.expect_rounds()

    def test_a_message_before_ready_is_small(self):
        self.begin()
        stream = raw_peer.upgraded(self.federation, "greedy", raw_peer.HELLO)
        self.hold([stream])
        # The head of a frame of 1.3 MB: refused before a byte of it is there.
        stream.sendall(bytes([0x82, 0x80 | 127]) + (1_300_000).to_bytes(8, "big") + bytes(4))
        stream.settimeout(20)
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            while stream.recv(4096):
                pass
        self.server.wait_for(f"sent a message of more than {132 << 10} bytes")
        self.expect_rounds()

    def refuse_enrolment(self):
        body = json.dumps(
            {"token_id": "00" * 8, "secret": "A" * 22, "name": "root\nforged", "csr": "x"}
        ).encode()
        with raw_peer.tls(self.federation) as stream:
            head = f"POST /v1/enroll HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            stream.sendall(head.encode() + body)
            self.assertNotIn(b" 200 ", stream.recv(1000))

    def audit(self, *flags):
        code, out, err = self.server_command("audit", "--json", *flags)
        self.assertEqual(code, 0, err)
        return json.loads(out)

    def server_command(self, *arguments):
        return self.federation.server_command(*arguments)

    def test_forged_enrolments_do_not_blind_the_audit(self):
        self.begin()
        kinds = [row["kind"] for row in self.audit("--client", "late")]
        self.assertEqual(kinds, ["control", "enrolment"])  # First the token, then the member.
        for _ in range(100):
            self.refuse_enrolment()
        self.server_command("revoke", "late")
        with self.assertRaisesRegex(raw_peer.Turned, "was revoked"):
            raw_peer.upgraded(self.federation, "late")
        rows = self.audit("--client", "late")
        self.assertEqual([row["kind"] for row in rows], ["control", "enrolment", "control", "revocation", "refusal"])
        self.assertIn("was revoked", rows[-1]["text"])
        refused = [row for row in self.audit() if row["client"] == "" and row["kind"] == "refusal"]
        self.assertTrue(5 <= len(refused) <= 20, refused)
        self.assertLess(self.server.stderr().count("an enrolment was refused"), 25)
        events = self.federation.query("SELECT count(*) FROM event WHERE text LIKE '%refused%'")
        self.assertLess(events[0][0], 25)
        code, out, _ = self.server_command("audit")
        self.assertEqual(code, 0)
        self.assertIn("revocation", out)

    def test_a_displaced_session_is_in_the_audit(self):
        self.begin()
        first = raw_peer.upgraded(self.federation, "greedy", raw_peer.HELLO, raw_peer.READY)
        self.server.wait_for("greedy is here")
        second = raw_peer.upgraded(self.federation, "greedy", raw_peer.HELLO, raw_peer.READY)
        self.hold([first, second])
        wait_until(
            "the displacement is in the audit",
            lambda: [row["kind"] for row in self.audit("--client", "greedy")]
            == ["control", "enrolment", "displacement"],
        )


if __name__ == "__main__":
    unittest.main()
