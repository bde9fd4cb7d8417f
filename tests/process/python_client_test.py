# SPDX-License-Identifier: Apache-2.0
"""The Python example client together with fl-client, and a run's files as a Python user reads
them."""

import asyncio
import contextlib
import importlib.util
import sys
import tempfile
import unittest

import numpy as np
import safetensors
import safetensors.numpy
import xxhash

from federation import AsyncFederationTest, FederationTest, forge, wait_until
from python_peer import PROGRAM, Client, codec, encode_plain, identity, kept, wire


class PythonClient(FederationTest):
    def python(self, federation, name, *flags):
        return federation.start(
            f"python-{name}",
            [sys.executable, PROGRAM, "--state", federation.folder / name / "identity", *flags],
        )

    def test_one_run_of_both_kinds_of_clients(self):
        federation = self.make()
        server = federation.server(
            "--new-run", "--model", "synthetic:70000", "--min-clients", 3, "--rounds", 4
        )
        token = federation.token("python")
        programs = [
            federation.client("a"),
            federation.client("b"),
            self.python(federation, "python", "--join", token),
        ]
        wait_until("a round is done", lambda: federation.rounds_done() >= 1)
        server.kill()
        server = federation.server()
        for program in [server, *programs]:
            self.expect_exit(program)
        said = programs[2].stdout()
        for number in range(1, 5):
            self.assertEqual(said.count(f"round {number}: ACCEPTED"), 1, said)
        accepted = federation.query(
            "SELECT client, count(*) FROM task WHERE state = 'accepted' GROUP BY client"
        )
        self.assertEqual(accepted, [("a", 4), ("b", 4), ("python", 4)])

        digests = federation.digests()
        for (version,) in federation.query(
            "SELECT version FROM checkpoint WHERE dropped_at IS NULL AND version > 0"
        ):
            (file,) = federation.query(
                "SELECT file FROM checkpoint WHERE version = ?"
                " AND run_id = (SELECT max(id) FROM run)",
                version,
            )[0]
            path = federation.checkpoints / file
            tensors = safetensors.numpy.load_file(path)
            self.assertEqual(
                [(name, t.dtype, t.shape) for name, t in tensors.items()],
                [("weight", np.float32, (70000,))],
            )
            self.assertEqual(
                xxhash.xxh3_128_hexdigest(tensors["weight"].tobytes()), digests[version]
            )
            with safetensors.safe_open(path, "numpy") as opened:
                facts = opened.metadata()
            self.assertEqual((facts["model"], facts["clients"]), ("synthetic:70000", "3"))
            self.assertEqual(facts["run"], server.ready["run"])

    def test_logistic_regression_learns(self):
        """Two Python clients train a model that classifies separable classes."""
        for codecs in (
            ("none", "none"),
            ("ecuq:1+ef", "ecuq:1"),
            ("topk:0.2+kbit:4+dgc:0.3", "kbit:4"),
            ("powersgd:2+ef", "none"),
        ):
            with self.subTest(codecs):
                self.learn(*codecs)

    def learn(self, codec, downlink):
        federation = self.make(codec.replace(":", "-"))
        flags = "--new-run --model logistic --seed 3 --min-clients 2 --rounds 8 --lr 0.05"
        server = federation.server(*flags.split(), "--codec", codec, "--downlink-codec", downlink)
        clients = []
        centres = np.random.default_rng(1).standard_normal((10, 784))
        for number, name in enumerate(("a", "b")):
            draw = np.random.default_rng(number)
            y = draw.integers(0, 10, 400)
            np.savez(
                federation.folder / f"{name}.npz",
                x=centres[y] + draw.standard_normal((400, 784)),
                y=y,
            )
            clients.append(
                self.python(federation, name, "--data", federation.folder / f"{name}.npz")
            )
        for program in [server, *clients]:
            self.expect_exit(program)
        losses = [
            loss
            for (loss,) in federation.query(
                "SELECT train_loss FROM round_summary WHERE run_id = (SELECT max(id) FROM run)"
            )
        ]
        self.assertEqual(len(losses), 8)
        self.assertLess(losses[-1], losses[0] / 5, losses)
        tasks = federation.query("SELECT codec, update_bytes, nmse, state FROM task")
        self.assertEqual({(task[0], task[3]) for task in tasks}, {(codec, "accepted")})
        most = 7850 * 4 * (1.1 if codec == "none" else 0.25)
        self.assertLess(max(task[1] for task in tasks), most)
        self.assertEqual({task[2] > 0 for task in tasks}, {codec != "none"})
        # If steps are coded, only one or two of 16 downloads are whole models.
        ((down,),) = federation.query("SELECT sum(bytes_down) FROM round_summary")
        self.assertEqual(down < 6 * 7850 * 4, downlink != "none", down)
        path = sorted((federation.checkpoints).glob("*.safetensors"))[-1]
        model = safetensors.numpy.load_file(path)
        guesses = (centres @ model["fc.weight"].T + model["fc.bias"]).argmax(axis=1)
        self.assertEqual(list(guesses), list(range(10)))

    def test_a_refused_client_ends_with_the_reason(self):
        federation = self.make()
        federation.server("--new-run", "--model", "mlp", "--min-clients", 2)
        wrong = self.python(federation, "a")
        self.assertGreater(wrong.wait(), 0)
        self.assertIn("the run trains mlp", wrong.stderr())
        said = "SELECT count(*) FROM event WHERE text LIKE 'a takes no part: %the run trains mlp'"
        wait_until("the history says so", lambda: federation.query(said) == [(1,)])
        stranger = self.python(federation, "stranger")
        self.assertGreater(stranger.wait(), 0)
        self.assertIn("holds no identity: join first", stranger.stderr())
        federation.server_command("revoke", "b")
        revoked = self.python(federation, "b")
        self.assertGreater(revoked.wait(), 0)
        self.assertIn("was revoked", revoked.stderr())

    def test_a_method_that_it_does_not_implement_ends_it_and_the_history_says_so(self):
        federation = self.make()
        federation.server(
            "--new-run", "--model", "synthetic:70", "--min-clients", 2, "--strategy", "fednova"
        )
        unable = self.python(federation, "a")
        self.assertGreater(unable.wait(), 0)
        self.assertIn("does not implement the run's strategy 'fednova'", unable.stderr())
        said = "SELECT count(*) FROM event WHERE text LIKE 'a takes no part: %strategy ''fednova'''"
        wait_until("the history says so", lambda: federation.query(said) == [(1,)])

    def test_logistic_without_its_data_says_so(self):
        federation = self.make()
        federation.server("--new-run", "--model", "logistic", "--min-clients", 2)
        program = self.python(federation, "a", "--data", federation.folder / "nonesuch.npz")
        self.assertGreater(program.wait(), 0)
        self.assertIn("needs --data FILE.npz, but", program.stderr())

    def test_wrong_tokens_are_refused_and_told_why(self):
        federation = self.make()
        federation.server("--new-run", "--model", "synthetic:9", "--min-clients", 3)
        token = federation.token("python")
        other = "B" if token[20] == "A" else "A"
        wrong = {
            "nonsense": "not a complete join token",
            "flj1.": "not a complete join token",
            token[:-5]: "not a complete join token",
            token[:20] + other + token[21:]: "not a complete join token",
            forge(token, fingerprint=bytes(32)): "is not the server that this token was made for",
            forge(token, secret=bytes(16)): "does not know this join token",
        }
        for text, reason in wrong.items():
            with self.subTest(text):
                program = self.python(federation, "python", "--join", text)
                self.assertGreater(program.wait(), 0)
                self.assertIn(reason, program.stderr())
                self.assertNotIn("Traceback", program.stderr())
        # The client has not sent the secret to a wrong server, so the token still works once.
        self.python(federation, "python", "--join", token)
        certificate = identity(federation, "python") / "cert.pem"
        wait_until("it has joined", certificate.exists)
        again = self.python(federation, "twice", "--join", token)
        self.assertGreater(again.wait(), 0)
        self.assertIn("already used", again.stderr())

    def test_it_follows_the_server_into_another_run(self):
        federation = self.make()
        endless = federation.server("--new-run", "--model", "synthetic:9", "--min-clients", 1)
        program = self.python(federation, "a")
        wait_until("a round is done", lambda: federation.rounds_done() >= 1)
        endless.kill()
        flags = "--new-run --model synthetic:70000 --min-clients 1 --rounds 2"
        server = federation.server(*flags.split())
        for ends in (server, program):
            self.expect_exit(ends)
        self.assertEqual(federation.rounds_done(), 2)


