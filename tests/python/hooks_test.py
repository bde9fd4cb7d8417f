# SPDX-License-Identifier: Apache-2.0
"""tributary_fl.hooks under torch's DistributedDataParallel, with two and four ranks over Gloo; with
FL_TEST_DEVICE=cuda on a GPU, which all ranks share.

FL_BIN names the folder of the built programs."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import needs_torch
import numpy as np

import fake_agent

sys.path.insert(0, str(fake_agent.PACKAGE))

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tributary_fl import hooks

BIN = pathlib.Path(os.environ["FL_BIN"])
SCRIPT = pathlib.Path(__file__).with_name("hooks_ranks.py")


def start(ranks, folder):
    environment = {
        **os.environ,
        "PYTHONPATH": str(fake_agent.PACKAGE),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    return [
        subprocess.Popen(
            [sys.executable, SCRIPT, str(rank), str(ranks), folder], env=environment
        )
        for rank in range(ranks)
    ]  # fmt: skip


class Hooks:
    """The tests of a group; its ranks run all scenarios once."""

    ranks = 0

    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            running = start(cls.ranks, folder)
            try:
                cls.codes = [process.wait(120) for process in running]
            finally:
                for process in running:
                    process.kill()
                    process.wait()
            cls.files = {
                file.stem: dict(np.load(file)) for file in pathlib.Path(folder).glob("*.npz")
            }

    def of(self, scenario):
        """The results of each rank."""
        self.assertEqual(self.codes, [0] * (self.ranks - 1) + [9])
        return [self.files[f"{scenario}-{rank}"] for rank in range(self.ranks)]

    def check_same(self, found, name):
        for other in found[1:]:
            np.testing.assert_array_equal(found[0][name], other[name])

    def test_a_codec_without_loss_gives_the_mean_of_all_buckets(self):
        found = self.of("exact")
        for one in found:
            self.assertLess(max(one["errors"]), 1e-6)
            self.assertGreaterEqual(one["buckets"], 3)
            self.assertTrue(one["is_rebuilt"])
        self.check_same(found, "bits")

    def check_kept(self, scenario, tolerance):
        found = self.of(scenario)
        self.check_same(found, "bits")
        kept = np.mean([one["residual"] for one in found], axis=0)
        expected, total = found[0]["expected"], found[0]["total"]
        scale = np.abs(expected).max()
        np.testing.assert_allclose(total + kept, expected, rtol=0, atol=tolerance * scale)
        # And there was something to keep.
        self.assertGreater(np.abs(total - expected).max(), 100 * tolerance * scale)

    def test_residuals_hold_what_codes_lost_when_buckets_are_rebuilt(self):
        self.check_kept("codec_keeps", 1e-5)

    def test_residuals_hold_what_low_rank_lost_when_buckets_are_rebuilt(self):
        self.check_kept("powersgd_keeps", 1e-5)

    def test_training_converges_as_without_a_hook(self):
        found = self.of("training")
        plain = np.mean([one["plain_loss"] for one in found])
        self.assertLess(plain, 0.15)  # From 2.1.
        for name in "codec", "powersgd":
            self.check_same(found, name + "_bits")
            loss = np.mean([one[name + "_loss"] for one in found])
            self.assertLess(loss, plain + 0.1, name)
        if self.ranks == 2:
            self.assertEqual(found[0]["codec_bits"], found[0]["again_bits"])

    def test_the_bytes_are_those_of_theory(self):
        n = self.ranks
        for one in self.of("traffic"):
            code = one["size"] * 2 / 8  # Two bits a value.
            self.assertAlmostEqual(one["gather"] / ((n - 1) * code), 1, delta=0.02)
            self.assertAlmostEqual(one["parts"] / (2 * (n - 1) / n * code), 1, delta=0.03)
            self.assertEqual(one["auto"], one["gather" if n == 2 else "parts"])
            for exchange in "gather", "parts", "auto":
                self.assertEqual(one[exchange], one[exchange + "_given"])

    def test_a_size_that_no_payload_can_have_is_refused_before_there_is_memory_for_it(self):
        for one in self.of("announced"):
            for exchange in "gather", "parts":
                for size in -1, 2**40:
                    said = str(one[f"{exchange} {size}"])
                    self.assertIn(f"rank {self.ranks - 1} announces a payload of {size}", said)

    def test_without_feedback_the_mean_is_right_on_average(self):
        for one in self.of("unbiased"):
            self.assertGreater(one["one"], 0.1)
            self.assertLess(one["many"], 1.2 * one["one"] / np.sqrt(one["times"]))

    def test_an_overflow_on_one_rank_is_one_on_all_and_leaves_nothing(self):
        for rank, one in enumerate(self.of("overflow")):
            for exchange in "gather", "parts":
                self.assertTrue(one[exchange + "_nan"])
                self.assertTrue(one[exchange + "_same"])
                self.assertEqual(one[exchange + "_warned"], 1 if rank == 1 else 0)

    def test_low_rank_is_exact_where_the_factors_hold_all(self):
        for one in self.of("low_rank"):
            self.assertLess(max(one["errors"]), 1e-4)
            self.assertGreaterEqual(one["buckets"], 3)

    def test_sparse_gradients_are_averaged_as_they_are(self):
        found = self.of("sparse")
        self.check_same(found, "bits")
        for one in found:
            self.assertLess(max(one["errors"]), 1e-6)
            self.assertEqual(one["notes"], 4)  # Two layers, two hooks.
            self.assertFalse(one["has_residuals"])

    def test_both_parts_of_complex_gradients_are_coded(self):
        for one in self.of("complex_numbers"):
            self.assertLess(max(one["errors"]), 1e-6)
        self.check_kept("complex_numbers", 1e-5)

    def test_the_death_of_a_rank_is_an_error_of_the_backward_pass(self):
        self.assertEqual(self.codes, [0] * (self.ranks - 1) + [9])
        for rank in range(self.ranks - 1):
            one = self.files[f"death-{rank}"]
            self.assertEqual(one["step"], 2)
            self.assertIn(one["error"], ("RuntimeError", "DistBackendError", "DistNetworkError"))


HAS_CODECS = (BIN / "libfl-codec.so").exists()  # A sanitizer's build has not.


@unittest.skipUnless(HAS_CODECS, "this build has no libfl-codec.so")
class TwoRanks(Hooks, unittest.TestCase):
    ranks = 2

    def test_a_checkpoint_goes_on_with_the_same_bits(self):
        for one in self.of("resumed"):
            for name in "codec", "powersgd":
                self.assertTrue(one[name])
                self.assertIn("another model's", str(one[name + "_refusal"]))


@unittest.skipUnless(HAS_CODECS, "this build has no libfl-codec.so")
class FourRanks(Hooks, unittest.TestCase):
    ranks = 4


@unittest.skipUnless(HAS_CODECS, "this build has no libfl-codec.so")
class Arguments(unittest.TestCase):
    def test_what_a_hook_refuses(self):
        with self.assertRaisesRegex(RuntimeError, "init_process_group"):
            hooks.codec("ecuq:2")
        with tempfile.TemporaryDirectory() as folder:
            dist.init_process_group("gloo", init_method=f"file://{folder}/s", rank=0, world_size=1)
            try:
                for spec, text in {
                    "nonsense": "nonsense",
                    "delta+ecuq:1": "delta",
                    "topk:0.1+dgc:0.9": "momentum",
                }.items():
                    with self.assertRaisesRegex(ValueError, text):
                        hooks.codec(spec)
                with self.assertRaisesRegex(ValueError, "exchange"):
                    hooks.codec("ecuq:2", exchange="some")
                with self.assertRaisesRegex(ValueError, "rank"):
                    hooks.powersgd(0)
                # And with one rank a hook is a codec; its thread ends with this program.
                layer = DistributedDataParallel(torch.nn.Linear(100, 100))
                hook = hooks.codec("lossless")
                hook.register(layer)
                layer(torch.ones(1, 100)).sum().backward()
                self.assertTrue(torch.equal(layer.module.weight.grad, torch.ones(100, 100)))
                self.assertEqual(hook.state.bytes_sent, 0)
            finally:
                dist.destroy_process_group()


if __name__ == "__main__":
    unittest.main()
