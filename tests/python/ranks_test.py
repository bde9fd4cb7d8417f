# SPDX-License-Identifier: Apache-2.0
"""tributary_fl.torch.Trainer in programs of two ranks, as torchrun starts them: against a fake
fl-client, and in a whole run with the real programs."""

import os
import pathlib
import signal
import sys
import tempfile
import unittest
import unittest.mock

import needs_torch
import numpy as np

import fake_agent
from fake_agent import AgentWithProcess, agent_for

sys.path.insert(0, str(fake_agent.PACKAGE))
sys.path.insert(0, str(fake_agent.SOURCE / "tests" / "process"))

import torch
from torch import nn

import tributary_fl as fl
from federation import FederationTest, wait_until
from tributary_fl.torch import Trainer

START_TWO = (pathlib.Path(__file__).with_name("start_ranks.py"), "2")
MODEL = """
import os, pathlib, sys, torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import tributary_fl as fl
from tributary_fl.torch import Trainer, save

torch.set_num_threads(1)


def data(examples=70):
    x = torch.randn(examples, 8, generator=torch.Generator().manual_seed(5))
    return x, x[:, :3].argmax(1)


def module():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
"""
RANKS = (
    MODEL
    + """
folder = pathlib.Path(sys.argv[1])
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
(folder / f"pid-{rank}").write_text(str(os.getpid()))
x, y = data()


class Mine(Trainer):
    def train_step(self, batch):
        if rank == 1 and (folder / "fail").exists():
            raise OSError("the disk of rank 1 is gone")
        return super().train_step(batch)


model = DistributedDataParallel(module())
train_data = x[rank::ranks], y[rank::ranks]
fl.run(Mine(model, train_data, eval_data=(x[:20], y[:20]), device="cpu"), state=folder / "state")
dist.destroy_process_group()  # Else PyTorch aborts now and then at the program's end.
"""
)
exec(MODEL)


def start(folder):
    script = pathlib.Path(folder) / "train.py"
    script.write_text(RANKS)
    environment = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    return AgentWithProcess([*START_TWO, script, folder], folder, environment)