class Separator:
    """A custom model with a BatchNorm's tensor names. It separates two clouds along `direction`."""

    layout = [("head.weight", [40]), ("norm.running_mean", [40]), ("norm.running_var", [40])]
    examples, held_out = 200, 40
    metrics = [("accuracy", "higher", "mean"), ("errors", "lower", "mean")]

    def __init__(self, number):
        draw = np.random.default_rng(number)
        direction = np.linspace(-1, 1, 40)
        self.y = draw.choice([-1.0, 1.0], 240)
        self.x = 3 + number + np.outer(self.y, direction) + 0.3 * draw.standard_normal((240, 40))

    def train(self, weights, offer):
        w, mean, variance = weights.reshape(3, 40).astype(np.float64)
        x, y, start = self.x[:200], self.y[:200], w.copy()
        for _ in range(offer.local_epochs):
            z = (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + 1e-5)
            w -= offer.lr * -(y / (1 + np.exp(y * (z @ w)))) @ z / len(y)
        change = [w - start, 0.5 * (x.mean(axis=0) - mean), 0.5 * (x.var(axis=0) - variance)]
        return np.concatenate(change).astype(np.float32), offer.local_epochs, 0.5

    def evaluate(self, weights):
        w, mean, variance = weights.reshape(3, 40)
        guess = np.sign((self.x[200:] - mean) / np.sqrt(variance + 1e-5) @ w)
        right = float((guess == self.y[200:]).mean())
        return 0.5, {"accuracy": right, "errors": (1 - right, 40.0)}


