# SPDX-License-Identifier: Apache-2.0
"""fl-sim gives the same results with any number of threads, and the same as the real programs."""

import json
import math
import os
import signal
import struct
import unittest

from federation import (
    BIN,
    WAIT_MAX_S,
    FederationTest,
    wait_until,
    write_images,
    write_images_in_all_formats,
)

# Codecs with state from round to round, and clients that miss rounds.
HARD = (
    *("--clients", 7, "--clients-per-round", 4, "--model", "synthetic:30000", "--rounds", 5),
    *("--codec", "powersgd:2+ef", "--downlink-codec", "ecuq:2", "--keep-checkpoints", 3),
)
MISTAKES = [
    ("--clients", "0"),
    ("--clients", "many"),
    ("--threads", "-1"),
    ("--min-clients", "4"),
    ("--codec", "zip"),
    ("--model", "nonesuch"),
    ("--rounds", "0"),
    ("--data", "fashion-mnist"),
    ("--test", "fashion-mnist:test"),
    ("--holdout", "1"),
    ("--partition", "dirichlet:round"),
    ("--momentum", "0.5", "--optimizer", "adamw"),
    ("--epochs-from", "2"),
    ("--malicious", "1"),
    ("--attack", "ipm"),
    ("--attack", "nonesuch", "--malicious", "1"),
    ("--malicious", "3", "--attack", "ipm"),
    ("--aggregate", "krum:2"),
    ("--drop-outs", "1.5"),
    ("--drop-seconds", "-1"),
    ("--json", "/nonesuch/rounds.json"),
    ("--listen", "127.0.0.1:0"),
]


