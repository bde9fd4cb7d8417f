# SPDX-License-Identifier: Apache-2.0
"""tributary_fl.torch.Trainer with a model that fully_shard (FSDP2) has sharded over two ranks:
against a fake fl-client, and in whole runs with the real programs under torchrun.

It needs PyTorch 2.8 or later, which Debian 12 and Ubuntu 24.04 do not have. Once build/torch-venv has
one, from PyPI and of several gigabytes, ctest runs this test with it. No GPU is needed; with
FL_TEST_DEVICE=cuda the ranks share one:

    tests/process/make-venv.sh build/torch-venv deploy/requirements-torch.txt
    FL_BIN=$PWD/build/bin build/torch-venv/bin/python tests/python/sharded_test.py"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

import needs_torch
import numpy as np

import fake_agent
from fake_agent import AgentWithProcess, agent_for

sys.path.insert(0, str(fake_agent.PACKAGE))
sys.path.insert(0, str(fake_agent.SOURCE / "tests" / "process"))

import torch

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 8):
    print(
        f"SKIPPED: {sys.executable} has PyTorch {torch.__version__}, but FSDP2 over Gloo takes 2.8: "
        "the first lines of this file say how to get it"
    )
    sys.exit(77)

import tributary_fl as fl
from federation import BIN, FederationTest, wait_until
from sharded_ranks import adam, clipped, data, make_net, measured
from tributary_fl.torch import Trainer, save

HERE = pathlib.Path(__file__).parent
RANKS = HERE / "sharded_ranks.py"
START = HERE / "start_ranks.py"
ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
CLOSE = {"rtol": 1e-5, "atol": 1e-6}  # From the result of one rank or a DistributedDataParallel.
AFTER_300_STEPS = {"rtol": 1e-4, "atol": 1e-5}
HARD = {"epochs": 5, "lr": 0.1, "momentum": 0.9, "proximal_mu": 0.1}


class ShardedTest(unittest.TestCase):
    def start(self, kind, *options, folder=None, ranks=2):
        """An agent with a program of so many ranks. Its folder is `agent.folder`."""
        if folder is None:
            folder = self.enterContext(tempfile.TemporaryDirectory())
        command = [START, ranks, RANKS, kind, folder, *options]
        agent = AgentWithProcess(command, folder, ENVIRONMENT)
        self.addCleanup(agent.close)
        agent.hello()
        return agent

    def end(self, agent):
        agent.bye()
        self.assertEqual(agent.process.wait(60), 0, agent.log.read_text())
        (agent.folder / "socket").unlink()

    def weights_of(self, agent, net=None):
        """A net's values of the tensors that this agent's trainer has named."""
        state = (net or make_net("norm.running_mean" in agent.shapes)).state_dict()
        return {name: state[name].numpy().copy() for name in agent.shapes}

    def alone(self, ask, **arguments):
        """The answer of a trainer with one rank and all of the data."""
        trainer = Trainer(
            make_net(), data(), eval_data=data(20), metrics=measured(), eval_batch_size=16,
            device=needs_torch.DEVICE, **arguments,
        )  # fmt: skip
        with agent_for(trainer) as agent:
            hello = agent.hello()
            return ask(agent) if ask else hello

    def check_close(self, found, expected, **tolerance):
        self.assertEqual(list(found), list(expected))
        for name in expected:
            np.testing.assert_allclose(
                found[name], expected[name], **(tolerance or CLOSE), err_msg=name
            )

    def check_same(self, found, expected):
        self.assertEqual(list(found), list(expected))
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name], name)


class TwoParts(ShardedTest):
    """One program of two ranks answers all requests, as its start takes seconds."""

    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        command = [START, 2, RANKS, "fsdp", cls.folder]
        cls.agent = AgentWithProcess(command, cls.folder, ENVIRONMENT)
        cls.addClassCleanup(cls.agent.close)
        cls.hello = cls.agent.hello()

    def setUp(self):
        self.weights = self.weights_of(self.agent)

    def test_hello_is_that_of_the_whole_model(self):
        self.assertEqual(self.hello, self.alone(None))
        self.assertNotIn("mix_again.weight", self.weights)
        self.assertNotEqual(self.hello["frozen"], "")

    def test_two_ranks_train_as_one_with_twice_the_batch(self):
        correction = {name: np.full_like(w, 0.01) for name, w in self.weights.items()}
        found, done = self.agent.train(self.weights, correction, batch_size=35, **HARD)
        expected, alone = self.alone(
            lambda agent: agent.train(self.weights, correction, batch_size=70, **HARD)
        )
        self.check_close(found, expected)
        self.assertEqual(done["steps"], 5)
        self.assertAlmostEqual(done["loss"], alone["loss"], places=5)
        again, _ = self.agent.train(self.weights, correction, batch_size=35, **HARD)
        self.check_same(again, found)

    def test_gradients_are_clipped_by_the_length_of_all_parts_together(self):
        settings = {**HARD, "clip_norm": 0.05}
        found, _ = self.agent.train(self.weights, batch_size=35, **settings)
        expected, _ = self.alone(lambda agent: agent.train(self.weights, batch_size=70, **settings))
        self.check_close(found, expected)
        longer, _ = self.agent.train(self.weights, batch_size=35, **HARD)
        self.assertGreater(max(np.abs(longer[n] - w).max() for n, w in expected.items()), 1e-3)

    def test_accumulated_batches_make_one_step_of_all_ranks(self):
        found, _ = self.agent.train(self.weights, steps=1, batch_size=18, accumulate=2, lr=0.1)
        expected, _ = self.alone(lambda agent: agent.train(self.weights, batch_size=70, lr=0.1))
        self.check_close(found, expected)

    def test_the_gradient_is_of_all_examples(self):
        def ask(agent):
            agent.ask("gradient", self.weights, settings={"weight_decay": 0.1, "seed": 1})
            return agent.out()

        self.check_close(ask(self.agent), self.alone(ask))

    def test_an_evaluation_is_exact_and_leaves_nothing_behind(self):
        """After it the root's parameters are whole and of the measured weights."""
        before, _ = self.agent.train(self.weights, batch_size=8, lr=0.1)
        others = {name: values * 1.5 for name, values in self.weights.items()}
        for weights in (others, self.weights):
            found = self.agent.ask("evaluate", weights)
            expected = self.alone(lambda agent: agent.ask("evaluate", weights))
            self.assertEqual(found["examples"], 20)
            self.assertAlmostEqual(found["loss"], expected["loss"], places=5)
            self.assertEqual(found["metrics"], expected["metrics"])
            self.assertEqual(set(found["metrics"]), {"accuracy", "area", "f1"})
        self.agent.ask("evaluate", others)
        after, _ = self.agent.train(self.weights, batch_size=8, lr=0.1)
        self.check_same(after, before)

    def test_initial_weights_are_those_of_the_module(self):
        self.agent.ask("initial", seed=4)
        self.check_same(self.agent.out(), self.weights)

    def test_no_rank_receives_more_than_parts(self):
        self.agent.train(self.weights, batch_size=70)
        for rank in (0, 1):
            largest = int((self.agent.folder / f"received-{rank}").read_text())
            self.assertEqual(largest, 32)  # A half of a weight of 8 x 8.

    def test_a_cancelled_or_diverged_request_leaves_the_ranks_in_step(self):
        before, _ = self.agent.train(self.weights, batch_size=8, lr=0.1)
        settings = {"epochs": 10**6, "batch_size": 8, "seed": 1, "lr": 0.1}
        number = self.agent.begin("train", self.weights, run="1", round=1, settings=settings)
        self.agent.progress.clear()
        while not self.agent.progress:
            self.agent.progress += [self.agent.receive()]
        self.agent.send({"type": "cancel", "id": number})
        self.assertEqual(self.agent.end(number)["reason"], "cancelled")
        settings = {"epochs": 9, "batch_size": 8, "seed": 1, "lr": 1e38, "momentum": 0.9}
        said = self.agent.ask("train", self.weights, run="1", round=1, settings=settings)
        self.assertTrue(said["diverged"])
        nothing = {name: np.full_like(w, np.nan) for name, w in self.weights.items()}
        self.assertTrue(self.agent.ask("evaluate", nothing)["diverged"])
        after, _ = self.agent.train(self.weights, batch_size=8, lr=0.1)
        self.check_same(after, before)

    def test_zzz_an_error_of_a_rank_ends_all_and_a_new_start_has_the_same_bits(self):
        before, _ = self.agent.train(self.weights, epochs=3, batch_size=8, lr=0.1)
        fail = pathlib.Path(self.folder) / "fail"
        fail.touch()
        with self.assertRaises((EOFError, ConnectionError)):
            self.agent.train(self.weights, epochs=3, batch_size=8, lr=0.1)
        self.assertNotEqual(self.agent.process.wait(60), 0)
        self.assertIn("the disk of rank 1 is gone", self.agent.log.read_text())
        agent = self.start("fsdp")
        after, _ = agent.train(self.weights, epochs=3, batch_size=8, lr=0.1)
        self.end(agent)
        self.check_same(after, before)