class CustomModel(AsyncFederationTest):
    names = ("a", "b", "judge")
    evaluators = ("judge",)

    def write(self, path, **tensors):
        # As PyTorch does, in another order than the layout, perhaps with a count of batches.
        safetensors.numpy.save_file(tensors, path)
        return path

    async def test_a_model_that_the_server_has_never_heard_of(self):
        federation = self.make()
        zeros = np.zeros(40, np.float32)
        tensors = {
            "norm.running_mean": zeros,
            "norm.running_var": zeros + 1,
            "norm.num_batches_tracked": np.array(0, np.int64),
            "head.weight": zeros,
        }
        file = self.write(federation.folder / "weights.safetensors", **tensors)
        flags = ("--new-run", "--model", "custom:clouds", "--initial-weights", file)
        run = "--rounds 20 --min-clients 2 --lr 0.5 --codec topk:0.5,dense_below=0+ef"
        server = federation.server(*flags, *run.split())
        clients = [
            Client(identity(federation, name), models=lambda name, _, n=n: Separator(n))
            for n, name in enumerate(("a", "b"))
        ]
        judge = Client(identity(federation, "judge"), models=lambda *_: Separator(7))
        judge.is_evaluator = True
        clients.append(judge)
        with contextlib.redirect_stdout(None):
            running = asyncio.gather(*(client.run() for client in clients))
            await asyncio.to_thread(wait_until, "two rounds", lambda: federation.rounds_done() >= 2)
            # A restart does not need the file: the history has the model's layout.
            file.unlink()
            server.kill()
            server = await asyncio.to_thread(federation.server)
            await asyncio.wait_for(running, 60)
        self.expect_exit(server)
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

    async def test_a_target_of_a_metric_that_only_the_model_knows_ends_the_run(self):
        federation = self.make()
        zeros = np.zeros(40, np.float32)
        tensors = {name: zeros for name, _ in Separator.layout}
        file = self.write(federation.folder / "weights.safetensors", **tensors)
        flags = ("--new-run", "--model", "custom:clouds", "--initial-weights", file)
        run = "--rounds 500 --min-clients 2 --lr 0.5 --target errors<=0.05"
        server = federation.server(*flags, *run.split())
        clients = [
            Client(identity(federation, name), models=lambda name, _, n=n: Separator(n))
            for n, name in enumerate(("a", "b"))
        ]
        clients.append(Client(identity(federation, "judge"), models=lambda *_: Separator(7)))
        clients[-1].is_evaluator = True
        with contextlib.redirect_stdout(None):
            await asyncio.wait_for(asyncio.gather(*(client.run() for client in clients)), 60)
        self.expect_exit(server)
        ((why,),) = federation.query("SELECT early_end FROM run ORDER BY id DESC LIMIT 1")
        self.assertRegex(why, r"^version \d+ has errors 0\S*, the target is 0.05$")
        self.assertLess(federation.rounds_done(), 500)
        _, table, _ = federation.server_command("history")
        self.assertRegex(table, "eval loss +errors\n")
        _, table, _ = federation.server_command("history", "--metrics")
        for name in ("accuracy", "errors", "loss"):
            self.assertRegex(table, rf"\d+:\d+ +{name} .* 1 evaluator +40\n")

    async def test_a_staying_client_waits_for_a_run_of_a_model_that_it_knows(self):
        federation = self.make()
        run = ("--min-clients", 1, "--rounds", 1)
        server = federation.server("--new-run", "--model", "synthetic:9", *run, "--stay")
        staying = federation.client("a", "--stay")
        await asyncio.to_thread(server.wait_for, "waiting for another run")
        file = self.write(federation.folder / "w.safetensors", weight=np.zeros(120, np.float32))
        queue = ("queue", *run)
        for model in (("custom:mine", "--initial-weights", file), ("synthetic:9",)):
            code, _, error = federation.server_command(*queue, "--model", *model)
            self.assertEqual(code, 0, error)
        await asyncio.to_thread(staying.wait_for, "this run is not for this client")
        told = "SELECT count(*) FROM event WHERE text LIKE 'a takes no part: this run is not for this client%'"
        await asyncio.to_thread(wait_until, "it says so", lambda: federation.query(told)[0][0] > 0)
        one = Separator(0)
        one.layout = [("weight", [120])]
        with contextlib.redirect_stdout(None):
            client = Client(identity(federation, "b"), models=lambda *_: one)
            running = asyncio.create_task(client.run())
            over = "SELECT count(*) FROM run WHERE state = 'finished'"
            done = lambda: federation.query(over) == [(3,)]  # noqa: E731
            await asyncio.to_thread(wait_until, "all runs are over", done)
        running.cancel()
        self.assertEqual(federation.query(told), [(1,)])
        self.assertEqual(
            federation.query("SELECT client FROM task WHERE state = 'accepted' ORDER BY id"),
            [("a",), ("b",), ("a",)],
        )

    async def test_an_update_that_can_not_be_sent_costs_only_its_task(self):
        federation = self.make()
        zeros = {name: np.zeros(40, np.float32) for name, _ in Separator.layout}
        file = self.write(federation.folder / "w.safetensors", **zeros)
        server = federation.server(
            *("--new-run", "--model", "custom:clouds", "--initial-weights", file),
            *"--rounds 2 --min-clients 1 --codec topk:0.5,dense_below=0+ef".split(),
        )
        bad = [np.zeros(40)]
        model = Separator(0)
        right = model.train
        model.train = lambda *given: (bad.pop(), 1, 0.5) if bad else right(*given)
        client = Client(identity(federation, "a"), models=lambda *_: model)
        with contextlib.redirect_stdout(None):
            await asyncio.wait_for(client.run(), 60)
        self.expect_exit(server)
        said = "SELECT count(*) FROM event WHERE text LIKE '%40 values, expected 120'"
        self.assertEqual(federation.query(said), [(1,)])

    async def test_what_a_coder_keeps(self):
        coder = codec.Coder([("w", [4])])
        for wrong in (np.ones(3), np.array([1, np.nan, 1, 1])):
            with self.assertRaises(ValueError):
                coder.encode("topk:0.25,dense_below=0+dgc:0.5", 1, (1, 1), wrong)
        self.assertFalse(coder.velocity.any() or coder.residual.any())
        # An array of doubles that is not contiguous.
        update = np.array([[8, 0], [4, 0], [2, 0], [1, 0]], np.float64)[:, 0]
        payload, _ = coder.encode("topk:0.25,dense_below=0+ef", 1, (1, 1), update)
        np.testing.assert_array_equal(coder.decode(payload), [8, 0, 0, 0])
        np.testing.assert_array_equal(coder.residual, [0, 4, 2, 1])
        # The residual waits while a round's codec has no error feedback. Such a round's late update
        # goes into the residual.
        payload, nmse = coder.encode("none", 2, (1, 1), update)
        self.assertEqual(nmse, 0)
        self.assertEqual(payload, encode_plain(update, [("w", [4])]))

        federation = self.make()
        client = Client(identity(federation, "a"))
        client.coder, client.run_key = coder, "run"
        verdict = wire.Verdict
        for outcome, residual in (
            (verdict.STALE, [8, 8, 4, 2]),
            (verdict.ACCEPTED, [8, 8, 4, 2]),
            (verdict.REFUSED, [16, 12, 6, 3]),
            (verdict.STALE, [24, 16, 8, 4]),
            (verdict.REFUSED, None),
        ):
            client.settle(outcome, payload)
            if residual is None:
                self.assertIsNone(coder.residual)
            else:
                np.testing.assert_array_equal(coder.residual, residual)

    async def test_a_new_run_begins_with_a_checkpoint(self):
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
        await asyncio.to_thread(wait_until, "version 0 is there", first.exists)
        tensors = safetensors.numpy.load_file(first)
        self.assertIn("control.fc.weight", tensors)
        server.kill()
        again = federation.folder / "again.safetensors"
        again.write_bytes(first.read_bytes())
        federation.server(
            *("--new-run", "--model", "custom:x", "--initial-weights", again, "--min-clients", 1)
        )
        second = federation.state / "checkpoints" / "run-3" / "round-000000.safetensors"
        await asyncio.to_thread(wait_until, "it is there again", second.exists)
        self.assertEqual(set(safetensors.numpy.load_file(second)), set(names))

    async def test_wrong_custom_models_are_refused_with_a_reason(self):
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
        self.assertGreater(await asyncio.to_thread(client.wait), 0)
        self.assertIn("custom:mine", client.stderr())