class TwoRanks(unittest.TestCase):
    """One program of two ranks answers all requests, as torchrun takes seconds to start."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.agent = start(cls.folder.name)
        cls.addClassCleanup(lambda: cls.agent.close())
        cls.hello = cls.agent.hello()
        cls.weights = {
            name: p.detach().numpy().copy() for name, p in module().named_parameters()
        }

    def alone(self, ask):
        """The answer of a trainer with one rank and all of the data."""
        with agent_for(Trainer(module(), data(), eval_data=data(20), device="cpu")) as agent:
            agent.hello()
            return ask(agent)

    def check_close(self, found, expected):
        for name in self.weights:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-6)

    def test_hello_counts_the_examples_of_all_ranks(self):
        self.assertEqual(self.hello["train_examples"], 70)
        self.assertEqual(self.hello["holdout_examples"], 20)
        names = [tensor["name"] for tensor in self.hello["tensors"]]
        self.assertEqual(names, list(self.weights))

    def test_two_ranks_train_as_one_with_twice_the_batch(self):
        correction = {name: np.full_like(w, 0.01) for name, w in self.weights.items()}
        settings = {"epochs": 5, "lr": 0.1, "momentum": 0.9, "proximal_mu": 0.1}
        found, done = self.agent.train(self.weights, correction, batch_size=35, **settings)
        expected, alone = self.alone(
            lambda agent: agent.train(self.weights, correction, batch_size=70, **settings)
        )
        self.check_close(found, expected)
        self.assertEqual(done["steps"], 5)
        self.assertAlmostEqual(done["loss"], alone["loss"], places=5)

    def test_accumulated_batches_make_one_step_of_all_ranks(self):
        # 35 examples of each rank are three batches: steps of two and of one.
        found, done = self.agent.train(self.weights, epochs=2, batch_size=12, accumulate=2, lr=0.1)
        again, _ = self.agent.train(self.weights, epochs=2, batch_size=12, accumulate=2, lr=0.1)
        self.assertEqual(done["steps"], 4)
        for name in self.weights:
            np.testing.assert_array_equal(found[name], again[name])
        found, done = self.agent.train(self.weights, steps=1, batch_size=18, accumulate=2, lr=0.1)
        expected, _ = self.alone(lambda agent: agent.train(self.weights, batch_size=70, lr=0.1))
        self.check_close(found, expected)

    def test_the_gradient_is_of_all_examples(self):
        def ask(agent):
            agent.ask("gradient", self.weights, settings={"weight_decay": 0.1, "seed": 1})
            return agent.out()

        self.check_close(ask(self.agent), self.alone(ask))

    def test_rank_0_measures_alone(self):
        found = self.agent.ask("evaluate", self.weights)
        expected = self.alone(lambda agent: agent.ask("evaluate", self.weights))
        self.assertEqual(found["examples"], 20)
        self.assertAlmostEqual(found["loss"], expected["loss"], places=5)

    def test_initial_weights_are_rank_0s(self):
        self.agent.ask("initial", seed=4)
        self.check_close(self.agent.out(), self.weights)

    def test_a_cancelled_or_diverged_request_leaves_the_ranks_in_step(self):
        before, _ = self.agent.train(self.weights, batch_size=8, lr=0.1)
        settings = {"epochs": 10**6, "batch_size": 8, "seed": 1, "lr": 0.1}
        number = self.agent.begin("train", self.weights, run="1", round=1, settings=settings)
        while not self.agent.progress:
            self.agent.progress += [self.agent.receive()]
        self.agent.send({"type": "cancel", "id": number})
        self.assertEqual(self.agent.end(number)["reason"], "cancelled")
        settings = {"epochs": 9, "batch_size": 8, "seed": 1, "lr": 1e38, "momentum": 0.9}
        said = self.agent.ask("train", self.weights, run="1", round=1, settings=settings)
        self.assertTrue(said["diverged"])
        after, _ = self.agent.train(self.weights, batch_size=8, lr=0.1)
        for name in self.weights:
            np.testing.assert_array_equal(before[name], after[name])

    def test_zzz_an_error_of_a_rank_ends_all_and_a_new_start_has_the_same_bits(self):
        before, _ = self.agent.train(self.weights, epochs=3, batch_size=8, lr=0.1)
        fail = pathlib.Path(self.folder.name) / "fail"
        fail.touch()
        with self.assertRaises((EOFError, ConnectionError)):
            self.agent.train(self.weights, epochs=3, batch_size=8, lr=0.1)
        self.assertNotEqual(self.agent.process.wait(60), 0)
        self.assertIn("the disk of rank 1 is gone", self.agent.log.read_text())
        fail.unlink()
        with tempfile.TemporaryDirectory() as folder:
            agent = start(folder)
            try:
                agent.hello()
                after, _ = agent.train(self.weights, epochs=3, batch_size=8, lr=0.1)
                agent.bye()
                self.assertEqual(agent.process.wait(60), 0, agent.log.read_text())
            finally:
                agent.close()
        for name in self.weights:
            np.testing.assert_array_equal(before[name], after[name])


ADAM = """
def adam(parameters, kind):
    return kind(parameters, lr=0.01, weight_decay=0.1)
"""
exec(ADAM)
PARTS_OF_AN_OPTIMIZER = (
    MODEL
    + ADAM
    + """
from torch.distributed.optim import ZeroRedundancyOptimizer

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
x, y = data()
made = []


def optimizer(parameters):
    def kind(parameters, **settings):
        return ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, **settings)

    made.append(adam(parameters, kind))
    return made[-1]


class Mine(Trainer):
    def train(self, *arguments, **named):
        done = super().train(*arguments, **named)
        folder = pathlib.Path(sys.argv[1])
        (folder / f"states-{rank}").write_text(str(len(made[-1].optim.state)))
        return done


