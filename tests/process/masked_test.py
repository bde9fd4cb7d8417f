# SPDX-License-Identifier: Apache-2.0
"""Masked runs of the real programs: they make the model of a run in the clear, also when programs are
killed, and what does not fit is refused where a person can read it."""

import re
import subprocess
import unittest

from federation import BIN, FederationTest, failpoints, wait_until

RUN = ("--new-run", "--model", "synthetic:5000", "--rounds", 3, "--min-clients", 3, "--lr", "0.05", "--seed", 7)
CODEC = ("--codec", "lanes:6+ef", "--weights", "equal")
MASKED = ("--secure-aggregation", "on:step-seconds=5")


class Masked(FederationTest):
    names = ("a", "b", "c")

    def run_command(self, *arguments):
        return subprocess.run(
            [str(part) for part in arguments], capture_output=True, text=True, timeout=60
        )

    def make_key(self, path):
        made = self.run_command(BIN / "fl-client", "site-key", "--key", path)
        self.assertEqual(made.returncode, 0, made.stderr)
        return re.search(r"\b[0-9a-f]{64}\b", made.stdout)[0]

    def sign(self, path, text):
        path.write_text(text)
        key = self.folder_of_signer / "anna.key"
        signed = self.run_command(BIN / "fl-server", "members", "sign", path, "--key", key)
        self.assertEqual(signed.returncode, 0, signed.stderr)

    def make_members(self, federation, epoch="epoch 1", names=names):
        """Site keys, and a signed list of these members."""
        self.folder_of_signer = federation.folder
        if not (federation.folder / "anna.key").exists():
            self.signer = self.make_key(federation.folder / "anna.key")
            self.keys = {}
        for name in names:
            if name not in self.keys:
                self.keys[name] = self.make_key(federation.folder / f"{name}.key")
        lines = ["tributary-members 1", epoch, "smallest-cohort 3", "needs 1"]
        lines.append(f"signer anna {self.signer}")
        lines += [f"member {name} {self.keys[name]}" for name in names]
        path = federation.folder / f"members-{epoch.split()[1]}.txt"
        self.sign(path, "\n".join(lines) + "\n")
        return path

    def masked_client(self, federation, name, members, *flags, failpoint=""):
        site_key = federation.folder / f"{name}.key"
        return federation.client(
            name, "--members", members, "--site-key", site_key, *flags, failpoint=failpoint
        )

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
