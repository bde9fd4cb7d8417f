# SPDX-License-Identifier: Apache-2.0
"""fl.load_builtin() against `fl-client predict`: the same file and data give the same predictions, for every
kind of built-in model. Follows docs/guide/models.md, too. FL_BIN names the folder of the built programs."""

import contextlib
import csv
import json
import math
import os
import pathlib
import sqlite3
import subprocess
import sys
import tempfile
import unittest

import needs_torch
import numpy as np
import torch

import fake_agent

sys.path.insert(0, str(fake_agent.PACKAGE))
sys.path.insert(0, str(fake_agent.SOURCE / "tests" / "process"))

import document_reader
import tributary_fl as fl
from federation import BIN, write_images
from tributary_fl import _tensors
from tributary_fl._builtin import BuiltinModel
from tributary_fl._builtin_spec import parse

torch.set_num_threads(1)

SCHEMA = {"columns": {"size": "number", "kind": ["x", "grün"], "on": "number"}, "target": ["a", "b", "c"]}


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tributary-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)


@unittest.skipUnless((BIN / "libfl-torch.so").exists(), "built without libtorch")
class AgainstPredict(InFolder):
    def run_program(self, *arguments):
        done = subprocess.run(
            [str(BIN / arguments[0]), *map(str, arguments[1:])],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def trained(self, model, data):
        """The file of a model that was trained a little."""
        state, file = self.folder / f"state-{model[:9]}", self.folder / "model.safetensors"
        flags = ("--clients", 1, "--rounds", 2, "--local-steps", 3, "--lr", 0.05, "--data", data)
        self.run_program("fl-sim", "--state", state, "--model", model, "--seed", 5, *flags)
        self.run_program("fl-server", "--state", state, "export", file)
        return file

    def printed(self, file, data):
        """The numbers that fl-client predict prints."""
        out = self.run_program("fl-client", "predict", "--model", file, "--data", data, "--threads", 1)
        header, *rows = csv.reader(out.splitlines())
        first = 2 if header[1] == "class" else 1
        return np.array([[float(cell) for cell in row[first:]] for row in rows])

    def compare(self, file, data, examples, schema=None):
        model = fl.load_builtin(file)
        self.assertFalse(model.training)
        got = model.predict(model.prepare(examples, schema)).numpy()
        want = self.printed(file, data)
        self.assertEqual(got.shape, want.shape)
        apart = np.abs(got - want).max(axis=0) / (1 + np.ptp(want, axis=0))
        self.assertLess(apart.max(), 1e-5, model.spec)

    def test_tables(self):
        draw = np.random.default_rng(3)
        rows = [
            {
                "id": n,
                "on": ["True", "False", ""][n % 3],
                "size": "" if n % 7 == 2 else f"{draw.normal(4e4, 300):.3f}",
                "kind": ["x", "gru\u0308n", "NA"][draw.integers(3)],
                "class": "abc"[draw.integers(3)],
            }
            for n in range(60)
        ]
        table, schema = self.folder / "table.csv", self.folder / "schema.json"
        with table.open("w") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
        schema.write_text(json.dumps(SCHEMA))
        data = f"csv:{table},target=class,ignore=id,schema={schema}"
        for model in ("logistic:4-3", "mlp:4-6-5-3"):
            file = self.trained(model, data)
            self.compare(file, data, rows, schema)
            columns = {name: [row[name] for row in rows] for name in rows[0]}
            self.compare(file, data, columns, SCHEMA)

    def test_arrays_and_values(self):
        draw = np.random.default_rng(4)
        x = draw.normal([1.7e9, 5, 0], [900, 1, 1e-3], (50, 3))
        x[::6, 1] = math.nan
        y = np.stack([1e6 + 50 * x[:, 2], draw.normal(0, 1, 50)], axis=1)
        np.savez(self.folder / "data.npz", x=x, y=y)
        data = f"npz:{self.folder}/data.npz"
        for model in ("linear:3-2", "mlp:3-4-2,loss=mae"):
            self.compare(self.trained(model, data), data, x)
        table = {name: x[:, at] for at, name in enumerate("abc")}
        self.compare(self.trained("linear:3-2", data), data, table)
        np.savez(self.folder / "data.npz", x=x[:, 2], y=draw.normal(0, 1, 50))
        unscaled = self.trained("linear:1-1,scale=none", data)
        self.compare(unscaled, data, x[:, 2])

    def test_images(self):
        data = write_images(self.folder / "images", 30)
        images = np.fromfile(data / "train-images-idx3-ubyte", np.uint8)[16:].reshape(30, 28, 28)
        for model in ("lenet", "cnn", "resnet8", "mlp", "logistic:784-10", "cnn:1x28x28-1"):
            self.compare(self.trained(model, f"idx:{data}"), f"idx:{data}", images)

    def test_a_language_model_has_the_loss_that_the_history_has(self):
        text = bytes(range(40, 120)) * 5
        (self.folder / "text").write_bytes(text)
        self.compare_language("bytes", "", f"text:{self.folder}/text", text)
        tokens = [1000 + 7 * i % 90 for i in range(400)]
        np.array(tokens, "<u2").tofile(self.folder / "tokens")
        loaded = self.compare_language(
            "tokens", ",vocab=1090", f"tokens:{self.folder}/tokens", tokens
        )
        experts = ",experts=4,top=2,capacity=1,aux=0.1"
        self.compare_language("experts", experts, f"text:{self.folder}/text", text)
        with self.assertRaisesRegex(ValueError, "takes tokens from 0 to 1089, and these have 1090"):
            loaded.prepare([[3, 1090]])

    def compare_language(self, name, more, data, text):
        context = 48
        model = f"transformer:layers=2,width=16,heads=2,context={context}{more}"
        state, file = self.folder / f"{name}-state", self.folder / f"{name}.safetensors"
        flags = ("--clients", 1, "--rounds", 2, "--local-steps", 3, "--data", data, "--test", data)
        self.run_program("fl-sim", "--state", state, "--model", model, *flags)
        with contextlib.closing(sqlite3.connect(state / "history.sqlite")) as history:
            ((version, perplexity),) = history.execute(
                "SELECT version, value FROM metric WHERE name = 'perplexity' AND evaluator"
                " ORDER BY version DESC LIMIT 1"
            ).fetchall()
        self.run_program("fl-server", "--state", state, "export", "--round", version, file)
        loaded = fl.load_builtin(file)
        loss, count = 0.0, len(text) - 1
        for begin in range(0, count, context):
            piece = text[begin : begin + context + 1]
            p = loaded.predict(loaded.prepare(piece[:-1]))[0]
            loss -= sum(math.log(p[at, token]) for at, token in enumerate(piece[1:]))
        self.assertAlmostEqual(loss / count, math.log(perplexity), delta=1e-4)
        return loaded

    def test_the_page_on_models_is_right(self):
        paths = [str(fake_agent.PACKAGE), os.environ.get("PYTHONPATH", "")]
        tools = {
            program: f'#!/bin/sh\nexec {BIN / program} "$@"\n'
            for program in ("fl-server", "fl-client", "fl-sim")
        }
        tools["python3"] = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
        environment = {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
        reader = document_reader.Reader(self.folder / "page", tools, environment=environment)
        self.addCleanup(reader.close)
        page = (fake_agent.SOURCE / "docs" / "guide" / "models.md").read_text()
        for block in document_reader.blocks_of(page):
            reader.follow(block)


class Files(InFolder):
    def written(self, spec):
        file = self.folder / "model.safetensors"
        tensors = BuiltinModel(parse(spec)).state_dict()
        _tensors.write(
            file, {k: v.numpy() for k, v in tensors.items() if not k.endswith("num_batches_tracked")}
        )
        return file

    def refused(self, words, call, *arguments, **named):
        with self.assertRaises(ValueError) as raised:
            call(*arguments, **named)
        for word in words:
            self.assertIn(word, str(raised.exception))

    def test_a_file_that_names_no_model_takes_a_spec(self):
        file = self.written("mlp:3-4-2")
        self.refused(["does not say which built-in model", "spec="], fl.load_builtin, file)
        model = fl.load_builtin(file, "mlp:3-4-2")
        self.assertEqual((model.spec, model.task, model.outputs), ("mlp:3-4-2", "classification", 2))
        self.assertEqual(fl.load_builtin(self.written("resnet14:3x8x8-5"), "resnet14:3x8x8-5").outputs, 5)

    def test_tensors_that_are_not_the_models_are_named(self):
        file = self.written("mlp:3-4-2")
        words = ["fc2.weight has shape [2, 4], expected [3, 4]", "fl-server export"]
        self.refused(words, fl.load_builtin, file, "mlp:3-4-3")
        words = ["fc.weight is missing", "fc1.weight is not in the model"]
        self.refused(words, fl.load_builtin, file, "logistic:3-2")
        self.refused(["no built-in model"], fl.load_builtin, file, "resnet")
        file.write_bytes(b"\x80\x02}q\x00." * 50)
        self.refused(["is no safetensors file"], fl.load_builtin, file, "mlp:3-4-2")
        with self.assertRaises(FileNotFoundError):
            fl.load_builtin(self.folder / "none")

    def test_values_that_are_not_finite_are_refused(self):
        file = self.folder / "model.safetensors"
        weight = np.array([[1, np.nan]], np.float32)
        arrays = {"fc.weight": weight, "fc.bias": np.zeros(1, np.float32)}
        _tensors.write(file, arrays)
        self.refused(["fc.weight has values that are not finite"], fl.load_builtin, file,
                     "linear:2-1,scale=none")  # fmt: skip

    def test_inputs_that_do_not_fit_are_refused_with_what_is_wrong(self):
        model = BuiltinModel(parse("logistic:4-3"))
        good = {"size": [1, None], "kind": ["x", ""], "on": [True, "nan"], "more": ["what", "ever"]}
        inputs = model.prepare(good, SCHEMA)
        np.testing.assert_array_equal(
            inputs.numpy(), [[1, 1, 0, 1], [math.nan, 0, 0, math.nan]]
        )
        self.refused(["no column 'on'"], model.prepare, {"size": [1], "kind": ["x"]}, SCHEMA)
        self.refused(["'kind'", "'y'", "2 words"], model.prepare, {**good, "kind": ["y", "x"]}, SCHEMA)
        self.refused(["'size'", "'big'", "schema"], model.prepare, {**good, "size": ["big", 1]}, SCHEMA)
        self.refused(["takes examples of 4 values", "have 3"], model.prepare, np.zeros((2, 3)))
        plain = BuiltinModel(parse("logistic:4-3,scale=none"))
        self.refused(["no missing values"], plain.prepare, good, SCHEMA)
        images = BuiltinModel(parse("cnn:1x8x8-2"))
        self.refused(["1x8x8", "1x9x8"], images.prepare, np.zeros((2, 9, 8), np.uint8))


if __name__ == "__main__":
    unittest.main()
