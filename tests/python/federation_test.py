# SPDX-License-Identifier: Apache-2.0
"""Whole runs with the real programs and models of the user's in numpy (runs.py)."""

import contextlib
import json
import shlex
import sqlite3
import sys
import tempfile
import unittest

import numpy as np
import pandas

import fake_agent
from runs import Runs

import tributary_fl as fl
from tributary_fl import _history

NUMPY = """
import sys
import numpy as np
import tributary_fl as fl
from tributary_fl.numpy import Trainer

draw = np.random.default_rng(int(sys.argv[1]))
x = draw.standard_normal((300, 40)).astype(np.float32)
y = x @ np.linspace(-1, 1, 40, dtype=np.float32)


class Linear(Trainer):
    def train(self, weights, task):
        step, losses = 0, []
        while task.may_begin(step, 5):
            task.progress(step)
            part = np.arange(step * 50 % 250, step * 50 % 250 + 50)
            error = x[part] @ weights["w"] - y[part]
            losses.append(np.square(error).mean())
            weights["w"] -= 0.1 / 50 * x[part].T @ error
            step += 1
        return fl.TrainReport(step, np.mean(losses))

    def evaluate(self, weights, task):
        error = x[250:] @ weights["w"] - y[250:]
        near = (np.abs(error) < 0.5).mean()
        measured = {"mae": np.abs(error).mean(), "nähe (< 0.5)": near, "sd >= 0": error.std()}
        return fl.EvalReport(50, np.square(error).mean(), measured)


start = {"w": np.zeros(40, np.float32)}
metrics = ["mae", "nähe (< 0.5)", fl.MetricInfo("sd >= 0", "lower")]
if len(sys.argv) > 3:
    metrics = [fl.MetricInfo("mae", "higher")]
fl.run(Linear(start, 250, 50, metrics=metrics), state=sys.argv[2], threads=1)
"""


class Sink:
    """An experiment tracker that remembers."""

    def __init__(self):
        self.told, self.figures, self.is_closed = {}, {}, False

    def settings(self, settings):
        self.told = settings

    def log(self, values, round):
        self.figures.setdefault(round, {}).update(values)

    def close(self):
        self.is_closed = True