class OtherPrograms(ShardedTest):
    def test_norms_and_uneven_ranks_are_as_with_a_distributed_data_parallel(self):
        """Rank 0 has three batches, in steps of two and of one; rank 1 has two. So in each second
        step rank 0 has one batch, and rank 1 two."""
        found = {}
        for kind in ("fsdp", "ddp"):
            agent = self.start(kind, "norm", "uneven")
            weights = self.weights_of(agent)
            found[kind] = [
                agent.train(weights, steps=1, batch_size=16, accumulate=2, lr=0.1)[0],
                agent.train(weights, epochs=3, batch_size=16, accumulate=2, lr=0.1)[0],
            ]
            agent.ask("gradient", weights, settings={"seed": 1})
            found[kind].append(agent.out())
            self.end(agent)
        for sharded, whole in zip(found["fsdp"], found["ddp"]):
            self.assertIn("norm.running_mean", sharded)
            names = [name for name in whole if not name.startswith("norm.running")]
            self.check_close({n: sharded[n] for n in names}, {n: whole[n] for n in names})
        # The repeated batches, which train nothing, count in rank 0's statistics.
        for name in ("norm.running_mean", "norm.running_var"):
            np.testing.assert_allclose(found["fsdp"][0][name], found["ddp"][0][name], **CLOSE)

    def test_moments_last_over_a_restart(self):
        agent = self.start("fsdp", "adam", "keep")
        weights = self.weights_of(agent)
        first, _ = agent.train(weights, round=1, batch_size=35)
        second, _ = agent.train(first, round=2, batch_size=35)
        fresh, _ = agent.train(first, round=1, batch_size=35)  # A round without one before it.
        self.end(agent)
        kept = sorted(file.name for file in (agent.folder / "state").glob("optimizer-*"))
        run = "3f0c9a1b22d4e871"
        self.assertEqual(
            kept,
            [f"optimizer-{r}of2-{run}-00000{n}.safetensors" for r in (0, 1) for n in (1, 2)],
        )
        with self.assertRaises(AssertionError):
            self.check_close(fresh, second)

        def both_rounds(alone):
            one, _ = alone.train(weights, round=1, batch_size=70)
            return alone.train(one, round=2, batch_size=70)[0]

        with tempfile.TemporaryDirectory() as folder:
            # As run() does.
            expected = self.alone_in(folder, both_rounds)
        self.check_close(second, expected, rtol=1e-4, atol=1e-5)
        agent = self.start("fsdp", "adam", "keep")
        first, _ = agent.train(weights, round=1, batch_size=35)
        self.end(agent)
        agent = self.start("fsdp", "adam", "keep", folder=agent.folder)
        # Rank 1 was killed before it had written what rank 0 has of round 2.
        again, _ = agent.train(first, round=2, batch_size=35)
        (agent.folder / "state" / kept[3]).unlink()
        third, _ = agent.train(first, round=3, batch_size=35)
        self.end(agent)
        self.check_same(again, second)
        self.check_same(third, second)

    def alone_in(self, folder, ask):
        trainer = Trainer(
            make_net(), data(), optimizer=adam, keep_optimizer=True, device=needs_torch.DEVICE,
        )  # fmt: skip
        trainer.state_folder = folder
        with agent_for(trainer) as agent:
            agent.hello()
            return ask(agent)

    def test_one_rank_and_four(self):
        def ask(agent):
            weights = self.weights_of(agent)
            agent.ask("gradient", weights, settings={"weight_decay": 0.1, "seed": 1})
            return agent.out(), agent.ask("evaluate", weights)["metrics"]

        expected = self.alone(ask)
        for ranks in (1, 4):
            with self.subTest(ranks=ranks):
                agent = self.start("fsdp", ranks=ranks)
                agent.ask("initial", seed=4)
                self.check_same(agent.out(), self.weights_of(agent))
                gradient, measured = ask(agent)
                self.end(agent)
                self.check_close(gradient, expected[0])
                self.assertEqual(measured, expected[1])

    def test_gradients_are_averaged_where_gloo_adds_them_up(self):
        agent = self.start("fsdp", "adds")
        weights = self.weights_of(agent)
        found, _ = agent.train(weights, batch_size=35, lr=0.1)
        self.end(agent)
        expected, _ = self.alone(lambda alone: alone.train(weights, batch_size=70, lr=0.1))
        self.check_close(found, expected)

    def test_a_clipped_gradient_is_clipped_by_the_norm_of_all_parts(self):
        agent = self.start("fsdp", "clip")
        weights = self.weights_of(agent)
        found, _ = agent.train(weights, epochs=4, batch_size=35)
        self.end(agent)
        expected, _ = self.alone(
            lambda alone: alone.train(weights, epochs=4, batch_size=70), optimizer=clipped
        )
        self.check_close(found, expected)

    def test_wrapped_models_have_the_names_of_the_module_itself(self):
        """Compiled, with blocks whose activations are checkpointed."""
        for kind in ("fsdp", "ddp"):
            with self.subTest(kind):
                agent = self.start(kind, "wrapped")
                weights = self.weights_of(agent)
                self.assertEqual(set(weights), {t["name"] for t in self.alone(None)["tensors"]})
                found, _ = agent.train(weights, steps=1, batch_size=18, accumulate=2, lr=0.1)
                agent.ask("gradient", weights, settings={"seed": 1})
                gradient = agent.out()
                measured = agent.ask("evaluate", weights)
                self.end(agent)
                expected, _ = self.alone(lambda a: a.train(weights, batch_size=70, lr=0.1))
                self.check_close(found, expected)
                self.assertEqual(measured["examples"], 20)
                self.assertEqual(list(gradient), list(weights))

    def test_mixed_precision_is_the_users(self):
        agent = self.start("fsdp", "mixed")
        weights = self.weights_of(agent)
        found, done = agent.train(weights, epochs=20, batch_size=35, lr=0.1)
        again, _ = agent.train(weights, epochs=20, batch_size=35, lr=0.1)
        self.end(agent)
        self.check_same(found, again)
        expected, alone = self.alone(
            lambda agent: agent.train(weights, epochs=20, batch_size=70, lr=0.1)
        )
        self.check_close(found, expected, rtol=0.1, atol=0.05)
        self.assertNotAlmostEqual(done["loss"], alone["loss"], places=6)  # It was bfloat16.

    def test_an_overflow_on_one_rank_is_one_on_all(self):
        """Else one rank takes the step and the other one leaves it out."""
        agent = self.start("fsdp", "fp16")
        weights = self.weights_of(agent)
        (agent.folder / "overflow").touch()
        first, _ = agent.train(weights, steps=1, batch_size=35, lr=0.1)
        self.check_same(first, weights)
        (agent.folder / "overflow").unlink()
        second, _ = agent.train(weights, steps=1, batch_size=35, lr=0.1)
        self.end(agent)
        expected, _ = self.alone(
            lambda alone: alone.train(weights, steps=1, batch_size=70, lr=0.1)
        )
        self.check_close(second, expected, rtol=0.02, atol=0.002)

    def test_initial_weights_of_a_function_are_those_of_the_seed(self):
        agent = self.start("fsdp", "factory")
        drawn = []
        for seed in (3, 4, 3):
            agent.ask("initial", seed=seed)
            drawn.append(agent.out())
        self.end(agent)
        self.check_same(drawn[0], drawn[2])
        self.check_same(drawn[0], self.weights_of(agent, make_net(seed=3)))
        self.assertTrue((drawn[0]["last.weight"] != drawn[1]["last.weight"]).any())


