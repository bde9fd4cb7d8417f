# SPDX-License-Identifier: Apache-2.0
"""What the server makes of models that it does not know: their files, metrics and runs."""

import sys
import unittest

import numpy as np
import safetensors.numpy

from runs import Runs, wait_until

# It separates two clouds along a direction, and has the tensors of a BatchNorm. argv: state folder,
# number of the client.
CLOUDS = """
import sys
import numpy as np
import tributary_fl as fl
from tributary_fl.numpy import Trainer

state, number = sys.argv[1], int(sys.argv[2])
draw = np.random.default_rng(number)
y = draw.choice([-1.0, 1.0], 240)
x = 3 + number + np.outer(y, np.linspace(-1, 1, 40)) + 0.3 * draw.standard_normal((240, 40))
shapes = {name: np.zeros(40, np.float32) for name in
          ("head.weight", "norm.running_mean", "norm.running_var")}


class Clouds(Trainer):
    def train(self, weights, task):
        own, labels = x[:200], y[:200]
        w = weights["head.weight"].astype(np.float64)
        for _ in range(task.settings.epochs):
            z = (own - own.mean(axis=0)) / np.sqrt(own.var(axis=0) + 1e-5)
            w -= task.settings.lr * -(labels / (1 + np.exp(labels * (z @ w)))) @ z / 200
        weights["head.weight"][:] = w
        for name, value in (("mean", own.mean(axis=0)), ("var", own.var(axis=0))):
            weights[f"norm.running_{name}"] += 0.5 * (value - weights[f"norm.running_{name}"])
        return fl.TrainReport(task.settings.epochs, 0.5)

    def evaluate(self, weights, task):
        spread = np.sqrt(weights["norm.running_var"] + 1e-5)
        guess = np.sign((x[200:] - weights["norm.running_mean"]) / spread @ weights["head.weight"])
        right = float((guess == y[200:]).mean())
        return fl.EvalReport(40, 0.5, {"accuracy": right, "errors": (1 - right, 40.0)})


metrics = ["accuracy", fl.MetricInfo("errors", "lower")]
fl.run(Clouds(shapes, 200, 40, metrics=metrics), state=state, threads=1)
"""
ZEROS = np.zeros(40, np.float32)
CLOUDS_TENSORS = {"head.weight": ZEROS, "norm.running_mean": ZEROS, "norm.running_var": ZEROS + 1}


