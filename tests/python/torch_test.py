# SPDX-License-Identifier: Apache-2.0
"""tributary_fl.torch against a fake fl-client, and its arithmetic against plain loops."""

import contextlib
import os
import pathlib
import sys
import tempfile
import unittest

import needs_torch
import numpy as np

import fake_agent
from fake_agent import agent_for

sys.path.insert(0, str(fake_agent.PACKAGE))

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import tributary_fl as fl
from tributary_fl import metrics
from tributary_fl._torch_optimizer import load_optimizer, save_optimizer
from tributary_fl.torch import Trainer, load, save

torch.set_num_threads(1)


def data(examples=70, seed=0):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(examples, 8, generator=draw)
    return x, (x[:, :3].argmax(1)).long()


def mlp(seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


def weights_of(module):
    return {name: p.detach().float().numpy().copy() for name, p in module.named_parameters()}


class Arithmetic(unittest.TestCase):
    """The trainer's steps are those of a loop that anybody would write."""

    def plain_loop(self, module, make_optimizer, settings, mu=0.0, correction=None):
        x, y = data()
        shuffle = torch.Generator().manual_seed(settings["seed"])
        start = [p.detach().clone() for p in module.parameters()]
        optimizer = make_optimizer(module.parameters())
        for _ in range(settings["epochs"]):
            order = torch.randperm(len(y), generator=shuffle)
            size = settings["batch_size"] * settings.get("accumulate", 1)
            for batch in order.split(size):
                optimizer.zero_grad()
                F.cross_entropy(module(x[batch]), y[batch]).backward()
                for at, (name, p) in enumerate(module.named_parameters()):
                    p.grad += mu * (p.detach() - start[at])
                    if correction is not None:
                        p.grad += torch.from_numpy(correction[name])
                optimizer.step()
        return weights_of(module)

    def check(self, make_optimizer, mu=0.0, correction=None, rtol=1e-6, **settings):
        settings = {"epochs": 3, "batch_size": 16, "seed": 77, "lr": 0.05, **settings}
        start = weights_of(mlp())
        with agent_for(Trainer(mlp(2), data(), device="cpu")) as agent:
            agent.hello()
            out, done = agent.train(start, correction, proximal_mu=mu, **settings)
            again, _ = agent.train(start, correction, proximal_mu=mu, **settings)
        expected = self.plain_loop(mlp(), make_optimizer, settings, mu, correction)
        for name in expected:
            np.testing.assert_allclose(out[name], expected[name], rtol=rtol, atol=1e-7)
            np.testing.assert_array_equal(out[name], again[name])
        return done

    def test_sgd(self):
        done = self.check(lambda p: torch.optim.SGD(p, 0.05))
        self.assertEqual(done["steps"], 15)
        self.check(lambda p: torch.optim.SGD(p, 0.05, 0.9), momentum=0.9)
        self.check(
            lambda p: torch.optim.SGD(p, 0.05, 0.9, weight_decay=0.1),
            momentum=0.9,
            weight_decay=0.1,
        )

    def test_nesterov(self):
        self.check(
            lambda p: torch.optim.SGD(p, 0.05, 0.9, nesterov=True, weight_decay=0.1),
            momentum=0.9,
            weight_decay=0.1,
            optimizer={"name": "nesterov"},
        )
        self.check(lambda p: torch.optim.SGD(p, 0.05), optimizer={"name": "nesterov"})

    def test_adam_and_adamw(self):
        for name, kind in ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW):
            self.check(
                lambda p: kind(p, 0.05, (0.8, 0.95), 1e-6, 0.1),
                weight_decay=0.1,
                optimizer={"name": name, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6},
            )

    def test_fedprox_and_a_correction(self):
        correction = {
            name: np.random.default_rng(3).standard_normal(w.shape).astype(np.float32) * 0.1
            for name, w in weights_of(mlp()).items()
        }
        self.check(lambda p: torch.optim.SGD(p, 0.05), mu=0.7)
        self.check(lambda p: torch.optim.SGD(p, 0.05), correction=correction)
        self.check(
            lambda p: torch.optim.SGD(p, 0.05, 0.5), mu=0.3, correction=correction, momentum=0.5
        )

    def test_accumulated_batches_are_one_large_batch(self):
        done = self.check(lambda p: torch.optim.SGD(p, 0.05), rtol=1e-4, batch_size=8, accumulate=3)
        self.assertEqual(done["steps"], 9)

    def test_the_gradient_of_all_examples(self):
        start = weights_of(mlp())
        with agent_for(Trainer(mlp(2), data(), device="cpu", eval_batch_size=16)) as agent:
            self.assertIn("gradient", agent.hello()["supports"])
            done = agent.ask("gradient", start, settings={"weight_decay": 0.5})
            out = agent.out()
        self.assertEqual(done["type"], "done")
        x, y = data()
        module = mlp()
        F.cross_entropy(module(x), y).backward()
        for name, p in module.named_parameters():
            expected = p.grad + 0.5 * p.detach()
            np.testing.assert_allclose(out[name], expected.numpy(), rtol=1e-4, atol=1e-6)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.tensor(3.0))
        self.register_buffer("steps", torch.tensor(3))

    def forward(self, x):
        return self.head(self.body(self.embed(x))) * self.scale