REFUSED = """
import sys, torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from tributary_fl.torch import Trainer, save

dist.init_process_group("gloo")
data = torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64)


def say(what, make, **arguments):
    try:
        Trainer(make(), data, device=arguments.pop("device", "cpu"), **arguments)
        said = "taken"
    except (TypeError, ValueError) as error:
        said = str(error)
    if dist.get_rank() == 0:
        print(f"{what}: {said}")


def replicas():
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    return fully_shard(nn.Linear(3, 4), mesh=mesh)


def ignored():
    model = nn.Linear(3, 4)
    return fully_shard(model, ignored_params={model.bias})


def ignored_and_frozen():
    model = nn.Linear(3, 4)
    model.bias.requires_grad_(False)
    return fully_shard(model, ignored_params={model.bias})


def on_meta():
    with torch.device("meta"):
        return fully_shard(nn.Linear(3, 4))


def layers_only():
    return nn.Sequential(fully_shard(nn.Linear(3, 4)))


def other_shapes():
    return fully_shard(nn.Linear(3, 4 + dist.get_rank()))


say("whole", lambda: fully_shard(nn.Linear(3, 4)))
say("frozen by a pattern", lambda: fully_shard(nn.Linear(3, 4)), frozen=["bias"])
say("ignored and frozen", ignored_and_frozen)
for make in (replicas, ignored, on_meta, layers_only, other_shapes):
    say(make.__name__, make)
say("device", lambda: fully_shard(nn.Linear(3, 4)), device="cuda")
try:
    save(fully_shard(nn.Linear(3, 4)), "never")
except TypeError as error:
    if dist.get_rank() == 0:
        print(f"save: {error}")
dist.destroy_process_group()
"""


