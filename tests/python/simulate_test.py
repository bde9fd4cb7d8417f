# SPDX-License-Identifier: Apache-2.0
"""simulate() with models in numpy, by the real fl-sim."""

import contextlib
import importlib.util
import io
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest
import uuid
import weakref

import numpy as np

import fake_agent
import hang_watch
from runs import Runs

from federation import BIN, wait_until

import tributary_fl as fl
from tributary_fl._players import TRAINERS_KEPT, Players
from tributary_fl.numpy import Trainer

# As a program it is the trainer of one client, of an fl-sim's clients, or a simulation.
LINEAR = """
import sys
import numpy as np
import tributary_fl as fl
from tributary_fl.numpy import Trainer

class Linear(Trainer):
    def __init__(self, client):
        draw = np.random.default_rng(client)
        self.x = draw.standard_normal((200 + 10 * client, 12)).astype(np.float32)
        self.y = self.x @ np.linspace(-1, 1, 12, dtype=np.float32)
        super().__init__({"w": np.zeros(12, np.float32)}, len(self.y))

    def train(self, weights, task):
        order = np.random.default_rng(task.seed).permutation(len(self.y))
        for step in range(4):
            part = order[step * 40 : step * 40 + 40]
            error = self.x[part] @ weights["w"] - self.y[part]
            weights["w"] = weights["w"] - 0.1 / 40 * self.x[part].T @ error
        return fl.TrainReport(4, np.square(error).mean())

if __name__ == "__main__":
    if sys.argv[1] == "simulate":
        fl.simulate(Linear, 3, rounds=int(sys.argv[3]), state=sys.argv[2])
    fl.run(Linear(int(sys.argv[1])), state=sys.argv[2])
"""


class Constant(Trainer):
    """A client whose update is its number plus 1. It counts its rounds in its folder, and reports
    them as loss."""

    def __init__(self, client, examples=10, holdout=0, size=4, metrics=()):
        weights = {"w": np.zeros(size, np.float32)}
        metrics = [fl.MetricInfo("mean", "lower")] if holdout else metrics
        super().__init__(weights, examples, holdout, metrics=metrics)
        self.client, self.holdout = client, holdout

    def train(self, weights, task):
        folder = pathlib.Path(self.state_folder)
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "rounds", "a", encoding="utf-8") as file:
            print(self.client, file=file)
        mine = (folder / "rounds").read_text(encoding="utf-8").split()
        assert set(mine) == {str(self.client)}
        weights["w"] = weights["w"] + self.client + 1
        return fl.TrainReport(1, len(mine))

    def evaluate(self, weights, task):
        return fl.EvalReport(self.holdout, 0.5, {"mean": float(weights["w"].mean())})


def newest(frames):
    """The rounds, tasks and evaluations of the newest run."""
    run = frames.runs["id"].max()
    return [f[f["run_id"] == run] for f in (frames.rounds, frames.tasks, frames.evaluations)]