class TorchModel(unittest.TestCase):
    """Tests examples/python-client/torch_model.py if PyTorch is installed. Its wheel is too large
    for the tests' environment."""

    def setUp(self):
        if importlib.util.find_spec("torch") is None:
            self.skipTest("NOTHING WAS TRAINED: no PyTorch here")

    def test_it_trains_a_module_with_a_batch_norm(self):
        import torch
        from torch_model import TorchModel, save

        torch.manual_seed(1)
        nn = torch.nn
        module = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
        x = torch.randn(300, 8)
        model = TorchModel(module, x, (x[:, 0] > 0).long(), held_out=0.2, device="cpu")
        names = [name for name, _ in model.layout]
        self.assertEqual(names[-2:], ["1.running_mean", "1.running_var"])
        self.assertEqual(names[:-2], sorted(names[:-2]))
        with tempfile.TemporaryDirectory() as folder:
            save(module, f"{folder}/weights.safetensors")
            tensors = safetensors.numpy.load_file(f"{folder}/weights.safetensors")
        weights = np.concatenate([tensors[name].ravel() for name in names])
        np.testing.assert_array_equal(weights, model.flat())
        settings = dict(batch_size=8, accumulate=2, lr=0.1, momentum=0.9, local_epochs=2, seed=5)
        offer = wire.Offer(proximal_mu=0.01, **settings)
        update, steps, _ = model.train(weights, offer)
        self.assertEqual(steps, 2 * 15)
        self.assertTrue(np.abs(update[-32:]).min() > 0)
        again, _, _ = model.train(weights, offer)
        np.testing.assert_array_equal(update, again)
        before, after = model.evaluate(weights), model.evaluate(weights + update)
        self.assertLess(after[0], before[0])
        self.assertGreater(after[1]["accuracy"], before[1]["accuracy"] + 0.3)
        # The last batch would have one example, and one layer is frozen.
        odd = TorchModel(module, x[:65], (x[:65, 0] > 0).long(), device="cpu")
        module[3].requires_grad_(False)
        settings.update(accumulate=1)
        update, steps, _ = odd.train(weights, wire.Offer(proximal_mu=1, **settings))
        self.assertEqual(steps, 16)
        at = {name: np.prod(shape, dtype=int) for name, shape in odd.layout}
        begin = sum(size for name, size in at.items() if name < "3.bias" and "running" not in name)
        self.assertFalse(update[begin : begin + at["3.bias"] + at["3.weight"]].any())
        self.assertGreater(np.count_nonzero(update[:begin]), begin / 2)
        module[3].requires_grad_(True)
        far, _, _ = model.train(weights, wire.Offer(**settings))
        near, _, _ = model.train(weights, wire.Offer(proximal_mu=5, **settings))
        self.assertLess(np.linalg.norm(near[:-32]), np.linalg.norm(far[:-32]))