train_data = x[rank::ranks], y[rank::ranks]
model = DistributedDataParallel(module())
trainer = Mine(model, train_data, optimizer=optimizer, keep_optimizer=True, device="cpu")
fl.run(trainer, state=sys.argv[1] + "/state")
dist.destroy_process_group()
"""
)


class PartsOfAnOptimizer(unittest.TestCase):
    def two_rounds(self, agent):
        """The weights after a round, and after another one that goes on with its moments."""
        agent.hello()
        weights = {name: p.detach().numpy().copy() for name, p in module().named_parameters()}
        settings = {"epochs": 3, "batch_size": self.batch_size}
        return [agent.train(weights, round=number, **settings)[0] for number in (1, 2)]

    def test_ranks_with_parts_of_the_optimizer_train_and_go_on_as_one_with_all(self):
        whole = lambda parameters: adam(parameters, torch.optim.AdamW)
        self.batch_size = 70
        with agent_for(
            Trainer(module(), data(), optimizer=whole, keep_optimizer=True, device="cpu")
        ) as agent:
            expected = self.two_rounds(agent)
        self.batch_size = 35
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder) / "train.py"
            script.write_text(PARTS_OF_AN_OPTIMIZER)
            environment = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
            agent = AgentWithProcess([*START_TWO, script, folder], folder, environment)
            try:
                found = self.two_rounds(agent)
                states = [int(pathlib.Path(folder, f"states-{i}").read_text()) for i in (0, 1)]
                agent.bye()
            finally:
                agent.close()
        self.assertEqual(sum(states), 4)  # Each of the four parameters has one rank's moments.
        self.assertNotIn(0, states)
        for one, other in zip(found, expected):
            for name in one:
                np.testing.assert_allclose(one[name], other[name], rtol=1e-4, atol=1e-5)
        self.assertGreater(max(np.abs(found[1][name] - found[0][name]).max() for name in found[0]), 1e-3)


TAGS = (
    MODEL
    + """
from tagger import Tagger


def tags():
    draw = torch.Generator().manual_seed(3)
    x, y = torch.randint(9, (12, 6), generator=draw), torch.randint(5, (12, 6), generator=draw)
    # Of a step's four examples, two of each rank; in the second step rank 1 has no target.
    for row, length in enumerate([6, 1, 6, 2, 6, 0, 3, 0, 1, 6, 6, 2]):
        y[row, length:] = -100
    return x, y


class InOrder(torch.utils.data.Sampler):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)

    def __len__(self):
        return len(self.rows)


def loader(rows, batch_size):
    data = torch.utils.data.TensorDataset(*tags())
    return torch.utils.data.DataLoader(data, batch_size, sampler=InOrder(rows))
"""
)
exec(TAGS)
TAG_RANKS = (
    TAGS
    + """
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
data = loader(range(rank, 12, ranks), 1)
model = DistributedDataParallel(Tagger())
fl.run(Trainer(model, data, device="cpu", accumulate=2), state=sys.argv[1] + "/state")
dist.destroy_process_group()
"""
)


class MaskedTargets(unittest.TestCase):
    def test_two_ranks_weigh_predictions_as_one_does(self):
        weights = {name: p.detach().numpy().copy() for name, p in Tagger().named_parameters()}
        with agent_for(Trainer(Tagger(), loader(range(12), 4), device="cpu")) as agent:
            agent.hello()
            expected, alone = agent.train(weights, epochs=2, lr=0.5)
            agent.ask("gradient", weights, settings={})
            gradient = agent.out()
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder) / "train.py"
            script.write_text(TAG_RANKS)
            folders = [str(fake_agent.PACKAGE), str(pathlib.Path(__file__).parent)]
            environment = {
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": os.pathsep.join(folders),
            }
            agent = AgentWithProcess([*START_TWO, script, folder], folder, environment)
            try:
                agent.hello()
                found, done = agent.train(weights, epochs=2, lr=0.5)
                agent.ask("gradient", weights, settings={})
                shared = agent.out()
                agent.bye()
            finally:
                agent.close()
        self.assertEqual(done["steps"], 6)
        self.assertEqual(done["predictions"], alone["predictions"])
        self.assertEqual(done["predictions"], int((tags()[1] != -100).sum()))
        self.assertAlmostEqual(done["loss"], alone["loss"], places=6)
        for name, start in weights.items():
            apart = np.linalg.norm(found[name] - expected[name])
            self.assertLess(apart, 1e-6 * np.linalg.norm(expected[name] - start))
            np.testing.assert_allclose(shared[name], gradient[name], rtol=1e-5, atol=1e-7)


ODD = (
    MODEL
    + """