def read_tensors(path):
    """Returns a checkpoint's tensors by name, each as a flat tuple of floats."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = struct.unpack_from(f"<{(end - begin) // 4}f", data, 8 + length + begin)
    return tensors


class Sim(FederationTest):
    names = ("client-1", "client-2", "client-3")  # The names that fl-sim gives its clients.

    def sim(self, federation, *flags):
        """Runs fl-sim in the federation's state, which no server may use. Returns its output."""
        code, out, err = federation.command("fl-sim", "--state", federation.state, *flags)
        self.assertEqual(code, 0, err)
        return out

    def test_the_number_of_threads_does_not_change_the_result(self):
        federation = self.make()
        digests = []
        for threads in (1, 3):
            self.sim(federation, *HARD, "--threads", threads)
            digests.append(
                federation.query(
                    "SELECT round, model_digest FROM round_summary"
                    " WHERE run_id = (SELECT max(id) FROM run) ORDER BY round"
                )
            )
        self.assertEqual(len(set(digests[0])), 5)
        self.assertEqual(digests[0], digests[1])

    def test_late_clients_do_not_delay_a_round(self):
        federation = self.make()
        run = ("--clients", 20, "--model", "synthetic:50000", "--rounds", 8)
        self.sim(federation, *run, "--fraction", 0.5, "--over-select", 1.5)
        accepted = federation.query("SELECT clients_accepted FROM round_summary")
        self.assertEqual(len(accepted), 8)
        self.assertTrue(all(10 <= count <= 15 for (count,) in accepted), accepted)

    def test_models_and_bytes_are_those_of_the_real_programs(self):
        """The bytes up must be equal. The bytes down may differ by verdicts, which may be sent
        before or after their round is recorded. An update fits into one chunk, because the number
        of chunks depends on the line's speed. There is no deadline, because each offer would have
        the rest of it."""
        federation = self.make()
        kinds = (
            ("--codec", "none"),
            ("--codec", "kbit:4+ef", "--downlink-codec", "kbit:8"),
            ("--codec", "ecuq:4", "--aggregate", "nnm+median"),
        )
        for flags in kinds:
            run = ("--model", "synthetic:20000", "--rounds", 4, "--deadline", 0, *flags)
            server = federation.server("--new-run", "--min-clients", 3, *run)
            clients = [federation.client(name) for name in self.names]
            for program in (server, *clients):
                self.expect_exit(program)
            self.sim(federation, "--clients", 3, "--min-clients", 3, *run)
            real, simulated = (
                federation.query(
                    "SELECT model_digest, clients_accepted, bytes_up, bytes_down"
                    " FROM round_summary WHERE run_id = ? ORDER BY round",
                    number,
                )
                for (number,) in reversed(
                    federation.query("SELECT id FROM run ORDER BY id DESC LIMIT 2")
                )
            )
            self.assertEqual(len(real), 4)
            verdict_bytes = 16
            for ours, theirs in zip(simulated, real, strict=True):
                self.assertEqual(ours[:3], theirs[:3], flags)
                self.assertLessEqual(abs(ours[3] - theirs[3]), 3 * verdict_bytes, flags)

    def test_masked_runs_make_the_model_of_one_in_the_clear(self):
        """With more clients than threads: all of a cohort must have trained before one goes on."""
        federation = self.make()
        run = ("--clients", 6, "--threads", 2, "--model", "synthetic:20000", "--rounds", 2)
        self.sim(federation, *run, "--codec", "lanes:8", "--weights", "equal", "--norm-limit", 0)
        for _ in range(2):
            self.sim(federation, *run, "--secure-aggregation", "on")
        digests = federation.query("SELECT model_digest FROM round_summary ORDER BY run_id, round")
        self.assertEqual(len(digests), 6)
        self.assertEqual(digests[0:2], digests[2:4])
        self.assertEqual(digests[0:2], digests[4:6])

    def test_rounds_do_not_need_clients_that_drop_out(self):
        """In runs in the clear and in masked ones, where they drop out at any of the steps."""
        federation = self.make()
        run = ("--clients", 12, "--model", "synthetic:20000", "--rounds", 3, "--min-clients", 4)
        drops = ("--drop-outs", 0.3, "--drop-seconds", 3)
        rounds = "SELECT clients_accepted FROM round_summary WHERE run_id ="
        for flags in (("--deadline", 1), ("--secure-aggregation", "on:step-seconds=1")):
            self.sim(federation, *run, *drops, *flags)
            accepted = federation.query(f"{rounds} (SELECT max(id) FROM run)")
            self.assertEqual(len(accepted), 3, flags)
            self.assertTrue(all(4 <= count <= 12 for (count,) in accepted), accepted)
            self.assertLess(sum(count for (count,) in accepted), 36, flags)

    def test_history_and_json_have_the_rounds(self):
        federation = self.make()
        path = federation.folder / "rounds.json"
        run = ("--clients", 3, "--model", "synthetic:9", "--rounds", 2)
        out = self.sim(federation, *run, "--json", path)
        _, text, _ = federation.server_command("history", "--json")
        self.assertEqual(json.loads(path.read_text()), json.loads(text))
        rounds = json.loads(text)
        self.assertEqual([entry["round"] for entry in rounds], [1, 2])
        self.assertIn(f"model digest {rounds[-1]['model_digest']}\n", out)
        _, table, _ = federation.server_command("history")
        self.assertIn("\n".join(table.splitlines()[2:]), out)

    def test_clients_of_unequal_speed_draw_their_epochs(self):
        if not (BIN / "libfl-torch.so").exists():
            self.skipTest("NOTHING WAS TRAINED: this build has no libtorch")
        federation = self.make()
        examples = 48
        data = write_images(federation.folder / "data", examples)
        flags = ("--clients", 3, "--model", "logistic", "--data", f"idx:{data}", "--rounds", 6)
        work = ("--batch-size", 4, "--epochs-from", 2, "--local-epochs", 5)
        drawn = []
        for threads in (1, 2):
            self.sim(federation, *flags, *work, "--threads", threads)
            drawn.append(
                federation.query(
                    "SELECT round, client, steps, examples FROM task"
                    " WHERE run_id = (SELECT max(id) FROM run) ORDER BY round, client"
                )
            )
        self.assertEqual(drawn[0], drawn[1])
        epochs = [steps / math.ceil(examples / 4) for _, _, steps, examples in drawn[0]]
        self.assertEqual(set(epochs), {2, 3, 4, 5})

    def test_the_format_of_the_data_makes_no_difference(self):
        """One set of images as IDX, numpy's and PNG files, in memory and on the disk; and divided by
        site, where each client has the examples of one."""
        if not (BIN / "libfl-torch.so").exists():
            self.skipTest("NOTHING WAS TRAINED: this build has no libtorch")
        federation = self.make()
        sites = ("Oslo", "Bern", "Oslo", "Rome", "Oslo", "Bern")
        formats = write_images_in_all_formats(federation.folder / "data", sites)
        flags = ("--clients", 3, "--model", "logistic", "--rounds", 2, "--holdout", 0)
        shard = ("--partition", "labels:5")
        digests = set()
        for data in formats:
            for memory in ("4GiB", 1):
                out = self.sim(federation, *flags, *shard, "--data", data, "--data-memory", memory)
                digests.add(out.split("model digest ")[1].split()[0])
        self.assertEqual(len(digests), 1)
        by_site = ("--data", formats[1], "--partition", "by:site")
        self.sim(federation, *flags, *by_site)
        counted = federation.query(
            "SELECT client, examples FROM task WHERE round = 1"
            " AND run_id = (SELECT max(id) FROM run) ORDER BY client"
        )
        # In the order of the sites' names: Bern, Oslo, Rome.
        self.assertEqual(counted, [("client-1", 40), ("client-2", 60), ("client-3", 20)])

    def test_batch_norm_statistics_travel_or_stay(self):
        if not (BIN / "libfl-torch.so").exists():
            self.skipTest("NOTHING WAS TRAINED: this build has no libtorch")
        federation = self.make()
        data = write_images(federation.folder / "data", 40)
        flags = "--clients 2 --model resnet8 --rounds 2 --batch-size 8 --codec topk:0.01+dgc:0.5".split()
        kept = []
        for strategy in ("scaffold", "fednova:personal=*bn*"):
            self.sim(federation, *flags, "--strategy", strategy, "--data", f"idx:{data}")
            (row,) = federation.query("SELECT file FROM checkpoint ORDER BY made_at DESC LIMIT 1")
            kept.append(read_tensors(next(federation.state.rglob(row[0]))))
        averaged, fedbn = kept
        # Each batch moves the statistics, and the codec sends all of them, unlike weights.
        for name in ("bn1.running_mean", "block3.bn2.running_var"):
            values = averaged[name]
            self.assertTrue(all(value not in (0, 1) for value in values), name)
        self.assertTrue(all(value > 0 for value in averaged["block3.bn2.running_var"]))
        self.assertNotIn("control.bn1.running_mean", averaged)
        self.assertIn("control.bn1.weight", averaged)
        self.assertEqual([name for name in fedbn if "bn" in name], [])

    def test_an_omniscient_attacker_knows_the_honest_updates(self):
        """Three clients of equal weight: one sends -2 times the mean of the other two, and so the
        model stays where it is. Only the very updates of this round cancel out."""
        run = "--clients 3 --min-clients 3 --model synthetic:5000 --rounds 2 --codec none".split()
        federation = self.make()
        moved = []
        for number, flags in enumerate(((), ("--malicious", 1, "--attack", "ipm:2"))):
            state = federation.folder / f"state-{number}"
            self.sim(federation, *run, *flags, "--state", state)
            first, last = (
                read_tensors(next(state.rglob(f"round-00000{version}.safetensors")))
                for version in (0, 2)
            )
            changes = [abs(a - b) for name in first for a, b in zip(first[name], last[name])]
            moved.append(max(changes))
        self.assertGreater(moved[0], 1e-4)
        self.assertLess(moved[1], moved[0] / 1000)

    def test_updates_that_all_become_much_larger(self):
        """Updates of one step are followed by updates of 150 steps with momentum, which are
        thousands of times larger. They are judged by each other, so they count."""
        if not (BIN / "libfl-torch.so").exists():
            self.skipTest("NOTHING BECAME LARGER: this build has no libtorch")
        federation = self.make()
        data = write_images(federation.folder / "data", 60)
        run = "--clients 6 --model logistic --rounds 3 --lr 1e-6 --momentum 0.9999 --codec none"
        steps = "--local-steps 150 --local-steps-schedule post-local:from=2 --batch-size 8"
        self.sim(federation, *run.split(), *steps.split(), "--data", f"idx:{data}", "--threads", 1)
        counted = federation.query(
            "SELECT round, count(*), max(norm) FROM task WHERE state = 'accepted' GROUP BY round"
        )
        self.assertEqual([(round, count) for round, count, _ in counted], [(1, 6), (2, 6), (3, 6)])
        self.assertGreater(counted[1][2], 1000 * counted[0][2])

    def test_memory_does_not_grow_with_clients(self):
        if os.environ.get("FL_SANITIZE"):
            self.skipTest("NO MEMORY WAS MEASURED: a sanitizer needs most of its build's memory")
        federation = self.make()
        peak_kib = []
        # 60 clients already reach the largest number of uploads that are kept in memory.
        for clients in (60, 300):
            flags = ("--clients", clients, "--model", "synthetic:100000", "--threads", 2)
            arguments = [BIN / "fl-sim", "--state", federation.state, "--rounds", 2, *flags]
            program = federation.start("sim", arguments)
            _, status, usage = os.wait4(program.pid, 0)
            program.process.returncode = os.waitstatus_to_exitcode(status)
            self.assertEqual(program.process.returncode, 0, str(program))
            peak_kib.append(usage.ru_maxrss)
        # 240 models would be 96 MB.
        self.assertLess(peak_kib[1] - peak_kib[0], 240 * 40)

    def test_it_stops_when_asked(self):
        federation = self.make()
        flags = ("--clients", 20, "--model", "synthetic:100000", "--rounds", 100000)
        program = federation.start("sim", [BIN / "fl-sim", "--state", federation.state, *flags])
        program.wait_for("/100000 · ")  # Progress, which fl-sim prints now and then on a pipe.
        wait_until("a round is recorded", lambda: federation.rounds_done() >= 1, WAIT_MAX_S)
        program.signal(signal.SIGTERM)
        self.expect_exit(program, 0, WAIT_MAX_S)
        states = federation.query("SELECT state FROM run ORDER BY id DESC")
        self.assertEqual(states[0], ("stopped",))

    def test_a_training_that_diverges_ends_and_says_what_to_try(self):
        if not (BIN / "libfl-torch.so").exists():
            self.skipTest("NOTHING WAS TRAINED: this build has no libtorch")
        federation = self.make()
        table = federation.folder / "table.csv"
        rows = "".join(f"{i},{1000 - i},{3 * i}\n" for i in range(400))
        table.write_text("a,b,y\n" + rows)
        flags = ("--clients", 3, "--model", "linear:2-1", "--data", f"csv:{table},target=y", "--lr", 1e30)
        program = federation.start("sim", [BIN / "fl-sim", "--state", federation.state, *flags])
        self.expect_exit(program, 1, WAIT_MAX_S)  # It asks each client again, after growing pauses.
        last = program.stderr().splitlines()[-1]
        self.assertRegex(last, "each client that is here has failed 5 times in a row: .* the loss is ")
        self.assertTrue(last.endswith("The training diverges: try a lower --lr"), last)

    def test_runs_of_other_models_may_share_a_state(self):
        federation = self.make()
        for model in ("synthetic:9", "synthetic:70"):
            self.sim(federation, "--clients", 3, "--rounds", 1, "--model", model)
        runs = federation.query("SELECT model FROM run ORDER BY id DESC LIMIT 2")
        self.assertEqual([model for (model,) in runs], ["synthetic:70", "synthetic:9"])

    def test_every_wrong_flag_is_refused(self):
        federation = self.make()
        for flag, *rest in MISTAKES:
            with self.subTest(flag=flag, rest=rest):
                flags = ["--clients", "3", "--model", "synthetic:9", "--rounds", "1", flag, *rest]
                code, _, err = federation.command(
                    "fl-sim", "--state", federation.folder / "unused", *flags
                )
                self.assertGreater(code, 0, err)
                self.assertIn(flag.removeprefix("--").split("-")[0], err)


if __name__ == "__main__":
    unittest.main()