class Numbers(nn.Module):
    """A tensor of each number format."""

    def __init__(self):
        super().__init__()
        self.f16 = nn.Parameter(torch.ones(3, dtype=torch.float16))
        self.bf16 = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
        self.f64 = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.f32 = nn.Parameter(torch.ones(()))
        self.pairs = nn.Parameter(torch.ones(2, dtype=torch.complex64))

    def forward(self, x):
        total = self.f16.float().sum() + self.bf16.float().sum() + self.f64.float().sum()
        total = total + self.f32 + self.pairs.real.sum() + 2 * self.pairs.imag.sum()
        return total * x


def mean_error(outputs, targets):
    return (outputs - targets).mean()


class Tensors(unittest.TestCase):
    def test_a_tied_weight_travels_once_and_other_buffers_stay(self):
        x = torch.arange(10).repeat(3)
        trainer = Trainer(Tied(), (x, x), device="cpu")
        with agent_for(trainer) as agent:
            said = agent.hello()
            names = [tensor["name"] for tensor in said["tensors"]]
            self.assertEqual(names, ["embed.weight", "body.weight", "body.bias"])
            out, _ = agent.train(weights_of(Tied()), lr=0.1)
        self.assertIs(trainer.model.head.weight, trainer.model.embed.weight)
        np.testing.assert_array_equal(
            out["embed.weight"], trainer.model.head.weight.detach().numpy()
        )

    def test_frozen_parameters_do_not_travel_and_have_a_digest(self):
        digests = []
        for change in 0, 0, 1e-3:
            module = mlp()
            with torch.no_grad():
                module[0].bias[0] += change
            trainer = Trainer(module, data(), frozen=["0.*"], device="cpu")
            with agent_for(trainer) as agent:
                said = agent.hello()
                digests.append(said["frozen"])
                names = [tensor["name"] for tensor in said["tensors"]]
                self.assertEqual(names, ["2.weight", "2.bias"])
                before = module[0].weight.detach().clone()
                start = {name: w for name, w in weights_of(module).items() if name[0] == "2"}
                out, _ = agent.train(start, lr=0.1, proximal_mu=0.1, weight_decay=0.1)
            self.assertTrue(torch.equal(before, module[0].weight))
            self.assertFalse(np.array_equal(out["2.weight"], start["2.weight"]))
        self.assertRegex(digests[0], r"\A[0-9a-f]{64}\Z")
        self.assertEqual(digests[0], digests[1])
        self.assertNotEqual(digests[0], digests[2])
        with agent_for(Trainer(mlp(), data(), device="cpu")) as agent:
            self.assertEqual(agent.hello()["frozen"], "")
        with self.assertRaisesRegex(ValueError, "no parameter has a name like 'encoder"):
            Trainer(mlp(), data(), frozen=["encoder.*"])

    def test_statistics_of_batch_norms_travel_and_their_counter_stays(self):
        module = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
        # The last batch of 65 examples would have one example only.
        trainer = Trainer(module, data(65), eval_data=data(30), device="cpu")
        with agent_for(trainer) as agent:
            said = agent.hello()
            names = {tensor["name"] for tensor in said["tensors"]}
            self.assertIn("1.running_mean", names)
            self.assertNotIn("1.num_batches_tracked", names)
            start = weights_of(module)
            start["1.running_mean"] = np.full(6, 0.5)
            start["1.running_var"] = np.full(6, -1e-9)  # As a stale update may have left it.
            out, done = agent.train(start, epochs=2)
            self.assertEqual(agent.ask("evaluate", start)["type"], "done")
            agent.ask("gradient", start, settings={})
            gradient = agent.out()
        self.assertEqual(done["steps"], 2)
        self.assertFalse(np.array_equal(out["1.running_mean"], start["1.running_mean"]))
        self.assertTrue((out["1.running_var"] > 0).all())
        self.assertFalse(gradient["1.running_mean"].any())
        self.assertTrue(gradient["1.weight"].any())

    def test_number_formats(self):
        x, y = torch.full((4,), 0.1), torch.zeros(4)
        trainer = Trainer(Numbers(), (x, y), loss=mean_error, device="cpu")
        with agent_for(trainer) as agent:
            said = agent.hello()
            formats = {t["name"]: (t["dtype"], t["shape"]) for t in said["tensors"]}
            self.assertEqual(
                formats,
                {
                    "f16": ("F16", [3]),
                    "bf16": ("BF16", [3]),
                    "f64": ("F64", [3]),
                    "f32": ("F32", []),
                    "pairs": ("F32", [2, 2]),
                },
            )
            start = {name: np.full(shape, 0.75) for name, (_, shape) in formats.items()}
            out, _ = agent.train(start, lr=1.0)
            agent.ask("initial", seed=3)
            initial = agent.out()
        for name, step in ("f16", 0.1), ("bf16", 0.1), ("f64", 0.1), ("f32", 0.1):
            np.testing.assert_allclose(out[name], 0.75 - step, rtol=0.01, err_msg=name)
        np.testing.assert_allclose(out["pairs"], [[0.65, 0.55]] * 2, rtol=1e-5)
        np.testing.assert_array_equal(initial["pairs"], [[1, 0]] * 2)

    def test_a_number_format_that_cannot_be_trained_names_the_tensor(self):
        module = nn.Linear(2, 2)
        if not hasattr(torch, "float8_e4m3fn"):
            self.skipTest("this PyTorch has no such format")
        module.weight = nn.Parameter(module.weight.detach().to(torch.float8_e4m3fn))
        with self.assertRaisesRegex(TypeError, "tensor 'weight' is of torch.float8"):
            Trainer(module, data())

    def test_initial_weights_are_a_function_of_the_seed_or_the_modules_own(self):
        own = mlp(5)
        expected = weights_of(own)
        with agent_for(Trainer(own, data(), device="cpu")) as agent:
            agent.hello()
            agent.train(weights_of(mlp(6)), lr=0.1)
            agent.ask("initial", seed=1)
            np.testing.assert_array_equal(agent.out()["0.weight"], expected["0.weight"])
        found = []
        factory = lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        with agent_for(Trainer(factory, data(), frozen=["2.bias"], device="cpu")) as agent:
            agent.hello()
            for seed in 1, 1, 2**64 - 1:
                agent.ask("initial", seed=seed)
                found.append(agent.out()["0.weight"])
        np.testing.assert_array_equal(found[0], found[1])
        self.assertFalse(np.array_equal(found[0], found[2]))

    def test_load_and_save(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "x.safetensors"
            module, other = Tied(), Tied()
            save(module, path)
            self.assertIs(fl.load(path, other), other)
            self.assertTrue(torch.equal(other.head.weight, module.head.weight))
            self.assertEqual(set(fl.load(path)), {"embed.weight", "body.weight", "body.bias"})
            # A tied tensor under its other name.
            tensors = fake_agent.read_tensors(path)
            renamed = {"head.weight": tensors.pop("embed.weight"), **tensors}
            fake_agent.write_tensors(path, {n: ("F32", w) for n, w in renamed.items()})
            third = Tied()
            load(path, third)
            self.assertTrue(torch.equal(third.embed.weight, module.embed.weight))
            del renamed["body.bias"]
            renamed["more"] = np.zeros(1)
            fake_agent.write_tensors(path, {n: ("F32", w) for n, w in renamed.items()})
            with self.assertRaisesRegex(ValueError, "it has no body.bias; the module has no more"):
                load(path, third)
            load(path, third, strict=False)
            with self.assertRaisesRegex(ValueError, r"shape \[10, 4\], but"):
                load(path, nn.ModuleDict({"head": nn.Linear(3, 3)}), strict=False)
            adapted, same = mlp(), mlp()
            for module in adapted, same:
                module[0].requires_grad_(False)
            save(adapted, path)
            digest = Trainer(adapted, data(), device="cpu").hello().frozen
            tensors = fake_agent.read_tensors(path)
            self.assertEqual(set(tensors), {"2.weight", "2.bias", f"frozen.{digest}"})
            with torch.no_grad():
                same[2].bias += 1
            load(path, same)
            self.assertTrue(torch.equal(same[2].bias, adapted[2].bias))
            with torch.no_grad():
                same[0].bias += 1
            with self.assertRaisesRegex(ValueError, "other frozen parameters"):
                load(path, same)
            load(path, same, strict=False)
            save(Numbers(), path)
            self.assertTrue(torch.equal(fl.load(path, Numbers()).pairs, Numbers().pairs))


class Images(Dataset):
    def __len__(self):
        return 50

    def __getitem__(self, number):
        x, y = data(50)
        return x[number], y[number]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(*data(50)))


