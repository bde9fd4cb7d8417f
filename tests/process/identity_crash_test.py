# SPDX-License-Identifier: Apache-2.0
"""`kill -9` before and after every step on the disk while an identity is made, at the server's
first start and when a client joins. Doing the same again succeeds. For renewal see
renewal_test.py."""

import signal
import unittest

from federation import BIN, Federation, FederationTest, memory_folder, wait_until

MODEL = ("--model", "synthetic:1", "--min-clients", 100)  # A run that never has enough clients.
KILLED = -signal.SIGKILL


class IdentityCrashes(FederationTest):
    names = ("a",)
    place = memory_folder()

    def prove(self, federation, state, name="new"):
        """Checks that the server admits a client with the identity in `state`."""
        client = federation.start("proof", [BIN / "fl-client", "--state", state])
        seen = "SELECT 1 FROM client WHERE name = ? AND last_seen_at IS NOT NULL"
        wait_until(f"{name} is let in", lambda: federation.query(seen, name) or not client.running())
        self.assertTrue(client.running(), str(client))

    def join(self, federation, state, token):
        return federation.command("fl-client", "join", token, "--state", state)

    def test_a_server_that_is_killed_at_its_first_start_or_first_enrolment(self):
        def attempt(failpoint, name):
            federation = Federation(self.root / f"server-{name}")
            try:
                return self.enrol_at(federation, failpoint)
            finally:
                federation.close()

        self.walk_disk_steps(40, attempt)

    def enrol_at(self, federation, failpoint):
        """Starts a server, enrols a client and checks its identity. Returns whether the server was
        killed at `failpoint`."""
        server = armed = federation.server_or_killed(*MODEL, failpoint=failpoint)
        if not armed.running():
            server = federation.server(*MODEL)
        token, state = federation.token("new"), federation.folder / "new"
        code, _, err = self.join(federation, state, token)
        if code != 0:
            self.assertEqual(server.wait(), KILLED, err)
            server = federation.server(*MODEL)
            code, _, err = self.join(federation, state, token)
            self.assertEqual(code, 0, err)
        was_killed = armed.process.poll() == KILLED
        # If the restart had made a second authority, it would not accept the certificate.
        server.kill()
        federation.server(*MODEL)
        self.prove(federation, state)
        return was_killed

    def test_a_client_that_is_killed_joins_with_the_same_token(self):
        federation = self.make()
        server = federation.server(*MODEL)

        def attempt(failpoint, name):
            token, state = federation.token(name), federation.folder / name
            join = [BIN / "fl-client", "join", token, "--state", state]
            was_killed = federation.start("join", join, failpoint).wait() == KILLED
            code, _, err = self.join(federation, state, token)
            if code != 0:
                self.assertIn("already used", err)
            self.prove(federation, state, name)
            return was_killed

        self.walk_disk_steps(10, attempt)
        self.assertTrue(server.running())

    def test_a_client_that_is_to_train_waits_for_its_server(self):
        federation = self.make()
        server = federation.server(*MODEL)
        token, state = federation.token("new"), federation.folder / "new"
        server.kill()
        client = federation.start("new", [BIN / "fl-client", "--join", token, "--state", state])
        client.wait_for("trying again")
        federation.server(*MODEL, "--rounds", 1, "--min-clients", 1, "--new-run")
        self.expect_exit(client)


if __name__ == "__main__":
    unittest.main()
