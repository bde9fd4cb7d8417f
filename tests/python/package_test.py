# SPDX-License-Identifier: Apache-2.0
"""The parts of tributary_fl that need no trainer: metrics, codecs, types, and its version.

FL_BIN names the folder of the built programs."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import numpy as np

from fake_agent import PACKAGE, SOURCE

sys.path.insert(0, str(PACKAGE))

import tributary_fl as fl
from tributary_fl import _programs, codec, metrics

BIN = pathlib.Path(os.environ["FL_BIN"])
HAS_CODECS = (BIN / "libfl-codec.so").exists()  # A sanitizer's build has not.


def measured(metric, outputs, targets, parts=3):
    """The metric of all examples, told in parts."""
    metric = metrics.as_metric(metric)
    metric.reset()
    for some, others in zip(np.array_split(outputs, parts), np.array_split(targets, parts)):
        metric.update(some, others)
    return metric.result()


def over_clients(metric, outputs, targets):
    """The server's mean of two clients of different sizes."""
    found = []
    for part in slice(0, 30), slice(30, None):
        value = measured(metric, outputs[part], targets[part])
        examples = len(outputs[part])
        found.append(value if isinstance(value, tuple) else (value, examples))
    values, weights = np.array(found).T
    if metrics.as_metric(metric).combine == "log_mean":
        return np.exp(np.average(np.log(values), weights=weights))
    return np.average(values, weights=weights)


class Metrics(unittest.TestCase):
    def setUp(self):
        draw = np.random.default_rng(5)
        self.scores = draw.standard_normal((100, 7))
        self.classes = draw.integers(0, 7, 100)
        self.values = draw.standard_normal(100)
        self.targets = self.values + draw.standard_normal(100) / 2

    def check(self, metric, outputs, targets, expected, is_exact=True):
        found = measured(metric, outputs, targets)
        found = found[0] if isinstance(found, tuple) else found
        self.assertAlmostEqual(found, expected, places=10)
        if is_exact:
            self.assertAlmostEqual(over_clients(metric, outputs, targets), expected, places=10)

    def test_of_classes(self):
        said = self.scores.argmax(1)
        right = (said == self.classes).mean()
        self.check(metrics.accuracy, self.scores, self.classes, right)
        self.check(metrics.top_k(1), self.scores, self.classes, right)
        order = np.argsort(-self.scores, axis=1)[:, :3]
        in_three = (order == self.classes[:, None]).any(1).mean()
        self.check(metrics.top_k(3), self.scores, self.classes, in_three)
        hits = ((said == 4) & (self.classes == 4)).sum()
        f1 = 2 * hits / ((said == 4).sum() + (self.classes == 4).sum())
        self.check(metrics.f1(4), self.scores, self.classes, f1)
        logits = np.log(np.exp(self.scores) / np.exp(self.scores).sum(1, keepdims=True))
        loss = -logits[np.arange(100), self.classes].mean()
        self.check(metrics.perplexity(), self.scores, self.classes, np.exp(loss))

    def test_of_one_logit(self):
        is_one = (self.targets > 0).astype(int)
        right = ((self.values > 0) == is_one).mean()
        self.check(metrics.accuracy, self.values[:, None], is_one, right)
        pairs = [(a > b) + (a == b) / 2 for a in self.values[is_one == 1]
                 for b in self.values[is_one == 0]]  # fmt: skip
        self.check(metrics.auroc(), self.values, is_one, np.mean(pairs), is_exact=False)
        tied = np.round(self.values)
        pairs = [(a > b) + (a == b) / 2 for a in tied[is_one == 1] for b in tied[is_one == 0]]
        self.check(metrics.auroc(), tied, is_one, np.mean(pairs), is_exact=False)
        self.assertTrue(np.isnan(measured(metrics.auroc(), self.values, np.ones(100))))

    def test_masked_classes_do_not_count(self):
        draw = np.random.default_rng(8)
        is_masked = draw.random(100) < np.linspace(0, 1, 100)  # Other parts in other batches.
        classes = np.where(is_masked, -100, self.classes)
        kept = self.scores[~is_masked], self.classes[~is_masked]
        for metric in metrics.accuracy, metrics.top_k(3), metrics.f1(4):
            expected = measured(metric, *kept)
            expected = expected[0] if isinstance(expected, tuple) else expected
            self.check(metric, self.scores, classes, expected)
        is_one = np.where(is_masked, -100, self.targets > 0)
        expected = measured(metrics.auroc(), self.values[~is_masked], is_one[~is_masked])
        self.check(metrics.auroc(), self.values, is_one, expected, is_exact=False)
        self.assertTrue(np.isnan(measured(metrics.accuracy, self.scores, np.full(100, -100))[0]))

    def test_a_function_may_say_what_its_mean_is_over(self):
        def positive(outputs, targets):
            chosen = targets[targets > 0]
            return (chosen.mean() if len(chosen) else np.nan), len(chosen)

        value, weight = measured(positive, self.values, self.targets)
        self.assertAlmostEqual(value, self.targets[self.targets > 0].mean())
        self.assertEqual(weight, (self.targets > 0).sum())

    def test_a_function_leaves_its_direction_to_its_name(self):
        def error(outputs, targets):
            return np.abs(outputs - targets).mean()

        plain = metrics.as_metric(error)
        self.assertEqual(metrics.info("mae", plain).message(), {"name": "mae"})
        error.better = "lower"
        told = metrics.info("miss", metrics.as_metric(error)).message()
        self.assertEqual(told, {"name": "miss", "better": "lower"})
        ready = metrics.info("score", metrics.as_metric(metrics.accuracy)).message()
        self.assertEqual(ready, {"name": "score", "better": "higher", "combine": "mean"})

    def test_of_numbers(self):
        errors = self.values - self.targets
        self.check(metrics.mae(), self.values[:, None], self.targets, np.abs(errors).mean())
        self.check(metrics.mse(), self.values, self.targets, np.square(errors).mean())
        spread = np.square(self.targets - self.targets.mean()).sum()
        r2 = 1 - np.square(errors).sum() / spread
        self.check(metrics.r2(), self.values, self.targets, r2, is_exact=False)
        self.assertEqual(metrics.r2().combine, "none")
        about_zero = 1 - np.square(errors).sum() / np.square(self.targets).sum()
        self.check(metrics.r2(center=0.0), self.values, self.targets, about_zero)

    def test_of_tokens(self):
        tokens = np.array([[0, 1, -100], [2, -100, -100]])
        scores = np.random.default_rng(1).standard_normal((2, 3, 3))
        value, weight = measured(metrics.perplexity(), scores, tokens, parts=2)
        self.assertEqual(weight, 3)
        loss = 0.0
        for row, place in (0, 0), (0, 1), (1, 0):
            logits = scores[row, :, place]
            loss += np.log(np.exp(logits).sum()) - logits[tokens[row, place]]
        self.assertAlmostEqual(value, np.exp(loss / 3))