class NumpyRuns(Runs):
    def test_a_model_in_numpy_and_what_the_server_has_recorded_of_it(self):
        federation = self.check(NUMPY, "--target", "sd >= 0 <= 0")
        frames = fl.history(federation.state)
        run = frames.runs["id"].max()
        named = frames.runs.set_index("id").loc[run]
        self.assertEqual((named["model"], named["strategy"]), ("custom:mine", "fedavg"))
        self.assertEqual(named["codec"], json.loads(named["config_json"])["codec"])
        rounds = frames.rounds[frames.rounds["run_id"] == run]
        self.assertEqual(list(rounds["round"]), [1, 2, 3, 4, 5, 6])
        self.assertEqual(str(rounds["started_at"].dt.tz), "UTC")
        tasks = frames.tasks[frames.tasks["run_id"] == run]
        self.assertGreaterEqual(len(tasks), 12)
        self.assertEqual(set(tasks["client"]), {"a", "b"})
        measured = frames.evaluations[frames.evaluations["run_id"] == run]
        self.assertEqual(set(measured["name"]), {"loss", "mae", "nähe (< 0.5)", "sd >= 0"})
        kinds = federation.query(
            "SELECT name, lower_is_better FROM metric_kind WHERE name <> 'loss' AND run_id = ?", int(run)
        )
        self.assertEqual(dict(kinds), {"mae": 1, "nähe (< 0.5)": 0, "sd >= 0": 1})
        self.assertGreater(len(frames.events), 0)
        sink = Sink()
        fl.track(federation.state, sink, pause_s=0.01)
        self.assertTrue(sink.is_closed)
        self.assertEqual(sink.told["model"], "custom:mine")
        self.assertEqual([r for r in sink.figures if r > 0], [1, 2, 3, 4, 5, 6])
        self.assertEqual(
            sink.figures[6]["eval_loss"],
            measured[(measured["version"] == 6) & (measured["name"] == "loss")]["value"].item(),
        )
        self.check_where_nothing_can_be_written(federation, frames)
        (weights,) = fl.load(federation.checkpoints / "round-000006.safetensors").values()
        self.assertGreater(np.corrcoef(weights, np.linspace(-1, 1, 40))[0, 1], 0.5)

    def test_the_best_version_is_the_one_that_the_server_marks(self):
        federation = self.check(NUMPY)
        frames = fl.history(federation.state)
        run = int(frames.runs["id"].max())
        (best,) = frames.best[frames.best["run_id"] == run].to_dict("records")
        code, out, err = federation.server_command("history", "--json", "--run", run)
        self.assertEqual(code, 0, err)
        (marked,) = [row for row in json.loads(out) if row["is_best"]]
        self.assertEqual(best["version"], marked["round"])
        self.assertEqual(best["metric"], marked["metric"])
        self.assertAlmostEqual(best["value"], marked["eval_metric"])

    def check_where_nothing_can_be_written(self, federation, frames):
        """There SQLite can't make the files beside the history, as here, where one of their names is
        taken."""
        file = federation.state / "history.sqlite"
        shm, wal = (file.with_name(f"history.sqlite-{end}") for end in ("shm", "wal"))
        shm.unlink(missing_ok=True)  # Earlier readers have left both.
        wal.unlink(missing_ok=True)
        shm.symlink_to(shm)
        again = fl.history(federation.state)
        for name in vars(frames):
            pandas.testing.assert_frame_equal(getattr(again, name), getattr(frames, name))
        sink = Sink()
        fl.track(federation.state, sink, pause_s=0.01)
        self.assertEqual([r for r in sink.figures if r > 0], [1, 2, 3, 4, 5, 6])
        # The rows in a WAL would be missed.
        wal.write_text("some")
        with self.assertRaisesRegex(OSError, "a server that has ended .* copy the folder"):
            fl.history(federation.state)
        wal.unlink()
        shm.unlink()

    def test_names_of_tensors_are_any_text(self):
        """They travel, and stand in checkpoints, in the clients' states and in exported files."""
        names = ["Größe\t重み\n2", "lead I", "bn running_mean"]
        more = "".join(f", {name!r}: np.full(5, 0.5, np.float32)" for name in names[1:])
        text = NUMPY.replace("np.zeros(40, np.float32)}", f"np.zeros(40, np.float32){more}}}")
        federation = self.check(text.replace('"w"', repr(names[0])))
        weights = fl.load(federation.checkpoints / "round-000006.safetensors")
        self.assertEqual(set(weights), set(names))
        self.assertGreater(np.corrcoef(weights[names[0]], np.linspace(-1, 1, 40))[0, 1], 0.5)
        for kind in "safetensors", "npz":
            file = federation.folder / f"model.{kind}"
            code, _, err = federation.server_command("export", file)
            self.assertEqual(code, 0, err)
            exported = fl.load(file) if kind == "safetensors" else np.load(file)
            for name in names:
                np.testing.assert_array_equal(exported[name], weights[name])

    def test_the_example_that_needs_no_package(self):
        federation = self.make()
        script = fake_agent.SOURCE / "examples" / "trainers" / "plain_numpy.py"
        trainers = {}
        for seed, name in enumerate(self.names):
            path = federation.folder / f"{name}.npz"
            x = np.random.default_rng(seed).standard_normal((400, 6))
            np.savez(path, x=x, y=x[:, :3].argmax(axis=1))
            trainers[name] = ("--trainer", f"{sys.executable} {script} {path} 3")
        initial = federation.folder / "initial.safetensors"
        maker = federation.client("a", *trainers["a"], "initial-weights", initial, "--seed", 5)
        self.expect_exit(maker)
        server = federation.server(
            *("--new-run", "--model", "custom:mine", "--initial-weights", initial),
            *("--codec", "ecuq:2+ef", "--rounds", 4, "--min-clients", 2, "--lr", 0.5),
        )
        clients = [federation.client(name, *trainers[name]) for name in self.names]
        for program in server, *clients:
            self.expect_exit(program)
        ((accuracy,),) = federation.query(
            "SELECT eval_accuracy FROM round_summary"
            " WHERE run_id = (SELECT max(id) FROM run) AND round = 4"
        )
        self.assertGreater(accuracy, 0.9)

    def test_a_trainer_that_is_refused_for_good_ends_with_the_reason_and_so_does_fl_client(self):
        federation = self.make()
        script = federation.folder / "train.py"
        script.write_text(NUMPY)
        wrong = [sys.executable, script, "1", federation.folder / "a", "with a wrong metric"]
        reason = "of metric mae lower values are better, not higher ones"
        program = federation.start("x", wrong)
        self.assertEqual(program.wait(), 1)
        self.assertRegex(program.stderr(), f"tributary_fl.*Error: .*{reason}")
        client = federation.client("b", "--trainer", shlex.join(map(str, wrong)))
        self.expect_exit(client, 1)
        self.assertRegex(client.stderr(), f"trainer: tributary_fl.*Error: .*{reason}")
        self.assertIn(f"fl-client: the trainer's 'metrics': {reason}", client.stderr())
        for said in program.stderr(), client.stderr():
            self.assertNotIn("trying again", said)

    def test_an_error_of_fl_client_is_raised(self):
        federation = self.make()
        script = federation.folder / "train.py"
        script.write_text(NUMPY)
        program = federation.start("x", [sys.executable, script, "1", federation.folder / "none"])
        self.assertEqual(program.wait(), 1)
        self.assertRegex(program.stderr(), r"tributary_fl.*Error: .*none holds no identity")


class ForeignHistory(unittest.TestCase):
    def test_a_view_without_end_is_given_up(self):
        """In a history that somebody else has made."""
        self.addCleanup(setattr, _history, "STEPS_MAX", _history.STEPS_MAX)
        _history.STEPS_MAX = 20_000_000
        endless = """CREATE VIEW run (id, key, model, config_json, state) AS
            WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)
            SELECT i, '', '', '', 'running' FROM n"""
        with tempfile.TemporaryDirectory() as folder:
            with contextlib.closing(sqlite3.connect(f"{folder}/history.sqlite")) as database:
                database.execute(endless)
            for read in (fl.history, lambda state: fl.track(state, Sink())):
                with self.assertRaisesRegex(ValueError, "its views may not be those of fl-server"):
                    read(folder)


if __name__ == "__main__":
    unittest.main()
