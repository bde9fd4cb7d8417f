# SPDX-License-Identifier: Apache-2.0
"""What the sub-commands make of a run's records: pictures, comparisons, exported models, backups."""

import ast
import json
import re
import shutil
import struct
import subprocess
import unittest
import xml.etree.ElementTree
import zipfile

import numpy
import xxhash
from federation import SOURCE, FederationTest, wait_until
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
        self.assertIn("Run 2 (synthetic:5000, fedavg, none)", texts)
        self.assertIn("loss", texts)
        self.expect_refusal(federation, "no run 7", "history", "--run", 7, "--plot", picture)
        self.expect_refusal(federation, "nonesuch", "history", "--plot", "/nonesuch/run.svg")

    def test_two_runs_are_compared(self):
        federation = self.make()
        self.run_to_end(federation, "--rounds", 3)
        self.run_to_end(federation, "--rounds", 2, "--codec", "qsgd:8")
        code, out, err = federation.server_command("compare", 2, 3)
        self.assertEqual(code, 0, err)
        for line in (r"codec\s+none\s+qsgd:8", r"rounds\s+3 of 3\s+2 of 2"):
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
        words = "there are those after rounds 3 to 4"
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


class Queries(FederationTest):
    names = ("a", "b")

    def test_each_view_is_documented_with_an_example_that_runs(self):
        federation = self.make()
        server = federation.server("--new-run", *RUN, "--rounds", 2)
        for program in [server, *[federation.client(name) for name in self.names]]:
            self.expect_exit(program)
        text = (SOURCE / "docs/guide/history.md").read_text()
        examples = dict(re.findall(r"### `(\w+)`\n(.*?)(?=\n### |\Z)", text, re.DOTALL))
        views = federation.query("SELECT name FROM sqlite_schema WHERE type = 'view'")
        self.assertEqual({name for (name,) in views}, set(examples))
        for view, words in examples.items():
            with self.subTest(view):
                (query,) = re.findall(r"```sql\n(.*?)```", words, re.DOTALL)
                self.assertIn(view, query)
                federation.query(query)
                columns = federation.query(f"SELECT name FROM pragma_table_info('{view}')")
                told = set(re.findall(r"`(\w+)`", words.partition("```sql")[0]))
                self.assertEqual({name for (name,) in columns} - told, set())
        self.assertEqual(len(federation.query(re.search(r"```sql\n(.*?)```", text, re.S)[1])), 2)

    @unittest.skipUnless(shutil.which("datasette"), "Datasette is not installed")
    def test_datasette_opens_the_history(self):
        federation = self.make()
        server = federation.server("--new-run", *RUN, "--rounds", 2)
        for program in [server, *[federation.client(name) for name in self.names]]:
            self.expect_exit(program)
        page = "/history/round_summary.json?_shape=array"
        answer = subprocess.run(
            ["datasette", "serve", "-i", federation.state / "history.sqlite", "--get", page],
            capture_output=True, check=True, text=True, timeout=60,
        )
        self.assertEqual([row["round"] for row in json.loads(answer.stdout)], [1, 2])