class Played(unittest.TestCase):
    """The part without fl-sim."""

    def task(self, kind, **members):
        return fl.Task({"type": kind, **members})

    def test_only_the_last_trainers_are_kept(self):
        made = []

        def factory(client):
            trainer = Constant(client, examples=client + 1)
            made.append(weakref.ref(trainer))
            return trainer

        players = Players(factory)
        self.assertTrue(players.hello().plays_clients)
        for client in range(60):
            said = players.on_client(self.task("client", client=client, state="x"))
            self.assertEqual(said["train_examples"], client + 1)
        self.assertEqual(len(made), 60)
        self.assertLessEqual(sum(one() is not None for one in made), TRAINERS_KEPT)
        players.on_client(self.task("client", client=59, state="x"))
        self.assertEqual(len(made), 60)

    def test_all_must_have_one_model(self):
        players = Players(lambda client: Constant(client, size=4 + client // 7))
        players.on_client(self.task("client", client=6, state="x"))
        with self.assertRaisesRegex(ValueError, "client 7 has another model"):
            players.on_client(self.task("client", client=7, state="x"))
        with self.assertRaisesRegex(ValueError, "the evaluator has another model"):
            Players(Constant, Constant(0, holdout=3, size=9)).hello()


class Simulations(Runs):
    names = ("client-1", "client-2", "client-3")  # As fl-sim calls them.

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory(prefix="tributary-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.state = self.folder / "state"

    def simulate(self, factory, *args, **how):
        how.setdefault("state", self.state)
        return newest(fl.simulate(factory, *args, log=self.folder / "log", **how))

    def script(self):
        path = self.folder / "linear.py"
        path.write_text(LINEAR)
        return path

    def digests(self, federation):
        federation_state = fl.history(federation.state)
        return list(newest(federation_state)[0]["model_digest"])

    def test_the_model_is_that_of_the_real_programs(self):
        script = self.script()
        spec = importlib.util.spec_from_file_location("linear", script)
        linear = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(linear)
        flags = ["--codec", "kbit:4+ef", "--downlink-codec", "kbit:8", "--seed", "5"]
        simulated = []
        for workers in (1, 2):
            rounds, _, _ = self.simulate(linear.Linear, 3, rounds=4, workers=workers, options=flags)
            simulated.append(list(rounds["model_digest"]))
        self.assertEqual(len(set(simulated[0])), 4)
        self.assertEqual(simulated[0], simulated[1])

        # fl-sim starts the program.
        program = f"{sys.executable} {script} simulate - 4"
        flags_of_sim = ("--clients", 3, "--rounds", 4, "--trainer", program, *flags)
        federation = self.make()
        code, _, err = federation.command("fl-sim", "--state", federation.state, *flags_of_sim)
        self.assertEqual(code, 0, err)
        self.assertEqual(self.digests(federation), simulated[0])

        # And without fl-sim.
        server = federation.server(
            *("--new-run", "--model", "custom:linear", "--rounds", 4, "--min-clients", 3, *flags),
            *("--initial-weights", self.state / "initial-weights.safetensors", "--deadline", 0),
        )
        clients = []
        for number, name in enumerate(self.names):
            own = f"{sys.executable} {script} {number} {federation.folder / name}"
            clients.append(federation.client(name, "--trainer", own, "--threads", 1))
        for one in [server, *clients]:
            self.expect_exit(one)
        self.assertEqual(self.digests(federation), simulated[0])

    def test_clients_keep_what_is_theirs_and_every_version_is_measured(self):
        examples = [10 + k for k in range(40)]  # More clients than a worker keeps trainers.
        rounds, tasks, measured = self.simulate(
            lambda client: Constant(client, examples[client]),
            40,
            rounds=3,
            workers=2,
            evaluator=lambda: Constant(0, holdout=20),
            options=["--codec", "none"],
        )
        step = sum(n * (k + 1) for k, n in enumerate(examples)) / sum(examples)
        means = measured[measured["name"] == "mean"].sort_values("version")
        np.testing.assert_allclose(means["value"], [0, step, 2 * step, 3 * step], rtol=1e-5)
        self.assertEqual(set(means["examples"]), {20})
        self.assertEqual(list(rounds["clients_accepted"]), [40, 40, 40])
        for round in (1, 2, 3):
            self.assertEqual(set(tasks[tasks["round"] == round]["loss"]), {float(round)})
        (w,) = fl.load(self.state / "checkpoints" / "round-000003.safetensors").values()
        np.testing.assert_allclose(w, 3 * step, rtol=1e-5)

    def test_there_is_a_worker_for_each_core_but_no_more_than_clients(self):
        cores = os.sched_getaffinity(0)
        self.addCleanup(os.sched_setaffinity, 0, cores)
        for allowed, clients in (({min(cores)}, 3), (cores, 1)):
            os.sched_setaffinity(0, allowed)
            state = self.folder / f"state-{clients}"
            self.simulate(Constant, clients, rounds=1, state=state, options=["--codec", "none"])
            self.assertEqual(os.listdir(state / "workers"), ["1"])

    def test_without_central_data_the_clients_measure_on_their_own(self):
        flags = ["--codec", "none"]
        self.simulate(lambda client: Constant(client, 10, 5 + client), 3, rounds=2, options=flags)
        metrics = fl.history(self.state).metrics
        means = metrics[(metrics["name"] == "mean") & (metrics["version"] == 1)]
        self.assertEqual(
            sorted(zip(means["client"], means["examples"], means["value"])),
            [("client-1", 5, 2.0), ("client-2", 6, 2.0), ("client-3", 7, 2.0)],
        )

    def test_updates_whose_parts_differ_a_million_times(self):
        """The server then reads earlier uploads again, of which all together have 12 MB."""

        class Grows(Trainer):
            def __init__(self, client):
                weights = {"a": np.zeros(4, np.float32), "b": np.zeros(300_000, np.float32)}
                super().__init__(weights, 10)
                self.step = 1e-9 if client % 2 else 1.0

            def train(self, weights, task):
                weights["a"] = weights["a"] + np.float32(self.step)
                weights["b"] = weights["b"] + np.float32(1)
                return fl.TrainReport(1, 0.0)

        self.simulate(Grows, 10, rounds=4, workers=1, options=["--codec", "none"])
        weights = fl.load(self.state / "checkpoints" / "round-000004.safetensors")
        np.testing.assert_allclose(weights["a"], 2.0, rtol=1e-5)

    def test_errors_name_their_reason(self):
        class Raises(Constant):
            def train(self, weights, task):
                raise ValueError(f"odd labels of {self.client}")

        def no_data(client):
            raise FileNotFoundError(f"part-{client}.npz")

        def lacks_some(client):
            return no_data(client) if client == 2 else Constant(client)

        for factory, evaluator, said in (
            (Raises, None, r"failed \d times in a row at 'train'.*ValueError: odd labels of \d"),
            (no_data, None, "can't begin: FileNotFoundError: part-0.npz"),
            (lacks_some, None, "client-3: .*FileNotFoundError: part-2.npz"),
            (lambda client: Constant(client, size=client + 1), None, "has another model"),
            (
                lambda client: Constant(client, examples=0),
                None,
                r"client \d has no training examples",
            ),
            (Constant, Constant(0, holdout=5, size=9), "the evaluator has another model"),
            (lambda client: Constant(client, metrics=["loss"]), None, "name 'loss' is reserved"),
        ):
            # The workers' tracebacks are not the test's.
            elsewhere = contextlib.redirect_stderr(io.StringIO())
            with self.subTest(said=said), self.assertRaisesRegex(fl.Error, said), elsewhere:
                self.simulate(factory, 3, rounds=2, workers=1, evaluator=evaluator)
        with self.assertRaisesRegex(fl.Error, "rounds"):
            self.simulate(Constant, 3, rounds=0)

    def marked(self, mark):
        """The processes that have inherited this environment, by name."""
        found = {}
        for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark.encode() in path.read_bytes() and int(path.parts[2]) != os.getpid():
                    found[int(path.parts[2])] = path.with_name("comm").read_text().strip()
            except OSError:  # It has just ended, or is another user's.
                continue
        return found

    def test_however_it_ends_nothing_is_left(self):
        script = self.script()
        state = self.folder / "killed"
        # In this order, as the next start removes what a kill leaves in /dev/shm.
        for number, folder in (signal.SIGKILL, ""), (signal.SIGINT, "run-2"):
            with self.subTest(signal=number):
                mark = uuid.uuid4().hex
                late = state / "checkpoints" / folder / "round-000005.safetensors"
                command = [sys.executable, script, "simulate", state, "1000000"]
                environment = {**os.environ, "MARK": mark}
                with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as program:
                    wait_until("it runs", late.exists)
                    victims = [pid for pid, name in self.marked(mark).items()
                               if name != "fl-sim" and pid != program.pid]  # fmt: skip
                    self.assertGreaterEqual(len(victims), 1)
                    self.assertIn("fl-sim", self.marked(mark).values())
                    program.send_signal(number)
                    said = program.stderr.read().decode()
                if number == signal.SIGINT:
                    self.assertIn("KeyboardInterrupt", said)
                    runs = fl.history(state).runs
                    self.assertEqual(list(runs["state"]), ["stopped", "stopped"])
                wait_until("nothing is left", lambda: not self.marked(mark))

    def test_a_worker_that_is_killed_is_replaced(self):
        class Kills(Constant):
            def train(self, weights, task):
                first = pathlib.Path(self.state_folder).parent / "killed"
                if self.client == 1 and task.round == 2 and not first.exists():
                    first.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().train(weights, task)

        flags = ["--min-clients", "4", "--codec", "none"]
        rounds, tasks, _ = self.simulate(Kills, 4, rounds=3, workers=2, options=flags)
        self.assertTrue((self.state / "clients" / "killed").exists())
        self.assertEqual(list(rounds["clients_accepted"]), [4, 4, 4])
        (w,) = fl.load(self.state / "checkpoints" / "round-000003.safetensors").values()
        np.testing.assert_allclose(w, 7.5, rtol=1e-6)
        self.assertRegex((self.folder / "log").read_text(), "the trainer has gone during 'train'")


if __name__ == "__main__":
    hang_watch.start()
    unittest.main()
