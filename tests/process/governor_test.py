# SPDX-License-Identifier: Apache-2.0
"""Limits of traffic, measured outside of the programs: by a relay that logs each piece.

A busy machine may be slower than its limit, so the tests allow 40 % below. Above it they allow what goes
ahead once: a burst of 100 ms, and of what a client or a server sends a message that has begun.
"""

import os
import signal
import sys
import unittest

from federation import FederationTest, wait_until
from tunnels import Meter, rate

from proxy_test import readdress

BYTES = 4_000_000  # Bytes of the model: each update, and each version.
MBIT = 1e6 / 8
SENT_AHEAD = 1_400_000
RECEIVED_AHEAD = 600_000  # For all clients together.
CONTROL = 64 << 10  # More than a client's control messages take before and after a transfer.


class Governor(FederationTest):
    names = ("a", "b")

    def measured(self, federation, name):
        """A relay through which the client of this name comes."""
        meter = Meter(federation.port)
        self.addCleanup(meter.close)
        readdress(federation, name, meter.place)
        return meter

    def serve(self, clients, *flags):
        federation = self.make()
        run = ("--model", f"synthetic:{BYTES // 4}", "--rounds", 2, "--min-clients", clients)
        server = federation.server("--new-run", *run, "--seed", 1, *flags)
        return federation, server

    def check(self, what, pieces, mbit, ahead):
        got = rate(pieces) / MBIT
        print(f"{what}: {got:.2f} Mbit/s of {mbit}", file=sys.stderr)
        bulk = without_control(pieces)
        count, seconds = sum(count for _, count in bulk), bulk[-1][0] - bulk[0][0]
        self.assertLess(count, 1.05 * mbit * MBIT * seconds + ahead, what)
        self.assertGreater(got, 0.6 * mbit, what)

    def run_client(self, *flags):
        """Two rounds of one client. Returns what went up and down."""
        federation, server = self.serve(1)
        meter = self.measured(federation, "a")
        client = federation.client("a", *flags)
        self.expect_exit(client)
        self.expect_exit(server)
        return meter

    def test_a_client_keeps_to_its_limits(self):
        meter = self.run_client("--max-upload", "20mbit", "--max-download", "10mbit")
        self.assertGreater(sum(count for _, count in meter.up), 2 * BYTES)
        self.assertGreater(sum(count for _, count in meter.down), BYTES)
        # Two uploads with a download between them: the second one only.
        halves = after(meter.up, mostly_passed(meter.down))
        self.check("a client's upload", halves, 20, SENT_AHEAD)
        self.check("a client's download", meter.down, 10, RECEIVED_AHEAD)

    def test_a_quiet_window_of_the_whole_day_is_a_limit(self):
        meter = self.run_client("--max-upload", "1gbit", "--quiet", "00:00-12:00=20mbit,12:00-24:00=20mbit")
        upload = after(meter.up, mostly_passed(meter.down))
        self.check("an upload in quiet hours", upload, 20, SENT_AHEAD)
        self.check("a download in quiet hours", meter.down, 20, RECEIVED_AHEAD)

    def test_a_window_at_another_hour_of_local_time_is_none(self):
        # There it is 12 hours from now.
        os.environ["TZ"] = "XYZ+12"
        self.addCleanup(os.environ.pop, "TZ", None)
        import time

        hour = time.gmtime().tm_hour
        meter = self.run_client("--quiet", f"{hour:02}:00-{(hour + 2) % 24:02}:00=1mbit")
        self.assertGreater(rate(meter.down), 30 * MBIT)

    def test_a_server_shares_its_limits_between_its_clients(self):
        federation, server = self.serve(2, "--max-upload", "20mbit", "--max-download", "30mbit")
        meters = {name: self.measured(federation, name) for name in ("a", "b")}
        clients = [federation.client(name) for name in meters]
        for client in clients:
            self.expect_exit(client)
        self.expect_exit(server)
        # The first round's uploads begin together: clients make the first model from the seed.
        end = min(without_control(meter.down)[0][0] for meter in meters.values())
        uploads = {name: before(meter.up, end) for name, meter in meters.items()}
        for name, meter in meters.items():
            # One may have more than its half once the other one is done.
            for what, pieces, half in (
                ("of what the server sends", meter.down, 10),
                ("of what it receives", uploads[name], 15),
            ):
                self.assertGreater(rate(pieces) / MBIT, 0.6 * half, f"{name}'s half {what}")
        both = [meter.down for meter in meters.values()]
        self.check("what the server sends", sorted(sum(both, [])), 20, SENT_AHEAD)
        self.check("what it receives", sorted(sum(uploads.values(), [])), 30, RECEIVED_AHEAD)


    def check_a_change(self, of_server, before_text, after_text):
        """Changes a program's flags with SIGHUP after 1.5 MB of an upload. Returns the rates of what went up
        before and after that, in Mbit/s."""
        config = self.root / f"{self.id()}.toml"
        config.write_text(before_text)
        flags = ("--config", config)
        federation, server = self.serve(1, *(flags if of_server else ()))
        meter = self.measured(federation, "a")
        client = federation.client("a", *(() if of_server else flags))
        wait_until("an upload", lambda: sum(count for _, count in meter.up) > 1_500_000)
        program = server if of_server else client
        config.write_text(after_text)
        program.signal(signal.SIGHUP)
        wait_until("it is read", lambda: "read the flags again, changed: --" in program.stderr())
        self.assertNotIn("only a restart", program.stderr())
        changed = len(meter.up)
        self.expect_exit(client)
        self.expect_exit(server)
        rates = [rate(without_control(part)) / MBIT for part in (meter.up[:changed], meter.up[changed:])]
        print("{:.2f} Mbit/s, then {:.2f}".format(*rates), file=sys.stderr)
        return rates

    def test_sighup_raises_the_limit_of_an_upload_that_is_under_way(self):
        slow, fast = 'max-upload = "8mbit"', 'max-upload = "80mbit"'
        before, after = self.check_a_change(False, slow, fast)
        self.assertLess(before, 16)
        self.assertGreater(after, 16)

    def test_sighup_gives_a_server_a_limit_for_what_comes(self):
        before, after = self.check_a_change(True, 'max-download = "40mbit"', 'quiet = "00:00-24:00=8mbit"')
        self.assertGreater(before, 20)
        self.assertLess(after, 16)


def mostly_passed(pieces):
    """When 95 % of the bytes had passed: after that come control messages."""
    total, passed = sum(count for _, count in pieces), 0
    for at, count in pieces:
        passed += count
        if passed >= 0.95 * total:
            return at
    raise AssertionError("nothing passed")


def without_control(pieces):
    """The pieces without the first and the last CONTROL bytes: between those and the bulk nothing may
    pass for a while."""
    total, passed, inner = sum(count for _, count in pieces), 0, []
    for at, count in pieces:
        passed += count
        if CONTROL < passed <= total - CONTROL:
            inner.append((at, count))
    return inner


def after(pieces, begin):
    """The pieces after this time, as one log."""
    return [(at, count) for at, count in pieces if at > begin]


def before(pieces, end):
    return [(at, count) for at, count in pieces if at < end]


if __name__ == "__main__":
    unittest.main()
