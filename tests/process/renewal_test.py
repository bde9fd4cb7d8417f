# SPDX-License-Identifier: Apache-2.0
"""A certificate is renewed after two thirds of its life, while its client works."""

import contextlib
import datetime
import shutil
import signal
import sqlite3
import unittest

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from federation import FederationTest, wait_until

DAY = datetime.timedelta(days=1)


def read_certificate(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def age(certificate, authority, key, days_old, days_left):
    """Returns the certificate as if it was made `days_old` days ago, valid for `days_left` more."""
    now = datetime.datetime.now(datetime.timezone.utc)
    builder = (
        x509.CertificateBuilder()
        .subject_name(certificate.subject)
        .issuer_name(authority.subject)
        .public_key(certificate.public_key())
        .serial_number(x509.random_serial_number() >> 32)  # 16 bytes, as in other certificates.
        .not_valid_before(now - days_old * DAY)
        .not_valid_after(now + days_left * DAY)
    )
    for extension in certificate.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    return builder.sign(key, hashes.SHA256())


class Renewal(FederationTest):
    def age_certificate(self, federation):
        """Replaces a's certificate, on disk and in the history, by one that is due for renewal.
        Returns its path and the certificate."""
        ours = federation.state / "identity"
        authority = read_certificate(ours / "ca.crt")
        key = serialization.load_pem_private_key((ours / "ca.key").read_bytes(), None)
        mine = federation.folder / "a" / "identity" / "cert.pem"
        old = age(read_certificate(mine), authority, key, days_old=61, days_left=29)
        mine.write_bytes(old.public_bytes(serialization.Encoding.PEM))
        with contextlib.closing(sqlite3.connect(federation.state / "history.sqlite")) as db, db:
            serial = f"{old.serial_number:032x}"
            db.execute("UPDATE certificate SET serial = ? WHERE client = 'a'", (serial,))
        return mine, old

    def test_a_client_gets_a_new_certificate_and_uses_it(self):
        federation = self.make()
        mine, old = self.age_certificate(federation)

        run = ("--new-run", "--model", "synthetic:5000", "--min-clients", 3, "--rounds", 2)
        server = federation.server(*run, "--stay")
        clients = [federation.client(name, "--stay") for name in self.names]
        clients[0].wait_for("renewed this client's certificate")
        new = read_certificate(mine)
        self.assertEqual(new.subject, old.subject)
        self.assertNotEqual(new.public_key(), old.public_key(), "renewed with a new key")
        days_left = (new.not_valid_after_utc - datetime.datetime.now(datetime.timezone.utc)).days
        self.assertGreater(days_left, 60)
        serial = "SELECT certificate_serial FROM client WHERE name = 'a'"
        wait_until(
            "the history has its serial number",
            lambda: int(federation.query(serial)[0][0], 16) == new.serial_number,
        )
        server.wait_for("waiting for another run")
        self.assertNotIn("renewed", clients[1].stderr())

        # After a connection with the new certificate the old one is no longer valid.
        clients[0].kill()
        clients[0] = federation.client("a")
        code, _, err = federation.server_command("queue", *run[1:])
        self.assertEqual(code, 0, err)
        self.expect_exit(clients[0])
        self.assertNotIn("renewed", clients[0].stderr())
        self.assertEqual(federation.rounds_done(), 2)
        good = "SELECT serial FROM certificate WHERE client = 'a'"
        self.assertEqual(federation.query(good), [(f"{new.serial_number:032x}",)])

    def test_a_client_that_waits_for_a_run_renews_too(self):
        federation = self.make()
        run = ("--new-run", "--model", "synthetic:5", "--min-clients", 3, "--rounds", 1)
        server = federation.server(*run, "--stay")
        clients = [federation.client(name, "--stay") for name in self.names]
        for client in clients:
            client.wait_for("the run is over")
        clients[0].signal(signal.SIGTERM)
        self.expect_exit(clients[0])
        server.signal(signal.SIGTERM)
        self.expect_exit(server)
        mine, old = self.age_certificate(federation)
        server = federation.server("--stay")
        server.wait_for("waiting for another run")
        client = federation.client("a", "--stay")
        client.wait_for("renewed this client's certificate")
        self.assertNotEqual(read_certificate(mine).serial_number, old.serial_number)
        code, _, err = federation.server_command("queue", *run[1:])
        self.assertEqual(code, 0, err)
        finished = "SELECT count(*) FROM run WHERE state = 'finished'"
        wait_until("the next run", lambda: federation.query(finished)[0][0] == 2)

    def test_a_stolen_key_that_renews_is_told_to_both_sides(self):
        federation = self.make()
        self.age_certificate(federation)
        shutil.copytree(federation.folder / "a", federation.folder / "thief")
        run = ("--new-run", "--model", "synthetic:5", "--min-clients", 3, "--rounds", 2)
        server = federation.server(*run, "--stay")
        thief = federation.client("thief", "--stay")
        thief.wait_for("renewed this client's certificate")
        thief.kill()
        thief = federation.client("thief", "--stay")
        thief.wait_for("synthetic:5: 5 parameters")  # It is let in.
        owner = federation.client("a", "--stay")
        self.expect_exit(owner, 1)
        self.assertIn("its key may be stolen", owner.stderr())
        self.assertIn("its key may be stolen", server.stderr())
        self.assertIn("a: certificate renewed", server.stderr())
        told = "SELECT count(*) FROM event WHERE text LIKE '%its key may be stolen%'"
        wait_until("the history has it", lambda: federation.query(told)[0][0] >= 1)

    def test_a_renewal_survives_a_kill_at_every_step_on_the_disk(self):
        """The server admits the client with either certificate, and the renewal succeeds later."""

        def attempt(who, failpoint, name):
            federation = self.make(f"{who}-{name}")
            mine, old = self.age_certificate(federation)
            run = ("--new-run", "--model", "synthetic:1", "--min-clients", 1, "--rounds", 1, "--stay")
            try:
                server = federation.server_or_killed(
                    *run, failpoint=failpoint if who == "server" else ""
                )
                client = federation.client(
                    "a", "--stay", failpoint=failpoint if who == "a" else ""
                )
                armed = server if who == "server" else client
                wait_until(
                    "renewed or killed",
                    lambda: not armed.running() or "renewed this client's certificate" in client.stderr(),
                )
                was_killed = armed.process.poll() == -signal.SIGKILL
                client.kill()
                server.kill()
                federation.server(*run)
                # The client connects with whichever certificate it has and ends with a new one.
                client = federation.client("a", "--stay")
                wait_until(
                    "a new certificate",
                    lambda: read_certificate(mine).serial_number != old.serial_number,
                )
                client.wait_for("synthetic:1: 1 parameters")  # The server has told it the model.
                return was_killed
            finally:
                federation.close()

        for who in ("a", "server"):
            self.walk_disk_steps(20, lambda *where, who=who: attempt(who, *where))


if __name__ == "__main__":
    unittest.main()
