# SPDX-License-Identifier: Apache-2.0
"""fl-sim whose trainers are programs of the user's, each of which plays many clients. The program is
tests/client/learn/scripted_trainer.py: client k has 40 + k examples and adds 1 + k in each round.
"""

import os
import pathlib
import signal
import struct
import subprocess
import unittest

from federation import BIN, SOURCE, FederationTest, wait_until

SCRIPT = SOURCE / "tests/client/learn/scripted_trainer.py"
CLIENTS = 7
METHODS = [
    ("--strategy", "scaffold", "--codec", "kbit:8+ef", "--clients-per-round", 4),
    ("--strategy", "fedavg:personal=b", "--codec", "delta+kbit:8"),
    ("--strategy", "ditto:lambda=0.5", "--downlink-codec", "kbit:8"),
]


def values_of(path):
    """All values of a safetensors file of fp32, as they lie in it."""
    data = pathlib.Path(path).read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    raw = data[8 + size :]
    return struct.unpack(f"<{len(raw) // 4}f", raw)


def workers_of(program):
    """The processes that fl-sim has started."""
    lines = subprocess.run(
        ["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True
    ).stdout.splitlines()[1:]
    rows = [line.split(None, 2) for line in lines]
    return [
        int(pid) for pid, parent, what in rows if int(parent) == program.pid and SCRIPT.name in what
    ]


def are_gone(pids):
    return not any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids)


