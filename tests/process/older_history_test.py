# SPDX-License-Identifier: Apache-2.0
"""A state whose history lacks its newest part: its -wal file was not copied, or an older copy was put
back."""

import json
import shutil
import unittest

from federation import FederationTest, wait_until

RUN = ("--new-run", "--model", "synthetic:2000", "--min-clients", 2, "--rounds", 100_000)


class OlderHistory(FederationTest):
    names = ("a", "b")

    def refused(self, federation, word, *command):
        """Starts a server, or runs a command. Checks that it says what is missing, and leaves the
        history as it was."""
        history = federation.state / "history.sqlite"
        before = history.read_bytes()
        if command:
            code, _, said = federation.server_command(*command)
            self.assertEqual(code, 1, said)
        else:
            server = federation.server(ready=False)
            self.expect_exit(server, 1)
            said = server.stderr()
        self.assertIn("history.sqlite is older than", said)
        self.assertIn(word, said)
        self.assertIn("--older-history", said)
        self.assertEqual(history.read_bytes(), before)
        self.assertFalse(history.with_name("history.sqlite-wal").exists())

    def kill_server(self, federation, server):
        """When a server ends by itself, SQLite moves the WAL into the history."""
        server.kill()
        self.assertGreater((federation.state / "history.sqlite-wal").stat().st_size, 0)

    def test_a_history_without_its_newest_part_is_refused(self):
        federation = self.make()
        server = federation.server(*RUN)
        clients = [federation.client(name) for name in self.names]
        wait_until("some rounds", lambda: federation.rounds_done() >= 5)
        self.kill_server(federation, server)
        for client in clients:
            client.kill()
        digests = federation.digests()
        newest = sorted(federation.checkpoints.glob("*.safetensors"))[-1]
        wal = (federation.state / "history.sqlite-wal").rename(federation.folder / "wal")
        (federation.state / "history.sqlite-shm").unlink()
        self.refused(federation, newest.parent.name)
        for command in (["enroll", "--name", "c"], ["revoke", "a"], ["queue", "--rounds", 1]):
            self.refused(federation, "history.sqlite-wal", *command)
        code, out, _ = federation.server_command("doctor")
        self.assertEqual(code, 1)
        self.assertIn("is older than", out)

        # With its -wal file the history is complete again.
        wal.rename(federation.state / "history.sqlite-wal")
        server = federation.server()
        self.assertEqual(federation.digests()[: len(digests)], digests)
        clients = [federation.client(name) for name in self.names]
        wait_until("more rounds", lambda: federation.rounds_done() >= len(digests) + 4)
        self.kill_server(federation, server)
        for client in clients:
            client.kill()
        newest = sorted(federation.checkpoints.glob("*.safetensors"))[-1]

        # Without that file an operator may decide to go on. Updates and models that the run's next
        # round needs are gone, so it is another run.
        (federation.state / "history.sqlite-wal").unlink()
        (federation.state / "history.sqlite-shm").unlink()
        server = federation.server("--older-history", *RUN)
        self.assertIn("newer files were moved into", server.stderr())
        (aside,) = federation.state.glob("newer-than-history-*")
        self.assertEqual(len(list(aside.glob(f"checkpoints/**/{newest.name}"))), 1)
        self.kill_server(federation, server)
        self.expect_exit_of_stopped(federation.server())

    def expect_exit_of_stopped(self, server):
        server.process.terminate()
        self.expect_exit(server)

    def test_a_history_that_has_forgotten_a_member_is_refused(self):
        federation = self.make()
        server = federation.server(*RUN)
        older = federation.folder / "older.sqlite"
        federation.server_command("backup", federation.folder / "backup")
        shutil.copy(federation.folder / "backup" / "history.sqlite", older)
        federation.server_command("revoke", "b")
        (rows,) = federation.query("SELECT count(*) FROM audit")[0]
        note = federation.state / "audit.json"
        noted = lambda: note.exists() and json.loads(note.read_text())["rows"] == rows  # noqa: E731
        wait_until("the audit's rows are noted", noted)
        self.expect_exit_of_stopped(server)
        shutil.copy(older, federation.state / "history.sqlite")
        self.refused(federation, "who joined or was revoked since then is forgotten")
        # A backup has no such note, and its own history.
        federation.state = federation.folder / "backup"
        self.assertFalse((federation.state / "audit.json").exists())
        self.expect_exit_of_stopped(federation.server())
        self.assertTrue((federation.state / "audit.json").exists())


if __name__ == "__main__":
    unittest.main()
