# SPDX-License-Identifier: Apache-2.0
"""What the sub-commands make of a run's records: pictures, comparisons, exported models."""

import ast
import json
import signal
import struct
import unittest
import xml.etree.ElementTree
import zipfile

import numpy
import xxhash
from federation import FederationTest
from safetensors.numpy import load_file

RUN = ("--model", "synthetic:5000", "--min-clients", 2, "--lr", "0.05")


class Records(FederationTest):
    names = ("a", "b")

    def run_to_end(self, federation, *flags):
        server = federation.server("--new-run", *RUN, *flags)
        for program in [server, *[federation.client(name) for name in self.names]]:
            self.expect_exit(program)

    def expect_refusal(self, federation, words, *arguments):
        code, out, err = federation.server_command(*arguments)
        self.assertEqual(code, 1, out)
        self.assertIn(words, err)

    def test_a_run_is_drawn_and_one_without_rounds_is_not(self):
        federation = self.make()
        picture = federation.folder / "run.svg"
        self.expect_refusal(federation, "nothing to plot", "history", "--plot", picture)
        self.assertFalse(picture.exists())
        self.run_to_end(federation, "--rounds", 3)
        code, out, err = federation.server_command("history", "--plot", picture)
        self.assertEqual(code, 0, err)
        self.assertIn(f"run 2 with 3 rounds is drawn in {picture}", out)
        root = xml.etree.ElementTree.parse(picture).getroot()
        texts = [element.text for element in root.iter() if element.tag.endswith("text")]
        self.assertIn("Run 2 of synthetic:5000", texts)
        self.assertIn("loss", texts)
        self.expect_refusal(federation, "no run 7", "history", "--run", 7, "--plot", picture)
        self.expect_refusal(federation, "nonesuch", "history", "--plot", "/nonesuch/run.svg")

    def test_two_runs_are_compared(self):
        federation = self.make()
        self.run_to_end(federation, "--rounds", 3)
        self.run_to_end(federation, "--rounds", 2, "--codec", "qsgd:8")
        code, out, err = federation.server_command("compare", 2, 3)
        self.assertEqual(code, 0, err)
        for line in (r"--codec\s+\"none\"\s+\"qsgd:8\"", r"rounds\s+3 of 3\s+2 of 2"):
            self.assertRegex(out, line)
        compared = json.loads(federation.server_command("compare", 2, 3, "--json")[1])
        sums = federation.query(
            "SELECT sum(bytes_up), sum(bytes_down) FROM round GROUP BY run_id ORDER BY run_id"
        )
        for run, (up, down) in zip(compared["runs"], sums):
            self.assertEqual((run["bytes_up"], run["bytes_down"]), (up, down))
        settings = {each["setting"]: each["values"] for each in compared["settings"]}
        self.assertEqual(settings, {"rounds": [3, 2], "codec": ["none", "qsgd:8"]})
        self.expect_refusal(federation, "no run 9", "compare", 2, 9)

    def test_an_exported_model_has_the_recorded_values(self):
        federation = self.make()
        self.run_to_end(federation, "--rounds", 3, "--strategy", "scaffold")
        files = [federation.folder / name for name in ("model.safetensors", "model.npz")]
        for file in files:
            code, out, err = federation.server_command("export", "--round", 2, file)
            self.assertEqual(code, 0, err)
            self.assertIn("after round 2", out)
        tensors, arrays = load_file(files[0]), numpy.load(files[1])
        self.assertEqual(sorted(tensors), sorted(arrays.files))
        self.assertEqual(len(tensors), 1, "the control variate is not the model's")
        for name, tensor in tensors.items():
            numpy.testing.assert_array_equal(arrays[name], tensor)
            self.assertGreater(numpy.abs(tensor).max(), 0)
        self.check_zip(files[1])
        original = load_file(federation.checkpoints / "round-000002.safetensors")
        for name, tensor in tensors.items():
            numpy.testing.assert_array_equal(original[name], tensor)

    def check_zip(self, file):
        """As a reader without numpy sees it."""
        with zipfile.ZipFile(file) as archive:
            self.assertIsNone(archive.testzip())
            for entry in archive.infolist():
                self.assertEqual(entry.compress_type, zipfile.ZIP_STORED)
                data = archive.read(entry)
                self.assertEqual(data[:8], b"\x93NUMPY\x01\x00")
                (length,) = struct.unpack("<H", data[8:10])
                self.assertEqual((10 + length) % 64, 0)
                header = ast.literal_eval(data[10 : 10 + length].decode())
                values = int(numpy.prod(header["shape"]))
                self.assertEqual(len(data), 10 + length + 4 * values)

    def test_an_export_of_what_is_not_there_says_what_is(self):
        federation = self.make()
        file = federation.folder / "model.npz"
        self.expect_refusal(federation, "no model on the disk", "export", file)
        self.run_to_end(federation, "--rounds", 4, "--keep-checkpoints", 2)
        words = "from round 3 to round 4"
        self.expect_refusal(federation, words, "export", "--round", 1, file)
        self.expect_refusal(federation, words, "export", "--round", 9, file)
        self.expect_refusal(federation, "--format", "export", federation.folder / "model")
        newest = federation.checkpoints / "round-000004.safetensors"
        damaged = bytearray(newest.read_bytes())
        damaged[-1] ^= 1
        newest.write_bytes(damaged)
        self.expect_refusal(federation, "not those that were written", "export", file)
        self.assertFalse(file.exists())
        code, out, err = federation.server_command("export", "--round", 3, file)
        self.assertEqual(code, 0, err)
        (values,) = numpy.load(file).values()
        self.assertIn(xxhash.xxh3_128_hexdigest(values.tobytes()), out)
        self.assertIn(federation.digests()[3], out)


if __name__ == "__main__":
    unittest.main()
