# SPDX-License-Identifier: Apache-2.0
"""Whole runs whose trainers are programs of the user's (docs/design/trainer-protocol.md). The program
is tests/client/learn/scripted_trainer.py, which adds 1 to each weight in each round: whatever happens
on the way, version r is the initial weights plus r."""

import ctypes
import os
import pathlib
import signal
import struct
import subprocess
import unittest

from federation import SOURCE, FederationTest, wait_until

SCRIPT = SOURCE / "tests/client/learn/scripted_trainer.py"


def trainer(mode="-"):
    return ("--trainer", f"python3 {SCRIPT} {mode}")


def values_of(path):
    """All values of a safetensors file of fp32, as they lie in it."""
    data = pathlib.Path(path).read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    raw = data[8 + size :]
    return struct.unpack(f"<{len(raw) // 4}f", raw)


def children_of(pid):
    """Processes that run the script for the client `pid`."""
    lines = subprocess.run(
        ["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True
    ).stdout.splitlines()[1:]
    rows = [line.split(None, 2) for line in lines]
    return [int(row[0]) for row in rows if int(row[1]) == pid and SCRIPT.name in row[2]]


class Xxh128(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def folders_in_memory(federation):
    """The folders for tensors of this federation's clients. Their names follow from the state
    folders, so those of other tests that run at the same time are told apart."""
    hash_of = ctypes.CDLL("libxxhash.so.0").XXH3_128bits
    hash_of.restype, hash_of.argtypes = Xxh128, [ctypes.c_char_p, ctypes.c_size_t]
    states = [os.fsencode(path.resolve()) for path in federation.folder.iterdir() if path.is_dir()]
    digits = [f"{hash_of(state, len(state)).high:016x}"[:12] for state in states]
    folders = [pathlib.Path(f"/dev/shm/tributary-{os.geteuid()}-{twelve}") for twelve in digits]
    return [folder for folder in folders if folder.exists()]


class Trainers(FederationTest):
    evaluators = ("c",)

    def begin(self, federation, *flags, rounds=4, failpoint=""):
        """Makes the initial weights and starts a server with them."""
        path = federation.folder / "initial.safetensors"
        if not path.exists():
            maker = federation.client("maker", *trainer(), "initial-weights", path, "--seed", 5)
            self.expect_exit(maker)
        return federation.server(
            *("--new-run", "--model", "custom:scripted", "--initial-weights", path),
            *("--rounds", rounds, "--min-clients", 2, *flags),
            failpoint=failpoint,
        )

    def last_values(self, federation):
        (file,) = federation.query(
            "SELECT file FROM checkpoint ORDER BY run_id DESC, version DESC LIMIT 1"
        )[0]
        return values_of(federation.checkpoints / file)

    def test_a_run_of_all_kinds_of_programs(self):
        federation = self.make()
        server = self.begin(federation, "--target-examples", 1)
        clients = [
            federation.client("a", *trainer()),
            federation.client("b", "--trainer-once", f"python3 {SCRIPT} once"),
            federation.client("c", *trainer(), "--evaluate-only"),
        ]
        for program in [server, *clients]:
            self.expect_exit(program)
        self.assertEqual(self.last_values(federation), (9.0,) * 8)
        measured = federation.query(
            "SELECT version, value FROM evaluation WHERE name = 'loss' ORDER BY version"
        )
        self.assertEqual([value for _, value in measured], [5.0, 6.0, 7.0, 8.0, 9.0])
        self.assertIn("trainer: training round 1", clients[0].stderr())
        self.assertEqual(folders_in_memory(federation), [])

    def test_the_best_model_is_kept_and_exported_however_early_it_was(self):
        """The loss is the weights' value, which grows: the initial model is the best. The server is
        killed where files go."""
        federation = self.make()
        few = ("--target-examples", 1, "--keep-checkpoints", 1, "--metric", "loss")
        file = federation.folder / "best.safetensors"
        for place in ("round.committed:3", "run.versions_dropped"):
            with self.subTest(place):
                server = self.begin(federation, *few, failpoint=place)
                if not file.exists():
                    code, _, err = federation.server_command("export", "--best", file)
                    self.assertEqual(code, 1)
                    self.assertIn("so none is the best", err)
                    self.assertIn("--evaluate-only", err)
                judge = federation.client("c", *trainer(), "--evaluate-only")
                server.wait_for("c is here: evaluator")
                others = [federation.client(name, *trainer()) for name in "ab"]
                self.assertEqual(server.wait(), -signal.SIGKILL)
                server = federation.server()
                for program in [server, judge, *others]:
                    self.expect_exit(program)
                self.assertIn("best: version 0, loss 5.0000", server.stdout())
                code, out, err = federation.server_command("export", "--best", file)
                self.assertEqual(code, 0, err)
                self.assertIn("after round 0 (loss 5.0000)", out)
                self.assertEqual(values_of(file), (5.0,) * 8)
                self.assertIn('"metric":"loss"', file.read_bytes().decode(errors="replace"))
                files = sorted(path.name for path in federation.checkpoints.glob("round-*"))
                self.assertEqual(files, ["round-000000.safetensors", "round-000004.safetensors"])

        server = self.begin(federation, *few, "--keep-best", "off")
        judge = federation.client("c", *trainer(), "--evaluate-only")
        server.wait_for("c is here: evaluator")
        for program in [server, judge, *[federation.client(name, *trainer()) for name in "ab"]]:
            self.expect_exit(program)
        files = sorted(path.name for path in federation.checkpoints.glob("round-*"))
        self.assertEqual(files, ["round-000004.safetensors"])
        code, _, err = federation.server_command("export", "--best", file)
        self.assertEqual(code, 1)
        self.assertRegex(err, "is not on the disk any more: the best that is left is version 4, .*--round 4")

    def test_programs_train_a_built_in_model_whatever_the_order_of_its_tensors(self):
        """The model has its weight before its bias."""
        federation = self.make()
        server = federation.server("--new-run", "--model", "logistic", "--rounds", 3, "--min-clients", 2)
        orders = ('{"fc.bias": [10], "fc.weight": [10, 784]}', '{"fc.weight": [10, 784], "fc.bias": [10]}')
        clients = [
            federation.client(name, *trainer(), "--trainer-env", f"TENSORS={order}")
            for name, order in zip("ab", orders)
        ]
        for program in [server, *clients]:
            self.expect_exit(program, limit_s=60)
        first, last = (
            values_of(federation.checkpoints / file)
            for (file,) in federation.query(
                "SELECT file FROM checkpoint WHERE version IN (0, 3) ORDER BY version"
            )
        )
        self.assertEqual(len(last), 7850)
        for before, after in zip(first, last):
            self.assertAlmostEqual(after, before + 3, places=5)

    def test_methods_and_codecs_work_through_it(self):
        federation = self.make()
        for flags in (
            ("--strategy", "scaffold"),
            ("--strategy", "fedprox:mu=0.1"),
            ("--strategy", "fedavg:personal=b"),
            ("--strategy", "ditto:lambda=0.5"),
            ("--codec", "kbit:8+ef", "--downlink-codec", "kbit:8"),
            ("--codec", "delta+kbit:8"),
            ("--mode", "async:buffer=2"),
        ):
            with self.subTest(flags=flags):
                server = self.begin(federation, *flags, rounds=3)
                clients = [federation.client(name, *trainer()) for name in "ab"]
                for program in [server, *clients]:
                    self.expect_exit(program)
                for value in self.last_values(federation)[:2]:
                    self.assertLess(abs(value - 8), 0.2)

    def test_whatever_is_killed_the_model_is_the_same(self):
        federation = self.make()
        server = self.begin(federation, rounds=8)
        slow = ("--trainer-env", "SECONDS=0.2")
        clients = {name: federation.client(name, *trainer(), *slow) for name in "ab"}
        wait_until("a round is done", lambda: federation.rounds_done() >= 1)
        for pid in children_of(clients["a"].pid):
            os.kill(pid, signal.SIGKILL)
        wait_until("another round is done", lambda: federation.rounds_done() >= 3)
        orphans = children_of(clients["b"].pid)
        self.assertEqual(len(orphans), 1)
        clients["b"].kill()
        wait_until("its trainer is gone", lambda: not pathlib.Path(f"/proc/{orphans[0]}").exists())
        clients["b"] = federation.client("b", *trainer(), *slow)
        wait_until("another round is done", lambda: federation.rounds_done() >= 5)
        server.kill()
        server = federation.server()
        for program in [server, *clients.values()]:
            self.expect_exit(program)
        self.assertEqual(self.last_values(federation), (13.0,) * 8)
        self.assertIn("killed by signal 9", clients["a"].stderr())
        self.assertEqual(folders_in_memory(federation), [])

    def test_failures_are_told_and_end_the_client_if_they_come_again(self):
        federation = self.make()
        server = self.begin(federation, "--min-clients", 1, "--rounds", 3)
        always = ("--trainer-env", "ALWAYS=1", "--trainer-retries", 2)
        bad = federation.client("b", *trainer("error"), *always)
        self.expect_exit(bad, 1)
        good = federation.client("a", *trainer())
        self.assertIn("failed 2 times in a row", bad.stderr())
        self.assertIn("ValueError: odd labels", bad.stderr())
        self.expect_exit(server)
        self.expect_exit(good)
        self.assertEqual(self.last_values(federation), (8.0,) * 8)
        reasons = federation.query("SELECT text FROM event WHERE text LIKE '%odd labels%'")
        self.assertTrue(reasons)

    def test_a_start_that_fails_names_the_reason(self):
        federation = self.make()
        client = federation.client("a", *trainer("exit-at-start"), "--trainer-retries", 1)
        self.expect_exit(client, 1)
        self.assertIn("exit status 1: ModuleNotFoundError: No module named 'torch'", client.stderr())

    def test_a_start_can_be_stopped(self):
        federation = self.make()
        client = federation.client("a", "--trainer", "echo it starts; sleep 1000")
        client.wait_for("trainer: it starts")
        client.signal(signal.SIGINT)
        self.expect_exit(client)
        self.assertIn("stopped", client.stderr())

    def test_members_with_other_frozen_weights_take_no_part(self):
        federation = self.make()
        path = federation.folder / "initial.safetensors"
        frozen = ("--trainer-env", "FROZEN=abc0")
        self.expect_exit(federation.client("maker", *trainer(), *frozen, "initial-weights", path))
        server = self.begin(federation, rounds=2)
        others = federation.client("c", *trainer(), "--trainer-env", "FROZEN=abc1", "--evaluate-only")
        self.expect_exit(others, 1)
        self.assertIn("frozen.abc", others.stderr())
        clients = [federation.client(name, *trainer(), *frozen) for name in "ab"]
        for program in [server, *clients]:
            self.expect_exit(program)
        self.assertEqual(self.last_values(federation), (2.0,) * 8)

    def test_a_method_that_the_trainer_cannot_do_is_refused(self):
        federation = self.make()
        self.begin(federation, "--strategy", "scaffold")
        client = federation.client("a", *trainer(), "--trainer-env", "SUPPORTS=initial")
        self.expect_exit(client, 1)
        self.assertIn("needs a trainer that supports 'optimizer'", client.stderr())

    def test_stopping_ends_the_program_too(self):
        federation = self.make()
        self.begin(federation, "--min-clients", 1, "--rounds", 1000)
        client = federation.client("a", *trainer(), "--trainer-env", "SECONDS=0.5")
        wait_until("a round is done", lambda: federation.rounds_done() >= 1)
        children = children_of(client.pid)
        client.signal(signal.SIGINT)
        self.expect_exit(client)
        for pid in children:
            self.assertFalse(pathlib.Path(f"/proc/{pid}").exists())

    def test_a_client_that_stays_trains_the_next_run_with_the_same_program(self):
        federation = self.make()
        server = self.begin(federation, "--stay", rounds=2)
        clients = [federation.client(name, "--stay", *trainer()) for name in "ab"]
        server.wait_for("waiting for another run")
        programs = [children_of(client.pid) for client in clients]
        self.assertEqual([len(found) for found in programs], [1, 1])
        self.assertEqual(len(folders_in_memory(federation)), 2)
        code, out, error = federation.server_command("queue", "--rounds", 3, "--codec", "none")
        self.assertEqual(code, 0, error)
        self.assertIn("the model is that of run 2", out)
        self.assertNotIn("other tensors", error)
        over = "SELECT count(*) FROM run WHERE state = 'finished'"
        wait_until("the second run is over", lambda: federation.query(over) == [(2,)])
        self.assertEqual([children_of(client.pid) for client in clients], programs)
        tasks = federation.query(
            "SELECT run_id, client, count(*) FROM task WHERE state = 'accepted'"
            " GROUP BY run_id, client ORDER BY run_id, client"
        )
        self.assertEqual([row[1:] for row in tasks], [("a", 2), ("b", 2), ("a", 3), ("b", 3)])
        self.assertEqual(self.last_values(federation)[:8], (8.0,) * 8)
        code, _, error = federation.server_command("queue", "--model", "synthetic:9", "--rounds", 1)
        self.assertEqual(code, 0, error)
        for name in "ab":
            self.assertIn(f"the trainer of {name} has other tensors", error)
        # They stay for a run whose tensors are theirs.
        for client in clients:
            client.wait_for("; waiting for the next run")
        for program in [*clients, server]:
            program.signal(signal.SIGTERM)
            self.expect_exit(program)
        self.assertEqual([children_of(client.pid) for client in clients], [[], []])
        self.assertEqual(folders_in_memory(federation), [])

    def test_a_program_that_somebody_else_starts(self):
        federation = self.make()
        server = self.begin(federation, rounds=2)
        path = federation.folder / "socket"
        clients = [federation.client("a", "--trainer-socket", path), federation.client("b", *trainer())]
        wait_until("the socket is there", path.exists)
        program = federation.start("trainer", ["env", f"TRIBUTARY_SOCKET={path}", "python3", SCRIPT])
        for one in [server, *clients, program]:
            self.expect_exit(one)
        self.assertFalse(path.exists())
        self.assertEqual(self.last_values(federation), (7.0,) * 8)

    def test_wrong_flags(self):
        federation = self.make()
        for flags, said in (
            ((*trainer(), "--data", "fashion-mnist"), "your trainer has data and devices"),
            ((*trainer(), "--trainer-once", "x"), "excludes"),
            ((*trainer(), "--trainer-env", "x"), "not NAME=VALUE"),
            (("initial-weights", "x.safetensors"), "--trainer"),
        ):
            with self.subTest(flags=flags):
                code, _, err = federation.command("fl-client", *map(str, flags))
                self.assertNotEqual(code, 0)
                self.assertIn(said, err)


if __name__ == "__main__":
    unittest.main()