class SimulatedTrainers(FederationTest):
    def flags(self, federation, *more, mode="-", rounds=4, workers=2):
        return (
            *("--state", federation.state, "--clients", CLIENTS, "--rounds", rounds, "--seed", 5),
            *("--threads", workers, "--trainer", f"exec python3 {SCRIPT} {mode}"),
            *(
                "--trainer-env",
                "CLIENTS=30",
                "--trainer-env",
                f"STARTS={federation.folder / 'starts'}",
            ),
            *more,
        )

    def simulate(self, federation, *more, **how):
        code, _, err = federation.command("fl-sim", *self.flags(federation, *more, **how))
        self.assertEqual(code, 0, err)
        return federation.query(
            "SELECT round, model_digest FROM round_summary"
            " WHERE run_id = (SELECT max(id) FROM run) ORDER BY round"
        )

    def start(self, federation, *more, **how):
        return federation.start("sim", [BIN / "fl-sim", *self.flags(federation, *more, **how)])

    def trained(self, federation, after):
        """How many updates the newest run has had so far; 0 if that is no newer than run `after`."""
        counted = (
            "SELECT count(*) FROM task WHERE state = 'accepted' AND run_id = "
            "(SELECT max(id) FROM run) AND run_id > ?"
        )
        return federation.query(counted, after)[0][0]

    def newest(self, federation):
        return federation.query("SELECT max(id) FROM run")[0][0]

    def starts(self, federation):
        return len((federation.folder / "starts").read_text().splitlines())

    def test_each_client_counts_and_keeps_what_is_its_own(self):
        federation = self.make()
        digests = self.simulate(federation, "--codec", "none")
        examples = [40 + k for k in range(CLIENTS)]
        step = sum(n * (1 + k) for k, n in enumerate(examples)) / sum(examples)
        ((file,),) = federation.query("SELECT file FROM checkpoint ORDER BY version DESC LIMIT 1")
        for value in values_of(federation.checkpoints / file):
            self.assertAlmostEqual(value, 5 + 4 * step, places=4)
        counted = federation.query("SELECT DISTINCT client, examples FROM task ORDER BY client")
        self.assertEqual(counted, [(f"client-{k + 1}", n) for k, n in enumerate(examples)])
        measured = federation.query(
            "SELECT version, examples, value FROM metric WHERE name = 'loss' ORDER BY version"
        )
        self.assertEqual([version for version, _, _ in measured], [0, 1, 2, 3, 4])
        self.assertEqual({examples for _, examples, _ in measured}, {30})
        self.assertAlmostEqual(measured[-1][2], 5 + 4 * step, places=4)
        for k in range(CLIENTS):
            lines = (federation.state / f"clients/client-{k + 1}/trained").read_text().splitlines()
            self.assertEqual(lines, [f"{round} {k} {CLIENTS}" for round in (1, 2, 3, 4)])
        self.assertEqual(self.starts(federation), 2)
        self.assertEqual(self.simulate(federation, "--codec", "none", workers=1), digests)

    def test_the_number_of_workers_does_not_change_the_result(self):
        federation = self.make()
        for flags in METHODS:
            with self.subTest(flags=flags):
                # Without central data, as an evaluator has no personal tensors.
                flags = (*flags, "--trainer-env", "CLIENTS=0")
                alone = self.simulate(federation, *flags, workers=1)
                self.assertEqual(len({digest for _, digest in alone}), 4)
                self.assertEqual(self.simulate(federation, *flags, workers=3), alone)

    def test_a_worker_that_is_killed_is_started_again(self):
        federation = self.make()
        all_of_them = ("--min-clients", CLIENTS)
        undisturbed = self.simulate(federation, *all_of_them)
        (federation.folder / "starts").unlink()
        before = self.newest(federation)
        program = self.start(federation, *all_of_them, "--trainer-env", "SECONDS=0.1")
        wait_until("a round is done", lambda: self.trained(federation, before) > CLIENTS)
        os.kill(workers_of(program)[0], signal.SIGKILL)
        self.expect_exit(program)
        self.assertEqual(self.starts(federation), 3)
        digests = federation.query(
            "SELECT round, model_digest FROM round_summary"
            " WHERE run_id = (SELECT max(id) FROM run) ORDER BY round"
        )
        self.assertEqual(digests, undisturbed)

    def test_failures_end_the_simulation_with_the_reason(self):
        federation = self.make()
        always = ("--trainer-env", "ALWAYS=1")
        for mode, said in (
            ("error", r"failed [3-5] times in a row at 'train'"),
            ("exit-at-start", "exit status 1: ModuleNotFoundError: No module named 'torch'"),
        ):
            with self.subTest(mode=mode):
                program = self.start(federation, *always, mode=mode)
                self.expect_exit(program, 1)
                self.assertRegex(program.stderr(), said)
        self.assertIn("ValueError: odd labels", self.last_error(federation, *always, mode="error"))

    def last_error(self, federation, *more, **how):
        code, _, err = federation.command("fl-sim", *self.flags(federation, *more, **how))
        self.assertEqual(code, 1)
        return err.splitlines()[-1]

    def test_what_does_not_fit_is_refused(self):
        federation = self.make()
        path = federation.folder / "initial.safetensors"
        maker = ("--trainer", f"python3 {SCRIPT} -", "initial-weights", path)
        self.expect_exit(federation.client("maker", *maker))
        other = ("--trainer-env", "FROZEN=abc0", "--initial-weights", path)
        self.assertIn(
            "has other tensors than the trainer's model", self.last_error(federation, *other)
        )
        silent = ("--trainer-env", "SUPPORTS=optimizer")
        self.assertIn("does not support 'initial'", self.last_error(federation, *silent))
        self.assertIn("finished", self.state_after(federation, *silent, "--initial-weights", path))
        flags = ("--clients", 3, "--state", federation.state)
        for more, said in (
            (("--trainer", f"python3 {SCRIPT}"), 'hello must have "clients": true'),
            (("--trainer", "x", "--data", "fashion-mnist"), "your trainer has data"),
            (("--trainer", "x", "--test", "fashion-mnist:test"), "your trainer has data"),
            (("--trainer", "x", "--model", "lenet"), "--model"),
            (("--model", "custom:mine"), "--trainer COMMAND"),
        ):
            with self.subTest(more=more):
                code, _, err = federation.command("fl-sim", *flags, *more)
                self.assertGreater(code, 0)
                self.assertIn(said, err)

    def state_after(self, federation, *flags):
        self.simulate(federation, *flags)
        return federation.query("SELECT state FROM run ORDER BY id DESC LIMIT 1")[0]

    def test_no_worker_outlives_the_simulation(self):
        federation = self.make()
        # In this order, as the next start removes what a kill leaves in /dev/shm.
        for number in (signal.SIGKILL, signal.SIGINT):
            with self.subTest(signal=number):
                slow = ("--trainer-env", "SECONDS=0.5")
                before = self.newest(federation)
                program = self.start(federation, *slow, rounds=1000)
                wait_until("it trains", lambda: self.trained(federation, before) > 0)
                workers = workers_of(program)
                self.assertEqual(len(workers), 2)
                program.signal(number)
                self.assertEqual(program.wait(), 0 if number == signal.SIGINT else -signal.SIGKILL)
                wait_until("the workers are gone", lambda: are_gone(workers))

    def test_a_start_can_be_stopped(self):
        federation = self.make()
        program = self.start(federation, mode="silent-start")
        wait_until("the workers have started", lambda: len(workers_of(program)) == 2)
        workers = workers_of(program)
        program.signal(signal.SIGINT)
        self.expect_exit(program)
        self.assertTrue(are_gone(workers))

    def test_a_command_for_each_request(self):
        federation = self.make()
        once = ("--trainer-once", f"python3 {SCRIPT} once", "--trainer-env", "CLIENTS=30")
        flags = ("--state", federation.state, "--clients", 3, "--rounds", 2, "--threads", 2)
        code, _, err = federation.command("fl-sim", *flags, *once)
        self.assertEqual(code, 0, err)
        digest = federation.digests()
        code, _, err = federation.command(
            "fl-sim", *flags, "--trainer", f"python3 {SCRIPT} -", *once[2:]
        )
        self.assertEqual(code, 0, err)
        self.assertEqual(len(digest), 3)
        self.assertEqual(federation.digests(), digest)


if __name__ == "__main__":
    unittest.main()