@unittest.skipUnless(HAS_CODECS, "this build has no libfl-codec.so")
class Codecs(unittest.TestCase):
    def test_a_vector_there_and_back(self):
        vector = np.random.default_rng(0).standard_normal(50_000).astype(np.float32)
        np.testing.assert_array_equal(
            codec.decode(codec.encode("lossless", vector), 50_000), vector
        )
        payload = codec.encode("ecuq:2", vector.reshape(100, 500), seed=3)
        self.assertLess(len(payload), 50_000 * 2.2 / 8)
        self.assertEqual(payload, codec.encode("ecuq:2", vector, seed=3))
        out = np.empty(50_000, np.float32)
        self.assertIs(codec.decode(payload, 50_000, out), out)
        error = np.square(out - vector).sum() / np.square(vector).sum()
        self.assertLess(error, 0.2)
        with self.assertRaisesRegex(ValueError, "expected 50000 numbers of float32"):
            codec.decode(payload, 50_000, np.empty(50_000))

    def test_error_feedback_sends_later_what_it_loses_now(self):
        coder = codec.Coder({"a.weight": (100, 100), "a.bias": (100,)})
        update = np.random.default_rng(0).standard_normal(10_100).astype(np.float32)
        sent = np.zeros(10_100)
        for round in range(1, 4):
            payload, error = coder.encode("topk:0.1+ef", update, round=round, seed=round)
            self.assertTrue(0 < error < 1)
            sent += coder.decode(payload)
        np.testing.assert_allclose(sent + coder.residual, 3.0 * update, atol=1e-4)
        coder.take_back(payload)
        np.testing.assert_allclose(
            sent - coder.decode(payload) + coder.residual, 3.0 * update, atol=1e-4
        )

    def test_a_payload_beyond_2_gib(self):
        wanted = 12 << 30
        with open("/proc/meminfo") as file:
            free = re.search(r"MemAvailable: +(\d+) kB", file.read())
        if int(free[1]) << 10 < wanted:
            self.skipTest(f"NO LARGE VECTOR WAS CODED: that takes {wanted >> 30} GiB of memory")
        elements = (2 << 30) // 4 + 100_000
        vector = np.zeros(elements, np.float32)
        vector[-3:] = 1, 2, 3
        payload = codec.encode("none", vector)
        self.assertGreater(len(payload), 2 << 30)
        vector[-3:] = 0
        self.assertIs(codec.decode(payload, elements, vector), vector)
        np.testing.assert_array_equal(vector[-4:], [0, 1, 2, 3])

    def test_a_wrong_spec_and_a_damaged_payload(self):
        with self.assertRaisesRegex(ValueError, "nonsense"):
            codec.encode("nonsense:3", np.zeros(10))
        payload = codec.encode("fp16", np.ones(10))
        with self.assertRaises(ValueError):
            codec.decode(payload[:-1], 10)
        with self.assertRaisesRegex(ValueError, "has 9 numbers, expected 10"):
            codec.Coder(10).encode("fp16", np.ones(9))

    def test_the_table(self):
        usages = [row.usage for row in codec.codecs()]
        self.assertIn("sign", usages)
        self.assertTrue(any(usage.startswith("ecuq:") for usage in usages))
        self.assertTrue(all(row.what for row in codec.codecs()))
        self.assertIn("ecuq", codec.names())


