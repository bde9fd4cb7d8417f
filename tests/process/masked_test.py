# SPDX-License-Identifier: Apache-2.0
"""Masked runs of the real programs: they make the model of a run in the clear, also when programs are
killed, and what does not fit is refused where a person can read it."""

import re
import unittest

from federation import BIN, FederationTest, failpoints, wait_until
from member_lists import MASKED, MemberLists

RUN = ("--new-run", "--model", "synthetic:5000", "--rounds", 3, "--min-clients", 3, "--lr", "0.05", "--seed", 7)
CODEC = ("--codec", "lanes:6+ef", "--weights", "equal")


class Masked(MemberLists, FederationTest):
    names = ("a", "b", "c")

    def clear_digests(self):
        federation = self.make("clear")
        server = federation.server(*RUN, *CODEC)
        clients = [federation.client(name) for name in self.names]
        self.expect_exit(server)
        for client in clients:
            self.expect_exit(client)
        return federation.digests()

    def test_a_masked_run_makes_the_model_of_one_in_the_clear(self):
        expected = self.clear_digests()
        federation = self.make()
        members = self.make_members(federation)
        server = federation.server(*RUN, *CODEC, *MASKED, "--members", members)
        # One trusts the list itself, the others its signer.
        trusted = {"a": members, "b": self.signer, "c": self.signer}
        clients = [self.masked_client(federation, name, trusted[name]) for name in self.names]
        self.expect_exit(server)
        for client in clients:
            self.expect_exit(client)
        self.assertEqual(federation.digests(), expected)
        self.assertIn("one signature is enough", server.stderr())
        losses = federation.query("SELECT round, count(DISTINCT loss) FROM task GROUP BY round")
        self.assertEqual(losses, [(1, 1), (2, 1), (3, 1)])
        self.assertEqual(federation.query("SELECT count(*) FROM masked_message"), [(0,)])
        for name in self.names:
            self.assertFalse((federation.folder / name / "attempt.json").exists())
            self.assertTrue((federation.folder / name / "contributions").exists())

    def test_kills_do_not_change_the_model(self):
        expected = self.clear_digests()
        federation = self.make()
        members = self.make_members(federation)
        flags = (*RUN, *CODEC, *MASKED, "--members", members)
        server = federation.server(*flags, failpoint="masked.logged:7")
        killed = set()
        clients = {
            "a": self.masked_client(federation, "a", members, failpoint="attempt.recorded:3"),
            "b": self.masked_client(federation, "b", members, failpoint="attempt.masked"),
            "c": self.masked_client(federation, "c", members),
        }
        wait_until("the server is killed", lambda: not server.running())
        server = federation.server("--members", members, failpoint="masked.before_accepted")

        def is_server_killed():
            for name in clients:
                if not clients[name].running():
                    killed.add(name)
                    clients[name] = self.masked_client(federation, name, members)
            return not server.running()

        wait_until("the server is killed again", is_server_killed)
        server = federation.server("--members", members)
        self.expect_exit(server)
        for client in clients.values():
            self.expect_exit(client)
        self.assertEqual(federation.digests(), expected)
        self.assertEqual(killed, {"a", "b"})

    def test_kills_are_tried_at_all_places_of_masked_rounds(self):
        """crash_test.py has the other failpoints, in runs in the clear."""
        here = [
            point
            for point in failpoints("server") + failpoints("client")
            if point.startswith(("masked.", "attempt."))
        ]
        self.assertEqual(
            set(here),
            {"masked.logged", "masked.before_accepted", "attempt.recorded", "attempt.masked"},
        )

    def test_each_side_says_why_it_does_not_take_part(self):
        federation = self.make()
        members = self.make_members(federation)
        refused = federation.server(*RUN, *CODEC, *MASKED, ready=False)
        self.expect_exit(refused, 1)
        self.assertIn("--members FILE", refused.stderr())
        server = federation.server(*RUN, *CODEC, *MASKED, "--members", members)
        plain = federation.client("a")
        self.expect_exit(plain, 1)
        self.assertIn("start fl-client with --members", plain.stderr())
        other_key = federation.client(
            "a", "--members", members, "--site-key", federation.folder / "b.key"
        )
        self.expect_exit(other_key, 1)
        self.assertRegex(other_key.stderr(), "site key")
        server.kill()
        clear = federation.server(*RUN)
        careful = self.masked_client(federation, "a", members)
        self.expect_exit(careful, 1)
        self.assertIn("it takes part in masked runs only", careful.stderr())
        clear.kill()

    def test_a_changed_list_waits_for_a_person(self):
        federation = self.make()
        first = self.make_members(federation)
        server = federation.server(*RUN, *CODEC, *MASKED, "--members", first)
        clients = [self.masked_client(federation, name, self.signer) for name in self.names]
        wait_until("a round is recorded", lambda: federation.rounds_done() > 0)
        server.kill()
        for client in clients:
            client.kill()
        digest = re.search(
            r"[0-9a-f]{64}",
            self.run_command(
                BIN / "fl-client", "members", "show", "--state", federation.folder / "a"
            ).stdout,
        )[0]
        second = self.make_members(
            federation, f"epoch 2\nbefore {digest}", names=("a", "b", "c", "d")
        )
        server = federation.server("--members", second)
        waiting = self.masked_client(federation, "a", self.signer)
        self.expect_exit(waiting, 1)
        self.assertIn("fl-client members approve", waiting.stderr())
        wanted = re.search("members approve ([0-9a-f]{64})", waiting.stderr())[1]
        for name in self.names:
            if name != "a":
                self.expect_exit(self.masked_client(federation, name, self.signer), 1)
            state = ("--state", federation.folder / name)
            shown = self.run_command(BIN / "fl-client", "members", "show", *state)
            self.assertIn("d", shown.stdout)
            wrong = self.run_command(BIN / "fl-client", "members", "approve", "0" * 64, *state)
            self.assertEqual(wrong.returncode, 1)
            right = self.run_command(BIN / "fl-client", "members", "approve", wanted, *state)
            self.assertEqual(right.returncode, 0, right.stderr)
        clients = [self.masked_client(federation, name, self.signer) for name in self.names]
        self.expect_exit(server)
        for client in clients:
            self.expect_exit(client)
        self.assertEqual(federation.rounds_done(), 3)


if __name__ == "__main__":
    unittest.main()
