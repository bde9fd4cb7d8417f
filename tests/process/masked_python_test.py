# SPDX-License-Identifier: Apache-2.0
"""A second implementation of a member, tests/secure/member.py, in masked runs with members of our own: the
server makes the model of a run in the clear, bit for bit."""

import os
import signal
import sys
import unittest

import numpy as np
from safetensors.numpy import save_file

from federation import SOURCE, wait_until
from member_lists import MASKED, MemberLists
from python_client_test import Examples

MEMBER = SOURCE / "tests" / "secure" / "member.py"
sys.path.append(str(MEMBER.parent))
from member import MemberList, Refused  # noqa: E402

COLUMNS = 70_000  # The update has two blocks.
ROUNDS = 3
SOON = ("--secure-aggregation", "on:step-seconds=1,attempts=9")


class MaskedPython(MemberLists, Examples):
    """In each run 'b' is the member in Python, except in those in the clear."""

    names = ("a", "b", "c", "d")
    clear = {}  # The digests of the versions of runs in the clear of a, b and c, by their codecs.

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for seed, name in enumerate(cls.names):
            draw = np.random.default_rng(seed)
            x = draw.standard_normal((4, COLUMNS)).astype(np.float32) / 100
            np.savez(cls.root / f"{name}.npz", x=x, y=x[:, 0] + seed)
        cls.initial = cls.root / "line.safetensors"
        save_file({"weight": np.zeros(1 + COLUMNS, np.float32)}, cls.initial)

    def setUp(self):
        super().setUp()
        os.environ["OPENBLAS_NUM_THREADS"] = "1"  # All train to the same bits.
        self.addCleanup(os.environ.pop, "OPENBLAS_NUM_THREADS")

    def start_server(self, federation, *flags, **options):
        model = ("--new-run", "--model", "custom:line", "--initial-weights", self.initial)
        flags = (*model, "--lr", 0.2, "--rounds", ROUNDS, "--min-clients", 3, *flags)
        return federation.server(*flags, **options)

    def trainer(self, name):
        program = SOURCE / "tests" / "process" / "line_trainer.py"
        return "--trainer", f"{sys.executable} {program} {self.root / f'{name}.npz'}"

    def our_member(self, federation, name, **options):
        flags = self.trainer(name)
        return self.masked_client(federation, name, self.members, *flags, **options)

    def python_member(self, federation, trusted=None):
        folder = federation.folder
        files = (folder / "member", self.root / "b.npz", folder / "b.key", trusted or self.members)
        command = [sys.executable, "-u", MEMBER, *files, federation.token("b")]
        return federation.start("member", command)

    def masked_server(self, federation, codec, *flags, **options):
        self.members = self.make_members(federation)
        flags = ("--codec", codec, *MASKED, "--members", self.members, *flags)
        return self.start_server(federation, *flags, **options)

    def clear_digests(self, codec):
        if codec not in self.clear:
            federation = self.make("clear")
            server = self.start_server(federation, "--codec", codec, "--weights", "equal")
            clients = [federation.client(name, *self.trainer(name)) for name in "abc"]
            self.clear[codec] = self.finish(federation, server, *clients)
        return self.clear[codec]

    def finish(self, federation, *programs):
        for program in programs:
            self.expect_exit(program)
        return federation.digests()

    def test_a_masked_run_makes_the_model_of_one_in_the_clear(self):
        federation = self.make()
        server = self.masked_server(federation, "lanes:6+ef")
        python = self.python_member(federation, self.signer)
        ours = [self.our_member(federation, name) for name in "ac"]
        digests = self.finish(federation, server, python, *ours)
        self.assertEqual(digests, self.clear_digests("lanes:6+ef"))
        self.assertEqual(len(set(digests)), 1 + ROUNDS)
        said = [f"round {number}: ACCEPTED" for number in range(1, 1 + ROUNDS)]
        self.assertEqual(python.stdout().splitlines(), said)

    def test_what_a_member_thinks_of_a_list(self):
        federation = self.make()
        text = self.make_members(federation).read_text()
        listed = MemberList("# ours\n\n" + text)
        listed.check_signed()
        for trusted in text, self.signer:
            listed.check_trusted(trusted)
        other = text.replace("smallest-cohort 3", "smallest-cohort 4")
        for trusted in other, self.keys["a"]:
            self.assertRaises(Refused, listed.check_trusted, trusted)
        for changed in other, text[: text.index("signature")]:
            self.assertRaises(Refused, MemberList(changed).check_signed)

    def test_a_failed_attempt_and_a_killed_server_do_not_change_the_model(self):
        federation = self.make()
        # In the first attempt it logs 7 messages, in the next one 8 before the first words.
        failpoint = "masked.logged:16"
        server = self.masked_server(federation, "lanes:6", *SOON, failpoint=failpoint)
        python, first = self.python_member(federation), self.our_member(federation, "a")
        killed = self.our_member(federation, "c", failpoint="attempt.recorded")
        server.wait_for("attempt 1 to add up masked updates has failed")
        self.assertFalse(killed.running())
        third = self.our_member(federation, "c")
        wait_until("the server is killed", lambda: not server.running())
        server = federation.server("--members", self.members)
        digests = self.finish(federation, server, python, first, third)
        self.assertEqual(digests, self.clear_digests("lanes:6"))

    def test_the_sum_is_opened_without_a_member_that_is_gone(self):
        """The fourth one comes in the first round, and is asked in the second."""
        federation = self.make()
        server = self.masked_server(federation, "lanes:6", *SOON)
        ours = [self.our_member(federation, name) for name in "ac"]
        for name in "ac":
            server.wait_for(f"{name} is here")
        ours[0].pause()
        python = self.python_member(federation)
        server.wait_for("asked 3 of 3 clients")
        gone = self.our_member(federation, "d", failpoint="attempt.masked")
        server.wait_for("d is here")
        ours[0].signal(signal.SIGCONT)
        # At its end the run would wait for the one that is gone.
        wait_until("all rounds are recorded", lambda: federation.rounds_done() == ROUNDS)
        self.assertFalse(gone.running())
        self.assertTrue(python.running(), str(python))
        self.assertIn("round 2: 4 members mask their updates", server.stderr())
        self.assertIn("round 2: opened the sum of 3 masked updates", server.stderr())
        self.assertEqual(federation.digests(), self.clear_digests("lanes:6"))


if __name__ == "__main__":
    unittest.main()