# Before PyTorch 2.0, DistributedDataParallel takes no complex parameters over Gloo.
KIND = torch.complex64 if hasattr(torch, "compile") else torch.float32


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.words = nn.Embedding(9, 8, sparse=True)
        self.wave = nn.Parameter(torch.randn(8, 3, dtype=KIND))

    def forward(self, words):
        x = self.words(words)
        return (x.to(KIND) @ self.wave).abs()


def words():
    x = torch.randint(9, (70,), generator=torch.Generator().manual_seed(3))
    return x, x % 3
"""
)
exec(ODD)
ODD_RANKS = (
    ODD
    + """
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
x, y = words()
trainer = Trainer(DistributedDataParallel(Odd()), (x[rank::ranks], y[rank::ranks]), device="cpu")
fl.run(trainer, state=sys.argv[1] + "/state")
dist.destroy_process_group()
"""
)


class OddGradients(unittest.TestCase):
    def answers(self, agent, batch_size):
        """Trained weights without and with a method's term, and the gradient."""
        agent.hello()
        weights = {
            name: torch.view_as_real(p).numpy() if p.is_complex() else p.numpy()
            for name, p in Odd().state_dict().items()
        }
        settings = {"epochs": 3, "batch_size": batch_size, "lr": 0.5}
        found = [agent.train(weights, **settings)[0]]
        found.append(agent.train(weights, proximal_mu=0.5, **settings)[0])
        agent.ask("gradient", weights, settings={"weight_decay": 0.1})
        return [*found, agent.out()]

    def test_sparse_and_complex_gradients_of_two_ranks_are_those_of_one(self):
        with agent_for(Trainer(Odd(), words(), device="cpu")) as agent:
            expected = self.answers(agent, 70)
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder) / "train.py"
            script.write_text(ODD_RANKS)
            environment = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
            agent = AgentWithProcess([*START_TWO, script, folder], folder, environment)
            try:
                found = self.answers(agent, 35)
                agent.bye()
            finally:
                agent.close()
        for some, others in zip(found, expected):
            for name in others:
                np.testing.assert_allclose(some[name], others[name], rtol=1e-4, atol=1e-6)


class Refusals(unittest.TestCase):
    def test_a_rank_whose_trainer_knows_nothing_of_it(self):
        with unittest.mock.patch.dict(os.environ, {"RANK": "1", "WORLD_SIZE": "2"}):
            with self.assertRaisesRegex(fl.Error, "init_process_group"):
                fl.run(Trainer(module(), data(), device="cpu"))


class RealRun(FederationTest):
    def test_a_killed_rank_is_started_again(self):
        """The trainer ends with it, and fl-client starts all of it anew."""
        federation = self.make()
        script = federation.folder / "train.py"
        script.write_text(RANKS)
        torch.manual_seed(1)
        from tributary_fl.torch import save

        save(module(), federation.folder / "initial.safetensors")
        server = federation.server(
            *("--new-run", "--model", "custom:mine", "--codec", "ecuq:2+ef", "--rounds", 4),
            *("--initial-weights", federation.folder / "initial.safetensors"),
            *("--min-clients", 1, "--lr", 0.3, "--local-steps", 300),
        )
        trainer = " ".join(map(str, [sys.executable, *START_TWO, script, federation.folder]))
        variables = {
            "PYTHONPATH": fake_agent.PACKAGE,
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": 1,
        }
        flags = [f for name, v in variables.items() for f in ("--trainer-env", f"{name}={v}")]
        client = federation.client("a", "--trainer", trainer, *flags)
        wait_until("a round is done", lambda: federation.rounds_done() >= 1)
        victim = int((federation.folder / "pid-1").read_text())
        os.kill(victim, signal.SIGKILL)
        self.expect_exit(server)
        self.expect_exit(client)
        rows = federation.query("SELECT examples, loss FROM task WHERE state = 'accepted'")
        self.assertEqual([examples for examples, _ in rows], [70] * 4)
        self.assertLess(rows[-1][1], rows[0][1])
        self.assertNotEqual(int((federation.folder / "pid-1").read_text()), victim)
        states = federation.query("SELECT state FROM run ORDER BY id")
        self.assertEqual(states[-1], ("finished",))


if __name__ == "__main__":
    unittest.main()
