# SPDX-License-Identifier: Apache-2.0
"""The steps of a site's ranks: what one process does with larger batches, for all kinds of models and
of batches, and by each way of sums. Real programs over Gloo on loopback."""

import math
import random
import re
import unittest

from federation import BIN, wait_until, write_images
from sim_test import read_tensors
from site_runs import EXAMPLES, MODEL, SiteTest

TRAINED = 87  # Examples for training; the others are held out.
GRADIENT_MB = 4 * (784 * 16 + 16 + 16 * 10 + 10) / 1e6
# How often rank 0 of three sends the whole gradient in a step, to be told how it was summed.
SENT_BY_TOPOLOGY = {
    "ring": 4 / 3,
    "tree": 2,
    "pipelined": 1,
    "alltoall": 4 / 3,
    "hierarchical": 2,
    "hybrid": 2,
}
TEXT_MODEL = "transformer:layers=1,width=16,heads=2,context=16"
ROUNDING = 1e-5  # The change of a value, or of 1 if it is smaller, that sums in another order may cause.


def write_texts(folder):
    """Texts of 2 to 17 bytes, an example each."""
    folder.mkdir()
    draw = random.Random(5)
    for number in range(EXAMPLES):
        letters = draw.choices("abcdefgh ", k=2 + number * 7 % 16)
        (folder / f"{number:03}.txt").write_text("".join(letters))
    return folder


def distance(one, other):
    return math.dist(*(sum((model[name] for name in sorted(model)), ()) for model in (one, other)))