class CustomModel(Runs):
    names = ("a", "b", "judge")
    evaluators = ("judge",)

    def write(self, path, **tensors):
        # As PyTorch does, in another order than the layout, perhaps with a count of batches.
        safetensors.numpy.save_file(tensors, path)
        return path

    def client(self, federation, name, number, *flags):
        script = federation.folder / "train.py"
        script.write_text(CLOUDS)
        trainer = f"{sys.executable} {script} {federation.folder / name} {number}"
        return federation.client(name, "--trainer", trainer, "--threads", 1, *flags)

    def everybody(self, federation):
        return [
            self.client(federation, "a", 0),
            self.client(federation, "b", 1),
            self.client(federation, "judge", 7, "--evaluate-only"),
        ]

    def test_a_model_that_the_server_has_never_heard_of(self):
        federation = self.make()
        count = np.array(0, np.int64)
        file = self.write(
            federation.folder / "weights.safetensors",
            **{"norm.num_batches_tracked": count, **CLOUDS_TENSORS},
        )
        server = federation.server(
            *("--new-run", "--model", "custom:clouds", "--initial-weights", file, "--rounds", 20),
            *("--min-clients", 2, "--lr", 0.5, "--codec", "topk:0.5,dense_below=0+ef"),
        )
        clients = self.everybody(federation)
        wait_until("two rounds", lambda: federation.rounds_done() >= 2)
        # A restart does not need the file: the history has the model's layout.
        file.unlink()
        server.kill()
        server = federation.server()
        for program in server, *clients:
            self.expect_exit(program)
        rows = federation.query(
            "SELECT round, eval_accuracy FROM round_summary WHERE eval_accuracy IS NOT NULL"
        )
        self.assertGreater(max(rows)[1], 0.95, rows)
        ((count, last),) = federation.query(
            "SELECT count(DISTINCT version), max(version) FROM metric"
            " WHERE client = 'judge' AND evaluator = 1 AND name = 'accuracy'"
        )
        self.assertGreater(count, 15)
        self.assertEqual(last, 20)
        self.assertEqual(
            federation.query("SELECT name, lower_is_better, combine, evaluator FROM metric_kind"),
            [("accuracy", 0, "mean", 1), ("errors", 1, "mean", 1)],
        )
        both = federation.query(
            "SELECT a.value + e.value, e.weight FROM metric AS a JOIN metric AS e"
            " USING (run_id, version, client) WHERE a.name = 'accuracy' AND e.name = 'errors'"
        )
        self.assertGreater(len(both), 15)
        for total, weight in both:
            self.assertAlmostEqual(total, 1)
            self.assertEqual(weight, 40)
        trained = federation.query("SELECT DISTINCT client FROM task ORDER BY client")
        self.assertEqual(trained, [("a",), ("b",)])
        model = safetensors.numpy.load_file(sorted(federation.checkpoints.glob("*.safetensors"))[-1])
        self.assertEqual(list(model), ["head.weight", "norm.running_mean", "norm.running_var"])
        # Each round moves half of the way to the mean of 3 and 4, and no value is left out.
        np.testing.assert_allclose(model["norm.running_mean"], 3.5, atol=0.2)

    def test_a_target_of_a_metric_that_only_the_model_knows_ends_the_run(self):
        federation = self.make()
        file = self.write(federation.folder / "weights.safetensors", **CLOUDS_TENSORS)
        server = federation.server(
            *("--new-run", "--model", "custom:clouds", "--initial-weights", file, "--rounds", 500),
            *("--min-clients", 2, "--lr", 0.5, "--target", "errors<=0.05"),
        )
        for program in server, *self.everybody(federation):
            self.expect_exit(program)
        ((why,),) = federation.query("SELECT early_end FROM run ORDER BY id DESC LIMIT 1")
        self.assertRegex(why, r"^version \d+ has errors 0\S*, the target is 0.05$")
        self.assertLess(federation.rounds_done(), 500)
        _, table, _ = federation.server_command("history")
        self.assertRegex(table, "eval loss +errors\n")
        _, table, _ = federation.server_command("history", "--metrics")
        for name in ("accuracy", "errors", "loss"):
            self.assertRegex(table, rf"\d+:\d+ +{name} .* 1 evaluator +40\n")

    def test_a_staying_client_waits_for_a_run_of_a_model_that_it_knows(self):
        federation = self.make()
        run = ("--min-clients", 1, "--rounds", 1)
        server = federation.server("--new-run", "--model", "synthetic:9", *run, "--stay")
        staying = federation.client("a", "--stay")
        server.wait_for("waiting for another run")
        file = self.write(federation.folder / "w.safetensors", **CLOUDS_TENSORS)
        for model in (("custom:mine", "--initial-weights", file), ("synthetic:9",)):
            code, _, error = federation.server_command("queue", *run, "--model", *model)
            self.assertEqual(code, 0, error)
        staying.wait_for("this run is not for this client")
        told = (
            "SELECT count(*) FROM event"
            " WHERE text LIKE 'a can''t take part: this run is not for this client%'"
        )
        wait_until("it says so", lambda: federation.query(told)[0][0] > 0)
        self.client(federation, "b", 0)
        over = "SELECT count(*) FROM run WHERE state = 'finished'"
        wait_until("all runs are over", lambda: federation.query(over) == [(3,)])
        self.assertEqual(federation.query(told), [(1,)])
        self.assertEqual(
            federation.query("SELECT client FROM task WHERE state = 'accepted' ORDER BY id"),
            [("a",), ("b",), ("a",)],
        )

    def test_a_new_run_begins_with_a_checkpoint(self):
        """The checkpoint may also have control variates besides the model."""
        federation = self.make()
        names = {"fc.weight": [3, 4], "fc.bias": [3], "block.fc.weight": [2], "block.fc.bias": [2]}
        file = self.write(
            federation.folder / "w.safetensors",
            **{name: np.ones(shape, np.float32) for name, shape in names.items()},
        )
        server = federation.server(
            *("--new-run", "--model", "custom:x", "--strategy", "scaffold"),
            *("--initial-weights", file, "--min-clients", 1),
        )
        first = federation.state / "checkpoints" / "run-2" / "round-000000.safetensors"
        wait_until("version 0 is there", first.exists)
        tensors = safetensors.numpy.load_file(first)
        self.assertIn("control.fc.weight", tensors)
        server.kill()
        again = federation.folder / "again.safetensors"
        again.write_bytes(first.read_bytes())
        federation.server(
            *("--new-run", "--model", "custom:x", "--initial-weights", again, "--min-clients", 1)
        )
        second = federation.state / "checkpoints" / "run-3" / "round-000000.safetensors"
        wait_until("it is there again", second.exists)
        self.assertEqual(set(safetensors.numpy.load_file(second)), set(names))

    def test_wrong_custom_models_are_refused_with_a_reason(self):
        federation = self.make()
        odd = self.write(federation.folder / "odd.safetensors", a=np.zeros(3, np.int64))
        for flags, reason in (
            (("custom:mine",), "give --initial-weights FILE too"),
            (("custom:", "--initial-weights", odd), "NAME is made of letters, digits"),
            (("custom:a b", "--initial-weights", odd), "NAME is made of letters, digits"),
            (("custom:mine", "--initial-weights", odd), "tensor a has elements of type I64"),
        ):
            with self.subTest(flags):
                code, _, error = federation.server_command("--new-run", "--model", *flags)
                self.assertEqual(code, 1, error)
                self.assertIn(reason, error)
        right = self.write(federation.folder / "right.safetensors", w=np.zeros(3, np.float32))
        federation.server(
            *("--new-run", "--model", "custom:mine", "--initial-weights", right, "--min-clients", 2)
        )
        client = federation.client("a")
        self.assertGreater(client.wait(), 0)
        self.assertIn("custom:mine", client.stderr())


if __name__ == "__main__":
    unittest.main()