class Refusals(unittest.TestCase):
    def test_what_cannot_be_trained_is_refused_with_its_reason(self):
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder) / "refused.py"
            script.write_text(REFUSED)
            environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(fake_agent.PACKAGE)}
            done = subprocess.run(
                [sys.executable, str(START), "2", str(script)], env=environment,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
            )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stdout)
        said = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
        for what in ("whole", "frozen by a pattern", "ignored and frozen"):
            self.assertEqual(said[what], "taken")
        for what, reason in {
            "replicas": "one mesh of one dimension",
            "ignored": "'bias' is trained and not sharded",
            "on_meta": "'weight' is on the meta device",
            "layers_only": "the model itself, not only its layers",
            "other_shapes": "all ranks must make the same model",
            "device": "so it can't be on 'cuda'",
            "save": "before fully_shard",
        }.items():
            self.assertIn(reason, said[what])


class RealRuns(FederationTest):
    """One client, whose program torchrun starts."""

    TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    ROUNDS = 3

    def run_of(self, name, kind, batch, kill=False, codec="none"):
        """Runs a whole federation. Returns it, and the last model."""
        federation = self.make(name)
        save(make_net(), federation.folder / "initial.safetensors")
        server = federation.server(
            *("--new-run", "--model", "custom:mine", "--codec", codec, "--rounds", self.ROUNDS),
            *("--initial-weights", federation.folder / "initial.safetensors"),
            *("--min-clients", 1, "--lr", 0.1, "--local-steps", 100, "--batch-size", batch),
        )
        start = [] if kind == "alone" else self.TORCHRUN
        trainer = " ".join(map(str, [sys.executable, *start, RANKS, kind, federation.folder]))
        variables = {**ENVIRONMENT, "PYTHONPATH": fake_agent.PACKAGE}
        flags = [f for name, v in variables.items() for f in ("--trainer-env", f"{name}={v}")]
        client = federation.client("a", "--trainer", trainer, *flags)
        if kill:
            wait_until("a round is done", lambda: federation.rounds_done() >= 1)
            os.kill(int((federation.folder / "pid-1").read_text()), signal.SIGKILL)
        self.expect_exit(server)
        self.expect_exit(client)
        rows = federation.query("SELECT examples, loss FROM task WHERE state = 'accepted'")
        self.assertEqual([examples for examples, _ in rows], [70] * self.ROUNDS)
        self.assertLess(rows[-1][1], rows[0][1])
        file = federation.checkpoints / f"round-{self.ROUNDS:06}.safetensors"
        return federation, fl.load(file)

    def test_a_sharded_model_is_trained_as_a_whole_one(self):
        sharded, found = self.run_of("sharded", "fsdp", 35)
        names = [name for name in found if not name.startswith("frozen.")]
        self.assertEqual(len(names), 12)
        for name, kind, batch in (("whole", "ddp", 35), ("alone", "alone", 70)):
            _, expected = self.run_of(name, kind, batch)
            for tensor in names:
                np.testing.assert_allclose(
                    found[tensor], expected[tensor], **AFTER_300_STEPS, err_msg=tensor
                )
        again, _ = self.run_of("again", "fsdp", 35)
        self.assertEqual(again.digests(), sharded.digests())
        killed, _ = self.run_of("killed", "fsdp", 35, kill=True)
        self.assertEqual(killed.digests(), sharded.digests())

    def test_the_guides_program_takes_part(self):
        page = (fake_agent.SOURCE / "docs" / "guide" / "own-model.md").read_text()
        programs = dict(re.findall(r"^```py(?:thon)?\n# (\w+\.py)\n(.*?)^```$", page, re.M | re.S))
        federation = self.make()
        folder, site = federation.folder, federation.folder / "site-1"
        for name in ("train.py", "fsdp.py"):
            (folder / name).write_text(programs[name])
        site.mkdir()
        program = [sys.executable, *self.TORCHRUN, folder / "fsdp.py", site]
        variables = {**ENVIRONMENT, "PYTHONPATH": fake_agent.PACKAGE}
        flags = [f for name, v in variables.items() for f in ("--trainer-env", f"{name}={v}")]
        flags += ["--state", folder / "initial", "--trainer", " ".join(map(str, program))]
        file = folder / "digits.safetensors"
        first = federation.start("initial", [BIN / "fl-client", *flags, "initial-weights", file])
        self.expect_exit(first)
        server = federation.server(
            *("--new-run", "--model", "custom:digits", "--rounds", 3, "--min-clients", 1),
            *("--initial-weights", file, "--codec", "ecuq:1+ef", "--lr", 0.05),
        )
        (site / "token").write_text(federation.token("site-1"))
        client = federation.start(
            "program", ["env", *(f"{name}={v}" for name, v in variables.items()), *program]
        )
        self.expect_exit(client)
        self.expect_exit(server)
        losses = [loss for (loss,) in federation.query("SELECT loss FROM task ORDER BY rowid")]
        self.assertEqual(len(losses), 3)
        self.assertLess(losses[-1], losses[0])


if __name__ == "__main__":
    unittest.main()