class Libtorch(unittest.TestCase):
    """The wheel's built-in models take the libtorch of pip's PyTorch."""

    def environment(self, installed, needed="2.11.0"):
        """Of a program, where pip has installed that release of PyTorch."""
        with tempfile.TemporaryDirectory() as folder:
            here = pathlib.Path(folder)
            if needed:
                (here / _programs.TORCH_RELEASE).write_text(f"{needed}\n")
            told = here / f"torch-{installed}.dist-info"
            told.mkdir()
            (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {installed}\n")
            with unittest.mock.patch.object(sys, "path", [folder]):
                found = _programs.with_libtorch({"HOME": "x", "LD_LIBRARY_PATH": "y"}, here)
        self.assertEqual(found.pop("HOME"), "x")
        return found["LD_LIBRARY_PATH"].replace(folder, "SITE")

    def test_only_the_release_that_they_were_built_with_is_used(self):
        self.assertEqual(self.environment("2.11.0"), "SITE/torch/lib:y")
        self.assertEqual(self.environment("2.11.0+cpu"), "SITE/torch/lib:y")
        self.assertEqual(self.environment("2.12.0"), "y")
        self.assertEqual(self.environment("2.11.0", needed=""), "y")

    def test_documents_name_the_release_that_builds_have(self):
        (release,) = re.findall(r"^torch==([0-9.]+) ", (SOURCE / "deploy/libtorch.txt").read_text(), re.M)
        for document in PACKAGE / "README.md", SOURCE / "docs" / "guide" / "install.md":
            self.assertIn(f"`pip install torch=={release}`", document.read_text())


class Package(unittest.TestCase):
    def test_the_version_is_the_programs(self):
        header = (SOURCE / "shared" / "base" / "version.hpp").read_text()
        (version,) = re.findall(r'software_version = "(.*?)"', header)
        self.assertEqual(fl.__version__, version.replace("-dev", ".dev0"))

    def test_the_types_are_right(self):
        # Without a PyTorch that PYTHONPATH lends, which takes mypy minutes to read.
        environment = {name: v for name, v in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--cache-dir", os.devnull],
            cwd=PACKAGE, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_it_is_imported_without_what_it_does_not_need(self):
        optional = "torch", "pandas", "tqdm"
        said = subprocess.run(
            [sys.executable, "-c", "import tributary_fl, sys; print(*sys.modules)"],
            cwd=PACKAGE, stdout=subprocess.PIPE, text=True, check=True,
        ).stdout.split()  # fmt: skip
        self.assertFalse(set(optional) & set(said))


if __name__ == "__main__":
    unittest.main()