@unittest.skipUnless((BIN / "fl-rank").exists(), "built without libtorch")
class SiteSteps(SiteTest):
    def both(self, ranks, batch, name="", site=(), larger=1, **run):
        """Trains with one process and with so many ranks. Returns the values of both, and what the
        client of the ranks has logged."""
        whole = ranks * batch * larger
        flags = site if "--keep-moments" in site else ()
        alone, _, _ = self.run_of(*flags, batch=whole, name=f"alone{name}", **run)
        tasks = self.federation.query("SELECT round, examples, steps FROM task")
        run["server"] = (*run.get("server", ()), "--accumulate", larger)
        many, digests, client = self.run_of(
            "--ranks", ranks, *site, batch=batch, name=f"ranks{name}", **run
        )
        # The update's weight is that of all the site's examples.
        self.assertEqual(self.federation.query("SELECT round, examples, steps FROM task"), tasks)
        self.assertEqual({examples for _, examples, _ in tasks}, {TRAINED})
        return alone, many, client, digests

    def sent_per_step(self, client, steps):
        """How often the first rank has sent the whole gradient in each step of a round."""
        told = re.findall(r"each sent ([\d.e-]+) MB of gradients", client.stderr())
        return [float(megabytes) / steps / GRADIENT_MB for megabytes in told]

    def test_ranks_train_as_one_with_larger_batches(self):
        """N ranks with batches of B examples and one process with batches of N * B make the same
        update, up to rounding, also where the parts of the last batch differ by one example, and
        where a rank has none of it."""
        for optimizer, ranks, batch, last in (
            ("adamw", 3, 8, 15),
            ("sgd", 2, 13, 9),
            ("adamw", 4, 7, 3),
        ):
            with self.subTest(ranks=ranks, batch=batch):
                self.assertEqual(TRAINED % (ranks * batch), last)
                server = ("--optimizer", optimizer)
                alone, many, _, _ = self.both(
                    ranks, batch, f"-{ranks}", ("--keep-moments",), server=server
                )
                self.assert_near(alone, many, ROUNDING)

    def test_ranks_make_the_same_bits_in_each_run(self):
        site = ("--ranks", 3, "--keep-moments")
        server = ("--optimizer", "adamw")
        once, again = (
            self.run_of(*site, batch=8, name=name, server=server)[1] for name in ("once", "again")
        )
        self.assertEqual(once, again)

    def test_accumulated_gradients_are_reduced_once_a_step(self):
        alone, many, client, _ = self.both(2, 8, larger=3)
        self.assert_near(alone, many, ROUNDING)
        for sent in self.sent_per_step(client, steps=2):
            self.assertAlmostEqual(sent, 1, delta=0.01)

    def test_ranks_train_each_kind_of_built_in_model(self):
        """A BatchNorm sees a rank's own examples, so of the model with BatchNorms only the first
        one's statistics are those of one process: they are means over the ranks."""
        server = ("--local-steps", 1, "--lr", 0.01)
        for model in ("linear:784-1", "logistic", "cnn", "resnet8"):
            with self.subTest(model=model):
                alone, many, _, _ = self.both(
                    2, 9, f"-{model}", model=model, rounds=1, server=server
                )
                if model == "resnet8":
                    kept = ("bn1.running_mean", "bn1.running_var")
                    alone, many = ({name: each[name] for name in kept} for each in (alone, many))
                    self.assertTrue(any(abs(value) > 0.01 for value in many[kept[0]]))
                self.assert_near(alone, many, ROUNDING)

    def test_texts_of_any_lengths_weigh_their_bytes(self):
        """Two ranks, and batches in parts, make the update of one process with the whole batch. With
        a mean of the parts' means it would be off by percents."""
        text = {"model": TEXT_MODEL, "kind": "text", "write": write_texts, "rounds": 1}
        server = ("--local-steps", 2, "--lr", 0.5)
        alone, many, _, _ = self.both(2, 8, "-text", **text, server=server)
        (weighed,) = self.federation.query("SELECT predictions, examples FROM task")
        self.assertEqual(weighed[1], TRAINED)
        self.assertGreater(weighed[0], 2 * TRAINED)
        start = read_tensors(self.federation.checkpoints / "round-000000.safetensors")
        self.assertLess(distance(many, alone), ROUNDING * distance(alone, start))
        server = (*server, "--accumulate", 4)
        parts, _, _ = self.run_of(batch=4, name="parts-text", **text, server=server)
        self.assertLess(distance(parts, alone), ROUNDING * distance(alone, start))

    def test_every_topology_makes_the_same_sums(self):
        """The bytes that the first rank sends show by which way sums went."""

        def run(*topology):
            name = "-".join(topology) or "own"
            values, digests, client = self.run_of(
                "--ranks", 3, *topology, batch=8, rounds=1, name=name
            )
            return values, digests[-1], client

        plain, _, _ = run()
        made = {}
        for topology, copies in SENT_BY_TOPOLOGY.items():
            with self.subTest(topology=topology):
                values, made[topology], client = run("--topology", topology)
                self.assert_near(plain, values, ROUNDING)
                (sent,) = self.sent_per_step(client, steps=4)
                self.assertAlmostEqual(sent, copies, delta=0.01 * copies)
        values, digest, client = run("--topology", "auto")
        self.assert_near(plain, values, ROUNDING)
        chosen = re.findall(r"gradients are summed by the topology (\w+), as measured now", client.stderr())
        self.assertEqual(len(chosen), 3, "all ranks say so")
        self.assertEqual(len(set(chosen)), 1, "and have chosen the same")
        if chosen[0] in made:
            self.assertEqual(digest, made[chosen[0]])

    def test_what_ranks_can_not_do_is_said_at_the_start(self):
        for model, flags, text in (
            (MODEL, ("--topology", "best"), "no topology 'best'; there are: .*ring.*, auto"),
            (
                MODEL,
                ("--topology", "tree", "--hook", "powersgd:4"),
                "--topology tree goes with --hook allreduce only; with powersgd:4 use hierarchical",
            ),
            (
                MODEL,
                ("--topology", "hierarchical", "--hook", "post-local-sgd:4"),
                "--hook post-local-sgd:4 has groups of its own and no --topology",
            ),
            (
                MODEL,
                ("--topology", "auto", "--hook", "post-local-sgd:8"),
                "--hook post-local-sgd:8 has groups of its own and no --topology",
            ),
            (MODEL, ("--backend", "nccl"), "--backend nccl: .*; use gloo"),
            (MODEL, ("--hogwild", 2), "--hogwild and the ranks of a site don't go together"),
            ("synthetic:100", (), 'model "synthetic:100" takes no steps that the ranks'),
        ):
            with self.subTest(text):
                federation = self.make(f"{len(flags)}-{flags[-1:]}")
                federation.server("--new-run", "--min-clients", 1, "--model", model)
                data = write_images(federation.folder / "data", EXAMPLES)
                client = federation.client("site", "--ranks", 2, "--data", f"idx:{data}", *flags)
                self.expect_exit(client, 1)
                self.assertRegex(client.stderr(), text)

    def test_the_server_hears_that_a_hook_does_not_go_with_its_optimizer(self):
        federation = self.make()
        server = ("--new-run", "--min-clients", 1, "--model", MODEL, "--optimizer", "adamw")
        federation.server(*server)
        data = write_images(federation.folder / "data", EXAMPLES)
        flags = ("--ranks", 2, "--data", f"idx:{data}", "--hook", "onebit-adam:2")
        client = federation.client("site", *flags)
        text = "it needs --optimizer sgd without momentum and weight decay"
        wait_until(
            "the event", lambda: text in federation.server_command("history", "--events")[1]
        )
        self.assertTrue(client.running())  # The next run may have another optimizer.


if __name__ == "__main__":
    unittest.main()
