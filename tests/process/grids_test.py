# SPDX-License-Identifier: Apache-2.0
"""Sites whose ranks have the layers, the texts or the experts of a transformer together (--parallel tp=,cp=,
pp=,ep=): real programs over Gloo on loopback, beside sites that divide the model otherwise and clients that hold
all of it."""

import os
import random
import re
import signal
import subprocess
import time
import unittest

from federation import BIN, SOURCE, free_port, wait_until
from sim_test import read_tensors
from site_runs import OWN_NAME, SiteTest, largest_difference, ranks_of, setups_of, strike, write_texts

MODEL = "transformer:layers=2,width=16,heads=4,context=16"
EXPERTS = MODEL + ",experts=4,top=2,capacity=1.5"


@unittest.skipUnless((BIN / "fl-rank").exists(), "built without libtorch")
class Grids(SiteTest):
    names = ("site", "plain", "single")

    def run_of_text(self, *flags, name, **more):
        job = {"batch": 3, "model": MODEL, "write": write_texts, "kind": "text", **more}
        return self.run_of(*flags, name=name, **job)

    def test_whenever_a_rank_is_killed_or_hangs_the_model_is_the_same(self):
        grids = (
            ("zero 3, tp 2, sequence parallel", ("tp=2", "--sequence-parallel", "--zero", 3)),
            ("tp 2, cp 2 ring", ("tp=2,cp=2",)),
            ("zero 1, cp 2 ulysses", ("cp=2", "--context-parallel", "ulysses", "--zero", 1)),
            ("zero 3, pp 2 1f1b", ("pp=2", "--zero", 3)),
            ("tp 2, pp 2 zb-h1", ("tp=2,pp=2", "--pipeline", "zb-h1", "--check-calls")),
        )
        for setup, flags in self.some_of(grids, every=3):
            with self.subTest(setup=setup):
                self.check_disturbed(setup, "--ranks", 4, "--parallel", *flags)

    def test_whenever_a_rank_with_some_experts_is_killed_or_hangs_the_model_is_the_same(self):
        grids = (
            ("zero 3, ep 2 direct", ("ep=2", "--zero", 3)),
            ("tp 2, ep 2 direct", ("tp=2,ep=2", "--sequence-parallel", "--check-calls")),
        )
        for setup, flags in self.some_of(grids, every=3):
            with self.subTest(setup=setup):
                setup = setup.replace("tp 2", "tp 2, sequence parallel")
                grid = ("--ranks", 4, "--parallel", *flags)
                self.check_disturbed(setup, *grid, model=EXPERTS)

    def test_tokens_go_in_two_hops_between_machines_with_the_same_bits(self):
        if subprocess.run([*OWN_NAME, "true"], check=False, capture_output=True).returncode != 0:
            self.skipTest("not allowed: machines with names of their own")
        digests = {}
        for way in "direct", "two-hops":
            federation = self.make(way)
            self.port = free_port()
            data = write_texts(federation.folder / "data")
            run = ("--model", EXPERTS, "--rounds", 3, "--batch-size", 3, "--local-steps", 2)
            server = federation.server("--new-run", "--min-clients", 1, "--deadline", 0, *run)
            parallel = ("--parallel", "ep=4", "--expert-parallel", way)
            flags = ("--data", f"text:{data}", "--threads", 1, "--rank-timeout", 20, *parallel)
            more = {"LOCAL_WORLD_SIZE": 2}
            ranks = [
                self.launched(
                    *(federation, rank, *(flags if rank == 0 else ())),
                    size=4,
                    more={**more, "LOCAL_RANK": rank % 2},
                    host=f"machine-{rank // 2}",
                )
                for rank in (1, 2, 3, 0)
            ]
            for program in (*ranks, server):
                self.expect_exit(program)
            self.assertEqual(setups_of(federation), {f"cpu, fp32, 4 ranks, ep 4 {way}"})
            self.assertNotIn("in one hop", ranks[-1].stderr())
            digests[way] = federation.digests()
        self.assertEqual(digests["direct"], digests["two-hops"])
        self.assertEqual(len(digests["direct"]), 4)

    def check_disturbed(self, setup, *grid, model=MODEL):
        flags = (*grid, "--recompute", "full", "--keep-moments", "--rank-timeout", 3)
        adam = ("--optimizer", "adamw", "--lr", 0.01, "--local-steps", 4)
        server = (*adam, "--accumulate", 2, "--codec", "ecuq:2+ef")
        job = {"rounds": 16, "server": server, "model": model}
        name = setup.replace(",", "")  # A comma would end the path of the texts.
        _, wanted, _ = self.run_of_text(*flags, name=f"undisturbed {name}", **job)

        disturb = strike((1, 0, 3, 2))
        job |= {"name": f"disturbed {name}", "meanwhile": disturb}
        _, digests, client = self.run_of_text(*flags, **job)
        self.assertEqual(digests, wanted)
        self.assertIn("begins again with a new group", client.stderr())
        self.assertEqual(
            setups_of(self.federation),
            {f"cpu, fp32, recompute full, 4 ranks, {setup}"},
        )

    def model_of_texts(self, name, flags, meanwhile=None, model=MODEL):
        # A step has all of a client's texts, whatever the number of its ranks.
        steps = ("--batch-size", 64, "--local-epochs", 2)
        return self.model_of_three(
            name,
            flags,
            data=lambda folder: f"text:{write_texts(folder)}",
            job=(*steps, "--codec", "fp16", "--model", model),
            rounds=8,
            meanwhile=meanwhile,
        )

    def test_three_unlike_sites_train_as_three_clients(self):
        experts = MODEL + ",experts=4,aux=0"
        for first, model in self.some_of((("tp=2,pp=2", MODEL), ("tp=2,ep=2", experts))):
            with self.subTest(first=first):
                self.check_three_unlike_sites(first, model)

    def check_three_unlike_sites(self, first, model):
        sites = (
            ("--ranks", 4, "--parallel", first, "--sequence-parallel", "--zero", 1),
            ("--ranks", 2, "--zero", 3, "--recompute", "full"),
            (),
        )
        name = first.replace(",", "-")
        alone = self.model_of_texts(f"alone-{name}", ((), (), ()), model=model)

        def disturb(federation, clients, start, server, job):
            """Kills a rank, the site and the server."""

            def rounds_pass():
                done = federation.rounds_done()
                wait_until("rounds pass", lambda: federation.rounds_done() > done)

            rounds_pass()
            os.kill(ranks_of(clients[0])[3], signal.SIGKILL)
            rounds_pass()
            clients[0].kill()
            clients[0] = start(0)
            rounds_pass()
            server.kill()
            return federation.server(*job)

        apart = self.model_of_texts(f"sites-{name}", sites, meanwhile=disturb, model=model)
        self.assertLess(largest_difference(apart, alone), 1e-5)

    def test_experts_may_stay_at_the_client_that_divides_them(self):
        personal = ("--strategy", "fedavg:personal=*experts*", "--local-steps", 2)
        job = {"rounds": 3, "batch": 3, "model": EXPERTS, "server": personal}
        grid = ("--ranks", 2, "--parallel", "ep=2", "--zero", 1)
        values, _, _ = self.run_of_text(*grid, name="personal", **job)
        self.assertTrue(values)
        self.assertFalse([name for name in values if "experts" in name])
        own = list((self.federation.folder / "site").glob("personal-*.safetensors"))
        self.assertEqual(len(own), 1)
        kept = read_tensors(own[0])
        self.assertTrue(all("experts" in name for name in kept))
        self.assertEqual(len(kept), 2 * 5)  # Of two blocks: a router, and two layers with biases.

    def test_a_site_goes_on_with_whole_groups(self):
        flags = ("--ranks", 4, "--parallel", "tp=2", "--ranks-min", 2, "--rank-timeout", 3)

        def lose(federation, client):
            """Rank 3 can't start again."""
            wait_until("a round", lambda: federation.rounds_done() >= 1)
            for _ in range(200):
                lost = ranks_of(client).get(3)
                if lost is not None:
                    os.kill(lost, signal.SIGKILL)
                if "2 ranks" in str(setups_of(federation)):
                    return
                time.sleep(0.1)
            self.fail("the site did not go on with two ranks")

        self.run_of_text(*flags, name="fewer", rounds=40, meanwhile=lose)
        setups = setups_of(self.federation)
        self.assertLessEqual({"cpu, fp32, 4 ranks, tp 2", "cpu, fp32, 2 ranks, tp 2"}, setups)

    def test_four_ranks_train_a_context_for_which_one_has_no_memory(self):
        model = "transformer:layers=2,width=64,heads=4,context=4096"
        limit = 400 << 20  # One rank takes more than 500 MB, each of four less than 330.
        self.launcher = ("prlimit", f"--data={limit}", "--")

        def write_long_texts(folder):
            folder.mkdir(parents=True)
            draw = random.Random(5)
            for number in range(8):
                text = "".join(draw.choice("abcdefgh ") for _ in range(4097))
                (folder / f"{number}.txt").write_text(text, encoding="utf-8")
            return f"{folder},piece=4096"

        steps = ("--batch-size", 8, "--local-steps", 1)
        job = {"rounds": 1, "batch": 8, "model": model, "server": steps, "write": write_long_texts}
        job |= {"kind": "text", "name": "four"}
        self.run_of("--ranks", 4, "--parallel", "cp=4", **job)
        with self.assertRaises(AssertionError):
            self.run_of("--ranks", 1, **job | {"name": "one"})
        self.assertIn("can't allocate memory", self.client.stderr())

    def test_the_guide_s_commands_run(self):
        guide = (SOURCE / "docs/guide/large-models.md").read_text(encoding="utf-8")
        commands = re.findall(r"\| `fl-client (--ranks [^`]*)` \|$", guide, re.MULTILINE)
        self.assertEqual(len(commands), 6)
        model = "transformer:layers=4,width=16,heads=4,context=32,experts=4,capacity=2"
        for number, command in enumerate(commands):
            with self.subTest(command=command):
                steps = ("--accumulate", 4, "--local-steps", 1)
                job = {"rounds": 1, "batch": 1, "model": model, "server": steps}
                self.run_of_text(*command.split(), name=f"guide-{number}", **job)
                (setup,) = setups_of(self.federation)
                for what in re.findall(r"(?:tp|cp|ep|pp)=\d", command):
                    self.assertIn(what.replace("=", " "), setup)

    def test_what_can_not_be_divided_is_refused_with_the_reason(self):
        federation = self.make()
        data = ("--data", f"text:{write_texts(federation.folder / 'data')}")
        for flags, text in (
            (("--ranks", 3, "--parallel", "tp=2"), "takes a multiple of 2 ranks, and the site has 3"),
            (("--ranks", 4, "--parallel", "dp=1,tp=2"), "takes 2 ranks, and the site has 4"),
            (("--ranks", 2, "--sequence-parallel"), "needs --parallel with tp=2 or more"),
            (("--ranks", 2, "--context-parallel", "ring"), "needs --parallel with cp=2 or more"),
            (("--ranks", 6, "--parallel", "dp=6,ep=4"), "which are 6, no multiple of 4"),
            (("--ranks", 2, "--pipeline", "gpipe"), "needs --parallel with pp=2 or more"),
            (("--ranks", 4, "--parallel", "tp=2", "--ranks-min", 3), "is no multiple of 2"),
        ):
            with self.subTest(flags=flags):
                client = federation.client("site", *data, *flags)
                client.wait(60)
                self.assertIn(client.process.returncode, (1, 2), str(client))
                self.assertIn(text, client.stderr())
        run = ("--new-run", "--min-clients", 1, "--rounds", 1)
        server = federation.server(*run, "--model", MODEL.replace("heads=4", "heads=1"))
        client = federation.client("site", *data, "--ranks", 2, "--parallel", "tp=2")
        client.wait_for("its 1 heads are no multiple of 2")
        client.signal(signal.SIGTERM)
        client.wait(60)
        client = federation.client("site", *data, "--ranks", 3, "--parallel", "cp=3")
        client.wait_for("its context of 16 tokens is no multiple of 6")
        client.signal(signal.SIGTERM)
        client.wait(60)
        client = federation.client("site", *data, "--ranks", 2, "--parallel", "ep=2")
        client.wait_for("it has no experts")
        client.signal(signal.SIGTERM)
        client.wait(60)
        client = federation.client("site", *data, "--ranks", 4, "--parallel", "pp=4")
        client.wait_for("its 2 layers are no multiple of 4")
        for program in (client, server):
            program.signal(signal.SIGTERM)
            program.wait(60)


if __name__ == "__main__":
    unittest.main()