class Feeding(unittest.TestCase):
    def steps(self, expected, *arguments, settings=None, **options):
        with agent_for(Trainer(mlp(), *arguments, device="cpu", **options)) as agent:
            examples = agent.hello()["train_examples"]
            out, done = agent.train(weights_of(mlp()), **{"batch_size": 16, **(settings or {})})
        self.assertEqual((examples, done["steps"]), expected)
        return out

    def test_each_kind_of_data(self):
        whole = self.steps((50, 4), data(50))
        self.steps((50, 4), TensorDataset(*data(50)))
        same = self.steps((50, 4), Images())
        np.testing.assert_allclose(whole["0.weight"], same["0.weight"], rtol=1e-6)
        self.steps((50, 4), Images(), workers=2)
        self.steps((50, 5), DataLoader(Images(), batch_size=10, shuffle=True))
        sampler = torch.utils.data.SubsetRandomSampler(range(20))
        self.steps((20, 2), DataLoader(Images(), batch_size=10, sampler=sampler))
        self.steps((50, 2), DataLoader(Images(), batch_size=10), accumulate=3)
        self.steps((50, 4), Stream(), examples=50)
        self.steps((50, 5), DataLoader(Stream(), batch_size=10), examples=50)
        with self.assertRaisesRegex(ValueError, "say how many examples"):
            Trainer(mlp(), Stream())

    def test_a_shuffled_data_loader_repeats_itself(self):
        outs = [
            self.steps((50, 5), DataLoader(Images(), batch_size=10, shuffle=True)) for _ in range(2)
        ]
        np.testing.assert_array_equal(outs[0]["0.weight"], outs[1]["0.weight"])

    def test_steps_beyond_one_pass(self):
        self.steps((50, 11), data(50), settings={"steps": 11})

    def test_evaluation_with_metrics(self):
        x, y = data(50)
        named = {
            "accuracy": metrics.accuracy,
            "f1": metrics.f1(label=2),
            "own": lambda outputs, targets: targets.float().mean(),
            "perplexity": metrics.perplexity(),
        }
        trainer = Trainer(mlp(), eval_data=(x, y), metrics=named, device="cpu", eval_batch_size=16)
        with agent_for(trainer) as agent:
            said = agent.hello()
            done = agent.ask("evaluate", weights_of(mlp()))
        self.assertEqual((said["train_examples"], said["holdout_examples"]), (0, 50))
        self.assertNotIn("gradient", said["supports"])
        self.assertEqual(said["metrics"][0]["name"], "accuracy")
        self.assertEqual(said["metrics"][3]["combine"], "log_mean")
        outputs = mlp()(x)
        loss = F.cross_entropy(outputs, y).item()
        self.assertAlmostEqual(done["loss"], loss, places=5)
        found = done["metrics"]
        right = (outputs.argmax(1) == y).float().mean().item()
        self.assertAlmostEqual(found["accuracy"], right, places=6)
        self.assertAlmostEqual(found["own"], y.float().mean().item(), places=6)
        self.assertAlmostEqual(found["perplexity"]["value"], np.exp(loss), places=4)
        said_two, is_two = outputs.argmax(1) == 2, y == 2
        below = (said_two.sum() + is_two.sum()).item()
        self.assertEqual(found["f1"]["weight"], below)
        expected = 2 * (said_two & is_two).sum().item() / below
        self.assertAlmostEqual(found["f1"]["value"], expected, places=6)


