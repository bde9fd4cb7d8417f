# SPDX-License-Identifier: Apache-2.0
"""`fl-server --keep-updates` and `fl-server replay`: rounds of real runs are made again, and what was
changed afterwards is named."""

import contextlib
import json
import math
import os
import re
import shutil
import signal
import sqlite3
import stat
import struct
import unittest

from federation import SOURCE, FederationTest, wait_until

RUN = ("--model", "synthetic:5000", "--min-clients", 3, "--lr", "0.05", "--seed", 7)
DIFFERS = 4
SCRIPT = SOURCE / "tests/client/learn/scripted_trainer.py"


def dot(one, other):
    return math.fsum(a * b for a, b in zip(one, other))


def directions(updates, weights):
    """The cosine with the weighted mean, and the norm by the median, of each update: a plain
    calculation."""
    total = sum(weights.values())
    columns = zip(*(([weights[name] * x for x in updates[name]]) for name in updates))
    mean = [math.fsum(column) / total for column in columns]
    norms = {name: math.sqrt(dot(values, values)) for name, values in updates.items()}
    median = sorted(norms.values())[len(norms) // 2]
    length = math.sqrt(dot(mean, mean))
    return {
        name: (dot(values, mean) / norms[name] / length, norms[name] / median)
        for name, values in updates.items()
    }


def decoded(payload, elements):
    """The values of a payload of codec `none`, whose blocks end with their values."""
    (block_elements,) = struct.unpack_from("<I", payload, 4)
    blocks = -(-elements // block_elements)
    sizes = struct.unpack_from(f"<{blocks}I", payload, 16)
    values, end = [], 16 + 4 * blocks
    for size in sizes:
        end += size
        here = min(block_elements, elements - len(values))
        values += struct.unpack_from(f"<{here}f", payload, end - 4 * here)
    return values


class Replays(FederationTest):
    names = ("a", "b", "c")

    def run_to_end(self, federation, *flags):
        server = federation.server(*flags)
        for program in [server, *[federation.client(name) for name in self.names]]:
            self.expect_exit(program)

    def kept(self, federation, run=2):
        folder = federation.state / "kept-updates" / f"run-{run}"
        return sorted(file.name for file in folder.iterdir()) if folder.exists() else []

    def replayed(self, federation, rounds, *flags, run=2):
        """Replays a run, and expects that these rounds give the recorded models again."""
        code, out, err = federation.server_command("replay", run, *flags)
        self.assertEqual(code, 0, out + err)
        lines = re.findall(
            r"round (\d+): 3 updates, recorded (\w+), made again (\w+): the same", out
        )
        self.assertEqual([int(number) for number, _, _ in lines], list(rounds), out)
        digests = federation.digests()
        for number, recorded, made in lines:
            self.assertEqual((recorded, made), (digests[int(number)],) * 2)

    def expect_refusal(self, federation, words, *arguments):
        code, out, err = federation.server_command(*arguments)
        self.assertEqual(code, 1, out)
        for word in words:
            self.assertIn(word, err)

    def test_rounds_of_many_methods_are_made_again(self):
        federation = self.make()
        for number, flags in enumerate(
            (
                "--codec ecuq:4+ef",
                "--codec qsgd:8 --aggregate median",
                "--strategy fedadam:lr=0.02 --codec qsgd:8 --downlink-codec qsgd:127",
                "--strategy scaffold --codec ecuq:4",
                "--mode async:buffer=3 --strategy fedavgm --codec none",
                "--codec delta+qsgd:8",
            )
        ):
            with self.subTest(flags):
                keep = ("--rounds", 5, "--keep-updates", 3, "--keep-checkpoints", 1)
                self.run_to_end(federation, "--new-run", *RUN, *keep, *flags.split())
                self.replayed(federation, (3, 4, 5), run=number + 2)
                self.replayed(federation, (4,), "--round", 4, run=number + 2)
                (models,) = federation.query(
                    "SELECT count(*) FROM checkpoint WHERE run_id = ? AND dropped_at IS NULL",
                    number + 2,
                )[0]
                self.assertEqual(models, 4)

    def test_what_was_changed_is_named_and_what_is_not_there(self):
        federation = self.make()
        self.expect_refusal(federation, ["no updates of run 1 are kept"], "replay", 1)
        keep = ("--rounds", 4, "--codec", "qsgd:8", "--keep-updates", 2)
        self.run_to_end(federation, "--new-run", *RUN, "--strategy", "fedadam", *keep)
        folder = federation.state / "kept-updates" / "run-2"
        for path in (folder, *folder.iterdir()):
            mode = stat.S_IMODE(path.stat().st_mode)
            self.assertEqual(mode, 0o700 if path.is_dir() else 0o600, path)

        (spool_file, client) = federation.query(
            "SELECT spool_file, client FROM task WHERE run_id = 2 AND round = 3"
            " AND state = 'accepted' ORDER BY client LIMIT 1"
        )[0]
        update = folder / f"round-000003-{spool_file}"
        right = update.read_bytes()
        update.write_bytes(right[:100] + bytes([right[100] ^ 1]) + right[101:])
        self.expect_refusal(
            federation, [f"the update of {client}", "was changed", update.name],
            "replay", 2, "--round", 3,
        )
        self.replayed(federation, (4,), "--round", 4)
        update.unlink()
        words = [f"the update of {client}", update.name, "No such file"]
        self.expect_refusal(federation, words, "replay", 2, "--round", 3)
        update.write_bytes(right)
        self.replayed(federation, (3, 4))

        state = federation.checkpoints / "round-000002.state"
        right = state.read_bytes()
        state.write_bytes(bytes([right[0] ^ 1]) + right[1:])
        words = ["state before the round", "was changed", state.name]
        self.expect_refusal(federation, words, "replay", 2, "--round", 3)
        state.write_bytes(right)
        base = federation.checkpoints / "round-000002.safetensors"
        base.rename(base.with_suffix(".away"))
        words = ["the model after round 2", base.name]
        self.expect_refusal(federation, words, "replay", 2, "--round", 3)
        base.with_suffix(".away").rename(base)

        words = ["the updates of round 1 of run 2 were not kept", "2 rounds from 3 to 4"]
        self.expect_refusal(federation, words, "replay", 2, "--round", 1)
        self.expect_refusal(federation, ["no round 9"], "replay", 2, "--round", 9)
        self.expect_refusal(federation, ["no run 9"], "replay", 9)
        scratch = federation.folder / "scratch"
        scratch.mkdir()
        self.replayed(federation, (3, 4), "--scratch", scratch)
        self.assertEqual(list(scratch.iterdir()), [])

    def test_another_model_than_the_recorded_one_is_told_with_its_first_value(self):
        federation = self.make()
        keep = ("--rounds", 2, "--codec", "qsgd:8", "--keep-updates", "all")
        self.run_to_end(federation, "--new-run", *RUN, *keep)
        self.replayed(federation, (1, 2))
        other = federation.copy(self.root / self.id() / "other")
        self.addCleanup(other.close)
        self.run_to_end(other, "--new-run", *RUN, *keep, "--seed", 8)
        self.replayed(other, (1, 2), run=3)
        # The model of another seed, with its digest, as if it had been recorded.
        newest = federation.checkpoints / "round-000002.safetensors"
        shutil.copy(other.checkpoints / newest.name, newest)
        digest = other.digests()[2]
        self.change(federation, "UPDATE checkpoint SET digest = ? WHERE version = 2 AND run_id = 2",
                    digest)
        code, out, err = federation.server_command("replay", 2)
        self.assertEqual(code, DIFFERS, out + err)
        self.assertRegex(out, r"round 1: .* the same\n")
        self.assertRegex(out, rf"round 2: 3 updates, recorded {digest}, made again \w+: NOT THE SAME")
        self.assertRegex(out, r"\[\d+\] is \S+ in round-000002.safetensors, and \S+ made again")

    def change(self, federation, sql, *parameters):
        path = federation.state / "history.sqlite"
        with contextlib.closing(sqlite3.connect(path)) as db, db:
            db.execute(sql, parameters)

    def test_a_run_that_is_killed_and_changed_in_the_middle_is_made_again(self):
        federation = self.make()
        keep = ("--codec", "ecuq:4+ef", "--downlink-codec", "qsgd:127", "--keep-updates", "all")
        server = federation.server(
            "--new-run", *RUN, "--strategy", "fedadam:lr=0.02", *keep, "--rounds", 100000
        )
        clients = [federation.client(name) for name in self.names]
        wait_until("some rounds", lambda: federation.rounds_done() >= 5)
        # Beside the running server.
        done = federation.rounds_done() - 1
        self.replayed(federation, (done,), "--round", done)
        server.process.send_signal(signal.SIGKILL)
        server.wait()
        before = federation.rounds_done()
        self.replayed(federation, (before - 1,), "--round", before - 1)
        # Other settings from here on; each round is made again with its own.
        server = federation.server(
            "--rounds", before + 4, "--codec", "qsgd:8", "--lr", "0.02", "--aggregate", "median"
        )
        for program in [server, *clients]:
            self.expect_exit(program)
        self.assertEqual(federation.rounds_done(), before + 4)
        self.replayed(federation, range(1, before + 5))

    def told(self, federation, *flags, run=2):
        """The output of `replay --json`."""
        code, out, err = federation.server_command("replay", run, "--json", *flags)
        self.assertEqual(code, 0, out + err)
        return json.loads(out)

    def expect_directions(self, told, updates, weights):
        right = directions(updates, weights)
        self.assertEqual([each["client"] for each in told["updates"]], sorted(updates))
        for each in told["updates"]:
            cosine, ratio = right[each["client"]]
            # The mean is rounded to fp32.
            self.assertAlmostEqual(each["cosine"], cosine, delta=1e-6)
            self.assertAlmostEqual(each["relative_norm"], ratio, delta=1e-9)

    def test_cosines_and_norms_are_those_of_the_updates(self):
        federation = self.make()
        elements = 150000  # Three blocks.
        self.run_to_end(
            federation, "--new-run", "--model", f"synthetic:{elements}", "--min-clients", 3,
            "--rounds", 2, "--keep-updates", "all",
        )
        folder = federation.state / "kept-updates" / "run-2"
        told = self.told(federation)
        self.assertEqual([each["round"] for each in told], [1, 2])
        for each in told:
            described = json.loads((folder / f"round-{each['round']:06}.json").read_text())
            kept = described["described"]["updates"]
            updates = {
                update["client"]: decoded(
                    (folder / update["file"]).read_bytes()[: update["bytes"]], elements
                )
                for update in kept
            }
            self.assertTrue(each["is_same"])
            self.expect_directions(
                each, updates, {update["client"]: update["examples"] for update in kept}
            )
        self.assertEqual(self.told(federation), told)
        self.assertEqual(self.told(federation, "--round", 2), told[1:])

    def test_a_member_that_pulls_the_other_way_has_a_cosine_below_0(self):
        federation = self.make()
        updates = {
            "a": (3, -1, 2, 0.5, 1, 4, -2, 1),
            "b": (2, -1, 2, 1, 0, 3, -1, 1),
            "c": (-3, 1, -2, -0.5, -1, -4, 2, -1),  # The other way than a.
        }
        weights = dict.fromkeys(updates, 1)
        initial = federation.folder / "initial.safetensors"
        program = ("--trainer", f"python3 {SCRIPT}")
        self.expect_exit(federation.client("maker", *program, "initial-weights", initial))
        for number, rule in enumerate(("mean", "median")):
            with self.subTest(rule):
                server = federation.server(
                    "--new-run", "--model", "custom:scripted", "--initial-weights", initial,
                    "--rounds", 1, "--min-clients", 3, "--keep-updates", 1, "--aggregate", rule,
                )
                clients = [
                    federation.client(
                        name, *program, "--trainer-env", f"ADDS={' '.join(map(str, values))}"
                    )
                    for name, values in updates.items()
                ]
                for each in [server, *clients]:
                    self.expect_exit(each)
                (told,) = self.told(federation, run=number + 2)
                cosines = [each["cosine"] for each in told["updates"]]
                self.assertLess(cosines[2], 0)
                self.assertGreater(min(cosines[:2]), 0)
                if rule == "mean":
                    self.expect_directions(told, updates, weights)
                code, out, _ = federation.server_command("replay", number + 2)
                self.assertEqual(code, 0)
                for each in told["updates"]:
                    row = f"  {each['client']:6}   {each['cosine']:20.4f}   {each['relative_norm']:13.3f}"
                    self.assertIn(row, out)

    def test_what_can_not_be_replayed_is_refused_at_the_start(self):
        federation = self.make()
        for flags, words in (
            (("--keep-updates", 0), "--keep-updates: it must be none, all or a number"),
            (("--keep-updates", "some"), "--keep-updates: it must be none, all or a number"),
        ):
            server = federation.server("--new-run", *RUN, *flags, ready=False)
            self.assertEqual(server.wait(), 1, str(server))
            self.assertIn(words, server.stderr())
        code, out, err = federation.command(
            "fl-sim", "--state", str(federation.folder / "sim"), "--model", "synthetic:100",
            "--clients", "2", "--keep-updates", "2",
        )
        self.assertEqual(code, 1, out)
        self.assertIn("fl-sim keeps none", err)

    def test_a_backup_has_the_kept_updates_and_prune_removes_them(self):
        federation = self.make()
        keep = ("--rounds", 3, "--codec", "delta+qsgd:8", "--keep-updates", 2)
        self.run_to_end(federation, "--new-run", *RUN, "--strategy", "fedadam", *keep)
        kept = self.kept(federation)
        self.assertEqual(len(kept), 14)  # Each round has a description, updates, and their references.
        backup = federation.folder / "backup"
        code, out, err = federation.server_command("backup", backup)
        self.assertEqual((code, err), (0, ""), out)
        state, federation.state = federation.state, backup
        self.assertEqual(self.kept(federation), kept)
        self.replayed(federation, (2, 3))
        federation.state = state

        # A damaged update is not copied, and so its round is not.
        update = state / "kept-updates" / "run-2" / kept[-1]
        update.write_bytes(b"x" + update.read_bytes()[1:])
        damaged = federation.folder / "damaged"
        code, out, err = federation.server_command("backup", damaged)
        self.assertEqual(code, 0, err)
        self.assertIn("not in the backup: the kept updates of run 2, round 3", err)
        federation.state = damaged
        self.assertEqual(self.kept(federation), [name for name in kept if "000002" in name])
        self.replayed(federation, (2,))
        federation.state = state

        self.run_to_end(federation, "--new-run", *RUN, *keep)
        code, out, err = federation.server_command("prune", "--keep-runs", 1)
        self.assertEqual(code, 0, err)
        self.assertEqual(os.listdir(state / "kept-updates"), ["run-3"])
        self.replayed(federation, (2, 3), run=3)


if __name__ == "__main__":
    unittest.main()
