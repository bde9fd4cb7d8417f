# SPDX-License-Identifier: Apache-2.0
"""A client that is a site of many ranks: real programs over Gloo on loopback."""

import json
import os
import pathlib
import re
import shutil
import signal
import struct
import tempfile
import unittest

from federation import BIN, free_port, wait_until, write_images
from site_runs import EXAMPLES, MODEL, SiteTest, is_running, ranks_of


@unittest.skipUnless((BIN / "fl-rank").exists(), "built without libtorch")
class Site(SiteTest):
    def test_trace_and_summary_show_the_ranks_side_by_side(self):
        """--trace has the parts of every rank's steps, and the history where the time went."""
        trace = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "trace.json"
        self.run_of("--ranks", 2, "--trace", trace, "--hook", "bf16", batch=8)
        events = json.loads(trace.read_text())
        processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
        self.assertEqual(processes, {0: "site", 1: "rank 0", 2: "rank 1"})
        steps = 2 * EXAMPLES // 16
        for process in (1, 2):
            spans = [e for e in events if e["pid"] == process and e["ph"] == "X"]
            names = [e["name"] for e in spans]
            for name in ("forward", "backward", "bucket 0", "optimizer", "after the step"):
                self.assertEqual(names.count(name), steps, name)
            for name in ("wait for gradients", "code"):
                self.assertIn(name, names)
            # bf16 sums each bucket once. The sums of the losses are apart. The model is mapped.
            tracks = {
                (e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"
            }
            calls = {
                (tracks[process, e["tid"]], e["name"])
                for e in spans
                if e["name"] in ("sum", "broadcast", "code")
            }
            self.assertEqual(
                calls,
                {
                    ("collectives", "sum"),
                    ("coding", "code"),
                    ("other collectives", "sum"),
                },
            )
            sent = [e for e in spans if "bytes" in e.get("args", {})]
            self.assertGreaterEqual(len(sent), steps)
        mine = {e["name"]: e for e in events if e["pid"] == 0 and e["ph"] == "X"}
        for name in (
            "train round 1",
            "save round 2",
            "upload of round 2",
            "download of version 1",
        ):
            self.assertIn(name, mine)
        whole = mine["train round 2"]
        inside = [e for e in events if e["pid"] == 2 and e["name"] == "forward"]
        last = inside[-1]["ts"]
        self.assertTrue(whole["ts"] <= last <= whole["ts"] + whole["dur"], (whole, last))
        rows = self.federation.query(
            "SELECT ranks, train_seconds, compute_seconds, exposed_seconds, overlap, "
            "hidden_seconds, coding_seconds FROM site_summary ORDER BY round"
        )
        self.assertEqual([row[0] for row in rows], [2, 2])
        for _, train, compute, exposed, overlap, hidden, coding in rows:
            self.assertGreater(compute, 0)
            self.assertGreater(exposed, 0)
            self.assertLessEqual(compute + exposed, train)
            self.assertTrue(0 <= overlap <= 1)
            self.assertAlmostEqual(overlap, hidden / (hidden + exposed))
            # Coding is a part of what was exposed or hidden.
            self.assertGreater(coding, 0)
            self.assertLessEqual(coding, hidden + exposed)

    def test_ranks_in_half_precision_learn_as_in_full_and_repeat_their_bits(self):
        """All ranks see the same reduced gradient, so they change fp16's loss scale together."""

        def train(name, *flags):
            _, digests, _ = self.run_of("--ranks", 2, *flags, batch=4, rounds=3, name=name)
            return digests, self.federation.query("SELECT train_loss FROM round")[-1][0]

        _, full = train("fp32")
        for precision in ("fp16", "bf16"):
            digests, loss = train(precision, "--precision", precision)
            # After an overflow fp16 leaves a batch out.
            self.assertAlmostEqual(loss / full, 1, delta=0.4)
            self.assertEqual(train(f"{precision}-again", "--precision", precision)[0], digests)

    def test_adaptive_ranks_fall_back_together_and_repeat_their_bits(self):
        """The log and the history say how many steps were taken in fp32; no step is left out."""
        for ranks in (1, 2, 4):
            with self.subTest(ranks=ranks):
                site = ("--ranks", ranks, "--precision", "adaptive:fp16,fc2=fp32")
                server = ("--local-steps", 12)
                name = f"adaptive-{ranks}"
                _, digests, client = self.run_of(*site, batch=4, name=name, server=server)
                rows = self.federation.query(
                    "SELECT s.ranks, s.fp32_steps, t.steps FROM site_summary AS s"
                    " JOIN task AS t USING (run_id, round) ORDER BY round"
                )
                said = re.findall(r"round \d+: (\d+) of 12 steps in fp32", client.stderr())
                self.assertEqual([row[0] for row in rows], [ranks, ranks])
                self.assertEqual([row[2] for row in rows], [12, 12])
                self.assertEqual([row[1] for row in rows if row[1] > 0], [int(n) for n in said])
                if ranks == 1:  # With several ranks the mean gradient fits into fp16.
                    self.assertTrue(any(0 < row[1] < 12 for row in rows), rows)
                _, again, _ = self.run_of(*site, batch=4, name=f"{name}-again", server=server)
                self.assertEqual(again, digests)

    def test_a_gradient_of_unusual_length_lets_all_ranks_fall_back(self):
        """A model knows its dark images soon. A bright one of another class then makes a gradient that
        is many times longer, and the next steps are in fp32: log and history say so."""

        def write(folder):
            folder = write_images(folder, EXAMPLES)
            bright = [40, 70]
            images = struct.pack(">IIII", 0x803, EXAMPLES, 28, 28)
            for i in range(EXAMPLES):
                images += bytes(255 if i in bright else (i + k) % 3 for k in range(28 * 28))
            (folder / "train-images-idx3-ubyte").write_bytes(images)
            labels = bytes(int(i in bright) for i in range(EXAMPLES))
            labels = struct.pack(">II", 0x801, EXAMPLES) + labels
            (folder / "train-labels-idx1-ubyte").write_bytes(labels)
            return folder

        # With post-local-sgd each rank has a gradient of its own: they have to ask each other.
        for hook in ("allreduce", "post-local-sgd:4,start=0"):
            with self.subTest(hook=hook):
                site = ("--ranks", 2, "--precision", "adaptive", "--hook", hook)
                run = {"batch": 1, "rounds": 2, "server": ("--local-steps", 40), "write": write}
                name = hook.partition(":")[0]
                _, digests, client = self.run_of(*site, **run, name=name)
                rows = self.federation.query(
                    "SELECT s.round, s.fp32_steps, t.steps FROM site_summary AS s"
                    " JOIN task AS t USING (run_id, round) ORDER BY round"
                )
                self.assertEqual([row[2] for row in rows], [40, 40])
                pattern = r"round (\d+): (\d+) of 40 steps in fp32: 0 overflows, [1-9]\d* unusual"
                said = re.findall(pattern, client.stderr())
                self.assertTrue(said)
                self.assertEqual(said, [(str(row[0]), str(row[1])) for row in rows if row[1] > 0])
                self.assertTrue(any(0 < row[1] < 40 for row in rows), rows)
                _, again, _ = self.run_of(*site, **run, name=f"{name}-again")
                self.assertEqual(again, digests)

    def test_passes_and_gradients_in_bf16_with_top_k_send_few_bytes(self):
        """The bytes that a rank says it has sent are those of theory: 2 for a value and 4 for its
        place, of a hundredth of the parameters."""
        flags = ("--ranks", 2, "--precision", "bf16", "--hook", "bf16+topk:0.01")
        _, _, client = self.run_of(*flags, batch=8)
        elements = 784 * 16 + 16 + 16 * 10 + 10
        steps = EXAMPLES // 16
        told = re.findall(r"each sent ([\d.e-]+) MB of gradients", client.stderr())
        self.assertEqual(len(told), 2)
        for megabytes in told:
            expected = steps * (6 * round(0.01 * elements) + 8)
            self.assertAlmostEqual(float(megabytes) * 1e6 / expected, 1, delta=0.01)

    def test_a_pattern_of_layers_that_fits_none_is_said_at_the_start(self):
        federation = self.make()
        federation.server("--new-run", "--min-clients", 1, "--model", MODEL)
        data = write_images(federation.folder / "data", EXAMPLES)
        flags = ("--ranks", 2, "--data", f"idx:{data}", "--precision", "bf16,*norm*=fp32")
        client = federation.client("site", *flags)
        self.expect_exit(client, 1)
        self.assertIn("no layer of this model fits the pattern", client.stderr())
        self.assertIn("its layers are fc1, fc2", client.stderr())

    def test_the_size_of_buckets_is_measured_and_changes_no_bit(self):
        """Two ranks measure without being asked; three do only with --bucket-mb auto."""
        model = "mlp:784-400-10"  # 1.3 MB: more than the first bucket.
        _, fixed, client = self.run_of(
            "--ranks", 2, "--bucket-mb", 0.1, batch=8, name="fixed", model=model
        )
        self.assertNotIn("gradients go in pieces", client.stderr())
        _, measured, client = self.run_of("--ranks", 2, batch=8, name="measured", model=model)
        self.assertRegex(client.stderr(), r"gradients go in pieces of [\d.]+ MiB, as measured now: a sum takes")
        self.assertEqual(measured, fixed)
        _, _, client = self.run_of("--ranks", 3, batch=8, name="three", model=model)
        self.assertNotIn("gradients go in pieces", client.stderr())
        _, _, client = self.run_of(
            "--ranks", 3, "--bucket-mb", "auto", batch=8, name="auto", model=model
        )
        self.assertIn("gradients go in pieces", client.stderr())

    def test_what_was_measured_is_kept_by_a_client_that_is_restarted(self):
        """Another way of sums and other pieces make other bits of three ranks' sums. The client keeps
        the first choices, with what they depend on, when ranks are replaced and when it starts again."""
        run = {"batch": 8, "rounds": 40, "model": "mlp:784-400-10"}
        auto = ("--ranks", 3, "--bucket-mb", "auto", "--topology", "auto")

        def said(client, when):
            """The ranks that say so."""
            lines = re.findall(r"info rank (\d): \S+ info (.*)", client.stderr())
            return [
                sorted(rank for rank, text in lines if re.match(f"{what}.*, as measured {when}", text))
                for what in ("gradients are summed by the topology", "gradients go in pieces of")
            ]

        all_ranks = [["0", "1", "2"]] * 2

        def disturb(federation, client):
            wait_until("two rounds", lambda: federation.rounds_done() >= 2)
            os.kill(ranks_of(client)[1], signal.SIGKILL)
            client.wait_for(") is lost: ")
            wait_until("the new group", lambda: said(client, "before") == all_ranks)
            self.assertEqual(said(client, "now"), all_ranks, "only the first group measures")
            client.kill()
            path = federation.folder / "site/ranks/measured.json"
            self.pieces, self.topology = sorted(json.loads(path.read_text()))
            self.train()

        self.run_of(*auto, **run, name="auto", meanwhile=disturb)
        self.assertEqual(said(self.client, "before"), all_ranks)
        self.assertEqual(said(self.client, "now"), [[], []])
        pattern = r"(bytes of pieces: model of \d+ bytes, 3 ranks on CPUs, topology )\w+(, hook allreduce)"
        self.assertRegex(self.pieces, pattern)
        self.assertEqual(self.topology, "topology: ranks with CPUs on nodes 0,0,0")

        def plant(federation, client):
            """Choices that no measurement ends in."""
            wait_until("a round", lambda: federation.rounds_done() >= 1)
            client.kill()
            self.server.kill()
            pieces = re.sub(pattern, r"\1ring\2", self.pieces)
            choices = {pieces: str(int(0.01 * 2**20)), self.topology: "ring"}
            (federation.folder / "site/ranks/measured.json").write_text(json.dumps(choices))
            self.serve("--new-run")
            self.train()

        _, planted, client = self.run_of(*auto, **run, name="planted", meanwhile=plant)
        self.assertEqual(said(client, "before"), all_ranks)
        fixed = ("--ranks", 3, "--topology", "ring", "--bucket-mb")
        self.assertEqual(self.run_of(*fixed, 0.01, **run, name="fixed")[1][-1], planted[-1])
        self.assertNotEqual(self.run_of(*fixed, 1, **run, name="other")[1][-1], planted[-1])

    def test_whichever_rank_is_lost_the_model_is_the_same(self):
        """One rank is killed and one is stopped in the middle of a run. The hook's error feedback
        is that of each round's beginning, so the run ends in the same model."""
        site = ("--ranks", 2, "--hook", "codec:ecuq:2+ef", "--rank-timeout", 3)
        rounds = 90
        _, undisturbed, _ = self.run_of(*site, batch=8, rounds=rounds, name="undisturbed")

        def disturb(federation, client):
            wait_until("five rounds", lambda: federation.rounds_done() >= 5)
            os.kill(ranks_of(client)[0], signal.SIGKILL)
            client.wait_for("begins again with a new group")
            wait_until("ten rounds", lambda: federation.rounds_done() >= 10)
            os.kill(ranks_of(client)[1], signal.SIGSTOP)

        _, disturbed, client = self.run_of(
            *site, batch=8, rounds=rounds, name="disturbed", meanwhile=disturb
        )
        self.assertEqual(disturbed, undisturbed)
        said = client.stderr()
        self.assertRegex(said, r"rank 0 \(.+, process \d+\) is lost: the rank has closed")
        self.assertIn("rank 0 ended (killed by signal 9", said)
        self.assertRegex(said, r"rank 1 \(.+, process \d+\) is lost: it was silent for 3 s")
        _, events, _ = self.federation.server_command("history", "--events")
        self.assertRegex(events, r"site says: rank 0 \(.+, process \d+\): .*killed by signal 9")
        self.assertRegex(events, r"site says: rank 1 \(.+, process \d+\): .*silent for 3 s")

    def test_looking_for_unused_parameters_changes_no_bit_of_a_model_that_uses_all(self):
        """Neither does a rank that is lost on the way."""
        flags = {"batch": 8, "rounds": 100}
        _, plain, _ = self.run_of("--ranks", 2, **flags, name="refuse")

        def disturb(federation, client):
            wait_until("five rounds", lambda: federation.rounds_done() >= 5)
            os.kill(ranks_of(client)[1], signal.SIGKILL)
            client.wait_for(") is lost: ")

        for choice in ("find", "static"):
            with self.subTest(choice=choice):
                site = ("--ranks", 2, "--unused-parameters", choice)
                _, digests, client = self.run_of(*site, **flags, name=choice, meanwhile=disturb)
                self.assertEqual(digests, plain)
                self.assertIn(f"unused parameters: {choice}", client.stderr())

    def test_a_killed_client_takes_its_ranks_with_it_and_goes_on_where_it_was(self):
        site = ("--ranks", 2)
        rounds = 20
        _, undisturbed, _ = self.run_of(*site, batch=8, rounds=rounds, name="undisturbed")
        federation = self.make("killed")
        data = write_images(federation.folder / "data", EXAMPLES)
        run = ("--model", MODEL, "--rounds", rounds, "--lr", 0.05, "--batch-size", 8)
        server = federation.server(
            "--new-run", "--min-clients", 1, "--codec", "none", "--deadline", 0, *run
        )
        flags = ("--data", f"idx:{data}", "--threads", 1, *site)
        client = federation.client("site", *flags)
        wait_until("five rounds", lambda: federation.rounds_done() >= 5)
        ranks = ranks_of(client)
        self.assertEqual(sorted(ranks), [0, 1])
        client.kill()
        wait_until("the ranks' end", lambda: not any(map(is_running, ranks.values())))
        client = federation.client("site", *flags)
        for program in (client, server):
            self.expect_exit(program)
        self.assertEqual(federation.digests(), undisturbed)

    @unittest.skipUnless(shutil.which("mpirun"), "there is no mpirun: apt-get install openmpi-bin")
    def test_mpirun_starts_a_site_that_makes_the_bits_of_ranks_of_the_clients_own(self):
        _, own, _ = self.run_of("--ranks", 2, batch=8, name="own")
        self.launcher = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", 2)
        flags = (*self.of_a_launcher(), "--site-address", f"127.0.0.1:{free_port()}")
        _, launched, client = self.run_of(*flags, batch=8, name="launched")
        self.assertIn("a site of 2 ranks under Open MPI", client.stderr())
        self.assertEqual(launched, own)

    def test_ranks_of_a_launcher_on_which_the_client_can_only_wait(self):
        """A rank that the client has not started is lost: the client waits for it, then goes on
        without it, if it may."""
        self.port = free_port()
        federation = self.make()
        data = write_images(federation.folder / "data", EXAMPLES)
        run = ("--model", MODEL, "--rounds", 400, "--lr", 0.05, "--batch-size", 8)
        server = federation.server("--new-run", "--min-clients", 1, "--deadline", 0, *run)
        flags = ("--data", f"idx:{data}", "--threads", 1)
        flags = (*flags, "--rank-timeout", 2, "--ranks-min", 1)
        other = self.launched(federation, 1)
        client = self.launched(federation, 0, *flags)
        wait_until("five rounds", lambda: federation.rounds_done() >= 5)
        other.kill()
        client.wait_for("1 of 2 ranks are there; missing: 1; the site goes on without them")
        done = federation.rounds_done()
        wait_until("more rounds", lambda: federation.rounds_done() >= done + 5)
        other = self.launched(federation, 1)  # It is in the group of the next piece of work.
        wait_until("its training", lambda: "entered a group of 2" in other.stderr())
        client.signal(signal.SIGTERM)
        self.expect_exit(client)
        self.expect_exit(other)
        server.signal(signal.SIGTERM)
        self.expect_exit(server)

    def test_a_round_fails_while_ranks_are_missing_and_all_others_say_so(self):
        self.port = free_port()
        federation = self.make()
        data = write_images(federation.folder / "data", EXAMPLES)
        run = ("--model", MODEL, "--rounds", 400, "--lr", 0.05, "--batch-size", 8)
        federation.server("--new-run", "--min-clients", 1, "--deadline", 0, *run)
        other, third = (self.launched(federation, rank, size=3) for rank in (1, 2))
        flags = ("--data", f"idx:{data}", "--threads", 1, "--rank-timeout", 6)
        client = self.launched(federation, 0, *flags, size=3)
        wait_until("five rounds", lambda: federation.rounds_done() >= 5)
        other.kill()
        done = federation.rounds_done()
        missing = "2 of 3 ranks are there; missing: 1"
        wait_until(
            "the server's event",
            lambda: f"{missing}, after 6 s (--rank-timeout)"
            in federation.server_command("history", "--events")[1],
        )
        third.wait_for(missing)
        self.assertRegex(client.stderr(), f"info rank 0: .* {missing}")
        self.launched(federation, 1, size=3)
        wait_until("more rounds", lambda: federation.rounds_done() >= done + 5)
        client.signal(signal.SIGTERM)
        self.expect_exit(client)

    def test_ranks_with_other_data_are_refused_at_the_start(self):
        """The path is the same everywhere; what lies there is not."""
        self.port = free_port()
        federation = self.make()
        federation.server("--new-run", "--min-clients", 1, "--model", MODEL)
        folders = [federation.folder / name for name in ("all", "half")]
        for folder, examples in zip(folders, (EXAMPLES, EXAMPLES // 2)):
            folder.mkdir()
            write_images(folder / "data", examples)
        flags = ("--data", "idx:data", "--threads", 1)
        self.launched(federation, 1, folder=folders[1])
        client = self.launched(federation, 0, *flags, folder=folders[0])
        self.expect_exit(client, 1)
        self.assertRegex(client.stderr(), r"rank 0 .* has 87 training examples, 9 .*; rank 1 .* has 44, 4 ")
        self.assertIn("all ranks need the same --data", client.stderr())

    def test_doctor_measures_a_site(self):
        federation = self.make()
        code, out, _ = federation.command("fl-client", "site", "doctor", "--ranks", 2)
        self.assertEqual(code, 0)
        self.assertRegex(out, r"ok +ranks +2 on 1 machines: ")
        self.assertRegex(out, r"\w+ +links within machines +[\d.]+ [GM]B/s and ")
        self.assertRegex(out, r"\w+ +sums over all ranks +0.0655 MB in .*, 16.8 MB in ")
        code, out, _ = federation.command("fl-client", "site", "doctor", "--ranks", 2, "--json")
        measured = json.loads(out)["measured"]
        self.assertGreater(measured["bytes_per_s"][0][1], 0)
        code, _, err = federation.command("fl-client", "site", "doctor")
        self.assertEqual(code, 2)
        self.assertIn("--ranks N or --site", err)

    def test_what_is_wrong_is_said_at_the_start(self):
        federation = self.make()
        federation.server("--new-run", "--min-clients", 1, "--model", MODEL)
        data = write_images(federation.folder / "data", EXAMPLES)
        for code, flags, text in (
            (1, ("--data", "idx:/nowhere"), "/nowhere/train-images"),
            (1, ("--data", f"idx:{data}", "--hook", "best"), "powersgd"),
            (2, ("--data", f"idx:{data}", "--site-address", "127.0.0.1"), "is not HOST:PORT"),
            (2, ("--site",), "also needs --site-secret-file"),
            (2, ("--ranks-min", 3), "is above --ranks 2"),
            (2, ("--trainer", "true"), "is for built-in models"),
            (2, ("--data", f"idx:{data}", "--backend", "mpi"), "gloo,nccl,auto"),
        ):
            ranks = () if "--site" in flags else ("--ranks", 2)
            client = federation.client("site", *ranks, *flags)
            self.expect_exit(client, code)
            self.assertIn(text, client.stderr())


if __name__ == "__main__":
    unittest.main()