class Optimizers(unittest.TestCase):
    def test_supports(self):
        def supports(**options):
            return Trainer(mlp(), data(), device="cpu", **options).hello().supports

        everything = ["optimizer", "proximal", "correction", "clip_norm", "gradient", "initial"]
        self.assertEqual(supports(), everything)
        own = lambda parameters: torch.optim.SGD(parameters, 0.1)
        self.assertEqual(supports(optimizer=own), everything[1:])
        self.assertEqual(supports(keep_optimizer=True), everything[1:])

        class Own(Trainer):
            def train(self, task):
                return fl.TrainReport(1, 0.0)

        self.assertEqual(Own(mlp(), data()).supports(), everything[4:])

    def test_an_own_optimizer_is_used(self):
        own = lambda parameters: torch.optim.SGD(parameters, 0.0)
        with agent_for(Trainer(mlp(), data(), optimizer=own, device="cpu")) as agent:
            agent.hello()
            start = weights_of(mlp(4))
            out, _ = agent.train(start, lr=100)
        np.testing.assert_array_equal(out["0.weight"], start["0.weight"])

    def test_moments_are_kept_also_over_a_restart(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        settings = {"lr": 0.05, "momentum": 0.9, "steps": 3, "batch_size": 70}

        def trainer():
            made = Trainer(mlp(), data(), keep_optimizer=True, device="cpu")
            made.state_folder = folder.name
            return made

        start = weights_of(mlp())
        with agent_for(trainer()) as agent:
            agent.hello()
            first, _ = agent.train(start, round=1, **settings)
            second, _ = agent.train(first, round=2, **settings)
        with agent_for(trainer()) as agent:  # Killed in round 2, it trains this round again.
            agent.hello()
            again, _ = agent.train(first, round=2, **settings)
            agent.train(again, round=3, **settings)
        np.testing.assert_array_equal(second["0.weight"], again["0.weight"])
        self.assertEqual(len(list(pathlib.Path(folder.name).iterdir())), 2)
        module = mlp()
        optimizer = torch.optim.SGD(module.parameters(), 0.05, 0.9)
        x, y = data()
        for _ in range(6):
            optimizer.zero_grad()
            F.cross_entropy(module(x), y).backward()
            optimizer.step()
        np.testing.assert_allclose(
            second["0.weight"], module[0].weight.detach().numpy(), rtol=1e-4, atol=1e-6
        )

    def test_every_kind_of_state_is_kept(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = pathlib.Path(folder.name) / "state.safetensors"
        for make in (
            lambda p: torch.optim.SGD(p, 0.01),
            lambda p: torch.optim.SGD(p, 0.01, 0.9),
            lambda p: torch.optim.AdamW(p, 0.01),
            lambda p: torch.optim.LBFGS(p, 0.01, max_iter=3),
        ):
            module, (x, y) = mlp(), data()
            optimizer = make(module.parameters())

            def loss(module=module, optimizer=optimizer):
                optimizer.zero_grad()
                value = F.cross_entropy(module(x), y)
                value.backward()
                return value

            for _ in range(3):
                optimizer.step(loss)
            save_optimizer(optimizer, path)
            twin = mlp()
            twin.load_state_dict(module.state_dict())
            other = make(twin.parameters())
            load_optimizer(other, path)
            optimizer.step(loss)
            other.step(lambda: loss(twin, other))
            for ours, theirs in zip(module.parameters(), twin.parameters()):
                self.assertTrue(torch.equal(ours, theirs), optimizer)
        optimizer.state[next(module.parameters())]["more"] = object()
        with self.assertRaisesRegex(TypeError, "can't keep a object"):
            save_optimizer(optimizer, path)

    def test_bf16_autocast(self):
        with agent_for(Trainer(mlp(), data(), autocast="bf16", device="cpu")) as agent:
            agent.hello()
            out, _ = agent.train(weights_of(mlp()), lr=0.05)
        with agent_for(Trainer(mlp(), data(), device="cpu")) as agent:
            agent.hello()
            exact, _ = agent.train(weights_of(mlp()), lr=0.05)
        self.assertFalse(np.array_equal(out["0.weight"], exact["0.weight"]))
        np.testing.assert_allclose(out["0.weight"], exact["0.weight"], atol=0.01)


class Failing(unittest.TestCase):
    def test_divergence(self):
        with agent_for(Trainer(mlp(), data(), device="cpu")) as agent:
            agent.hello()
            start = weights_of(mlp())
            start["0.weight"][:] = np.inf
            said = agent.ask("train", start, settings={})
        self.assertEqual((said["type"], said["diverged"]), ("error", True))

    def test_batches_that_need_a_method_of_ones_own(self):
        class Records(Images):
            def __getitem__(self, number):
                x, y = super().__getitem__(number)
                return {"features": x, "label": y}

        class Own(Trainer):
            def train_step(self, batch):
                return F.cross_entropy(self.model(batch["features"]), batch["label"])

        with agent_for(Own(mlp(), Records(), device="cpu")) as agent:
            agent.hello()
            _, done = agent.train(weights_of(mlp()), batch_size=16)
        self.assertEqual(done["steps"], 4)
        before, sys.stderr = sys.stderr, open(os.devnull, "w")
        try:
            with agent_for(Trainer(mlp(), Records(), device="cpu")) as agent:
                agent.hello()
                said = agent.ask("train", weights_of(mlp()), settings={})
        finally:
            sys.stderr.close()
            sys.stderr = before
        self.assertIn("override inputs_and_targets", said["reason"])

    def test_data_that_can_not_be_trained_on_are_told(self):
        class Gone(Images):
            def __getitem__(self, number):
                raise FileNotFoundError("no such file: scan-17.png")

        def net():
            return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 3))

        def changed(at, value, part=1):
            both = [tensor.clone() for tensor in data(40)]
            both[part][at] = value
            return tuple(both)

        x, y = data(40)
        for train_data, reason, diverged in (
            (changed(0, 3), "Target 3 is out of bounds", False),
            (changed(0, -1), "Target -1 is out of bounds", False),
            ((x, y.int()), "expected scalar type Long|not implemented for 'Int'", False),
            (data(1), "Expected more than 1 value per channel", False),
            (Gone(), "FileNotFoundError: .*no such file: scan-17.png", False),
            (changed((0, 0), float("nan"), part=0), "the loss is nan", True),
            ((x[:0], y[:0]), "no examples", False),
        ):
            with self.subTest(reason=reason), open(os.devnull, "w") as sink:
                with contextlib.redirect_stderr(sink):
                    with agent_for(Trainer(net, train_data, device="cpu")) as agent:
                        said = agent.hello()
                        module = net()
                        start = {**weights_of(module), "1.running_mean": np.zeros(16)}
                        start["1.running_var"] = np.ones(16)
                        answer = agent.ask("train", start, settings={"epochs": 2, "lr": 0.1})
                        self.assertEqual(said["train_examples"], len(train_data[0])
                                         if isinstance(train_data, tuple) else 50)  # fmt: skip
                self.assertEqual((answer["type"], answer.get("diverged")), ("error", diverged))
                self.assertRegex(answer["reason"], f"(?s){reason}")

    def test_arrays_few_examples_and_large_numbers_are_trained_on(self):
        x, y = data(40)
        for inputs, targets in (x.numpy(), y.numpy()), (x[:2], y[:2]), (x * 1e20, y):
            out = Feeding.steps(self, (len(y[: len(targets)]), 1), (inputs, targets),
                                settings={"batch_size": 64, "lr": 1e-3})  # fmt: skip
            self.assertTrue(all(np.isfinite(tensor).all() for tensor in out.values()))

    def test_a_whole_train_of_ones_own(self):
        class Own(Trainer):
            def train(self, task):
                with torch.no_grad():
                    for parameter in self.model.parameters():
                        parameter.fill_(task.settings.lr)
                return fl.TrainReport(3, 0.5, examples=7)

        with agent_for(Own(mlp(), data(), device="cpu")) as agent:
            agent.hello()
            out, done = agent.train(weights_of(mlp()), lr=0.25)
        self.assertEqual((done["steps"], done["loss"], done["examples"]), (3, 0.5, 7))
        self.assertTrue((out["0.weight"] == 0.25).all())


if __name__ == "__main__":
    unittest.main()