class Torn(Client):
    """Loses its connection once, after it has sent the first chunk of its update."""

    def __init__(self, folder):
        super().__init__(folder)
        self.offsets = []

    async def send_chunks(self, resume):
        begin, payload = self.pending
        self.offsets.append(resume.offset)
        if self.offsets == [0]:
            part = payload[: resume.chunk_bytes]
            await self.send(part, chunk=wire.Chunk(transfer=begin.task, offset=0))
            await self.ws.close()
        await super().send_chunks(resume)


class Killed(Client):
    """Dies after its update is on the disk, before it announces the update."""

    async def upload(self):
        if self.pending:
            raise KeyboardInterrupt
        await super().upload()


class PythonClientCut(AsyncFederationTest):
    names = ("a",)

    async def test_a_restarted_client_brings_what_it_had_trained(self):
        federation = self.make()
        flags = "--new-run --model synthetic:3000 --min-clients 1 --rounds 2"
        server = federation.server(*flags.split(), "--codec", "topk:0.1+ef")
        first = Killed(identity(federation, "a"))
        with contextlib.redirect_stdout(None):
            with self.assertRaises(KeyboardInterrupt):
                await first.serve()
            (begin, payload), lost = first.pending, first.coder.residual
            second = Client(identity(federation, "a"))
            await asyncio.wait_for(second.run(), 60)
        self.expect_exit(server)
        rows = federation.query("SELECT update_digest, state FROM task ORDER BY round")
        self.assertEqual([state for _, state in rows], ["accepted"] * 2)
        self.assertEqual(rows[0][0], begin.digest.hex())
        # The second update included the residual of the first, so the new residual comes from both.
        coder = second.coder
        again = Client(identity(federation, "a"))
        again.coder = codec.Coder([("weight", [3000])])
        self.assertIsNone(kept.load(again.folder, second.run_key, again.coder))
        np.testing.assert_array_equal(again.coder.residual, coder.residual)
        self.assertEqual(np.count_nonzero(lost == 0), 300)
        self.assertGreater(np.abs(coder.residual).sum(), 1.2 * np.abs(lost).sum())
        self.assertIsNone(kept.load(again.folder, "another run", again.coder))

    async def test_a_broken_upload_goes_on_where_it_broke(self):
        federation = self.make()
        flags = "--new-run --model synthetic:1000000 --min-clients 1 --rounds 1"
        server = federation.server(*flags.split())
        client = Torn(identity(federation, "a"))
        with contextlib.redirect_stdout(None):
            await asyncio.wait_for(client.run(), 60)
        self.expect_exit(server)
        first, second = client.offsets
        self.assertEqual(first, 0)
        self.assertGreater(second, 0)
        row = federation.query("SELECT state, update_bytes FROM task")
        self.assertEqual([state for state, _ in row], ["accepted"])


if __name__ == "__main__":
    unittest.main()