class Backups(FederationTest):
    names = ("a", "b")

    def test_a_server_goes_on_from_a_backup_that_was_made_while_it_ran(self):
        federation = self.make()
        flags = (*RUN, "--rounds", 400, "--codec", "ecuq:4+ef", "--downlink-codec", "qsgd:8")
        federation.server("--new-run", "--strategy", "fedadam", "--keep-checkpoints", 3, *flags)
        clients = [federation.client(name) for name in self.names]
        for number in range(3):
            rounds = federation.rounds_done()
            wait_until("more rounds", lambda: federation.rounds_done() >= rounds + 5)
            backup = federation.folder / f"backup-{number}"
            code, out, err = federation.server_command("backup", backup)
            self.assertEqual(code, 0, err)
            self.assertIn("fl-server --state", out)
            self.assertFalse(backup.with_suffix(".tmp").exists())
        for program in federation.programs:
            program.kill()
        original = federation.digests()
        # The restored server has the same port, and the clients find it.
        federation.state.rename(federation.folder / "lost")
        federation.state = backup
        restored = federation.digests()
        self.assertEqual(restored, original[: len(restored)])
        self.assertGreater(len(restored), 10)
        done = federation.rounds_done()
        server = federation.server("--rounds", done + 20)
        clients = [federation.client(name) for name in self.names]
        for program in [server, *clients]:
            self.expect_exit(program)
        self.assertEqual(federation.rounds_done(), done + 20)
        self.assertEqual(federation.digests()[: len(restored)], restored)
        ends = federation.query("SELECT state, early_end FROM run ORDER BY id DESC LIMIT 1")
        self.assertEqual(ends, [("finished", "")])

    def test_a_restored_run_makes_the_models_of_one_that_was_never_cut_off(self):
        federation = self.make()
        flags = ("--new-run", *RUN, "--strategy", "fedadam", "--seed", 7, "--codec", "qsgd:8")
        server = federation.server(*flags, "--rounds", 4)
        clients = [federation.client(name) for name in self.names]
        for program in [server, *clients]:
            self.expect_exit(program)
        backup = federation.folder / "backup"
        self.assertEqual(federation.server_command("backup", backup)[0], 0)
        digests = []
        for state in (federation.state, backup):
            federation.state = state
            server = federation.server("--rounds", 8)
            clients = [federation.client(name) for name in self.names]
            for program in [server, *clients]:
                self.expect_exit(program)
            digests.append(federation.digests())
        self.assertEqual(len(digests[0]), 9)
        self.assertEqual(digests[0], digests[1])

    def test_a_backup_takes_no_place_that_is_taken_and_no_damaged_model(self):
        federation = self.make()
        backup = federation.folder / "backup"
        backup.mkdir()
        code, _, err = federation.server_command("backup", backup)
        self.assertEqual(code, 1)
        self.assertIn("is there already", err)
        backup.rmdir()
        server = federation.server("--new-run", *RUN, "--rounds", 3)
        for program in [server, *[federation.client(name) for name in self.names]]:
            self.expect_exit(program)
        damaged = federation.checkpoints / "round-000001.safetensors"
        values = bytearray(damaged.read_bytes())
        values[-1] ^= 1
        damaged.write_bytes(values)
        code, _, err = federation.server_command("backup", backup)
        self.assertEqual(code, 0, err)
        self.assertIn("not in the backup: the model of run 2 after round 1", err)
        federation.state = backup
        kept = federation.query(
            "SELECT version FROM checkpoint WHERE run_id = 2 AND dropped_at IS NULL"
        )
        self.assertEqual([version for (version,) in kept], [0, 2, 3])
        self.assertEqual(len(federation.query("SELECT * FROM checkpoint WHERE run_id = 2")), 4)


class Pruning(FederationTest):
    names = ("a", "b")

    def models(self, federation):
        folder = federation.state / "checkpoints"
        return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())

    def test_runs_that_are_over_go_and_the_run_under_way_stays(self):
        federation = self.make()
        for _ in range(2):
            server = federation.server("--new-run", *RUN, "--rounds", 2)
            for program in [server, *[federation.client(name) for name in self.names]]:
                self.expect_exit(program)
        federation.server("--new-run", *RUN, "--rounds", 100000)
        clients = [federation.client(name) for name in self.names]
        wait_until("a round", lambda: federation.rounds_done() >= 1)
        audit = federation.query("SELECT * FROM audit")
        self.assertEqual(federation.server_command("prune")[0], 1, "it must be told what may go")
        code, out, err = federation.server_command("prune", "--keep-runs", 1, "--dry-run")
        self.assertEqual(code, 0, err)
        for run in (1, 2, 3):
            self.assertIn(f"run {run}, which ended", out)
        self.assertNotIn("run 4", out)
        self.assertIn("run-2/round-000002.safetensors", self.models(federation))

        out = federation.server_command("prune", "--keep-runs", 1, "--older-than", 1)[1]
        self.assertEqual(out, "no run is to be removed\n")
        code, out, err = federation.server_command("prune", "--keep-runs", 2)
        self.assertEqual(code, 0, err)
        self.assertIn("the server is running", out)
        runs = [run for (run,) in federation.query("SELECT id FROM run ORDER BY id")]
        self.assertEqual(runs, [3, 4])
        self.assertFalse(any(name.startswith("run-2/") for name in self.models(federation)))
        self.assertTrue(any(name.startswith("run-3/") for name in self.models(federation)))
        self.assertEqual(federation.query("SELECT * FROM audit")[: len(audit)], audit)
        for table in ("round", "task", "checkpoint", "metric"):
            (left,) = federation.query(f"SELECT count(*) FROM {table} WHERE run_id < 3")[0]
            self.assertEqual(left, 0, table)
        # The run under way does not notice.
        rounds = federation.rounds_done()
        wait_until("more rounds", lambda: federation.rounds_done() > rounds)
        for program in federation.programs:
            program.kill()
        code, out, err = federation.server_command("prune", "--keep-runs", 1)
        self.assertEqual(code, 0, err)
        self.assertIn("removed", out)
        self.assertEqual(federation.query("PRAGMA freelist_count"), [(0,)])
        self.assertEqual(federation.query("SELECT id FROM run"), [(4,)])
        self.assertEqual(federation.query("PRAGMA integrity_check"), [("ok",)])


if __name__ == "__main__":
    unittest.main()
