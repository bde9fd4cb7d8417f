# SPDX-License-Identifier: Apache-2.0
"""Sites whose ranks each hold a part of the model (--zero), and activations that are computed again
(--recompute): real programs over Gloo on loopback, beside sites and clients that hold all of it."""

import os
import signal
import unittest

from federation import BIN, wait_until, write_images
from sim_test import read_tensors
from site_runs import EXAMPLES, SiteTest, largest_difference, ranks_of, setups_of, strike

ADAM = ("--optimizer", "adamw", "--lr", 0.01, "--local-steps", 6)


@unittest.skipUnless((BIN / "fl-rank").exists(), "built without libtorch")
class Shards(SiteTest):
    names = ("site", "plain", "single")

    def test_parts_make_the_model_of_the_whole_bit_for_bit(self):
        whole = ("--ranks", 2, "--topology", "alltoall")
        _, wanted, _ = self.run_of(*whole, batch=8, name="whole")
        for flags in (
            ("--ranks", 2, "--topology", "alltoall", "--zero", 1),
            ("--ranks", 2, "--zero", 2, "--parallel", "dp=2"),
            ("--ranks", 2, "--zero", 3, "--recompute", "full"),
        ):
            with self.subTest(flags=flags):
                _, digests, _ = self.run_of(*flags, batch=8, name="-".join(map(str, flags)))
                self.assertEqual(digests, wanted)

    def test_whenever_a_rank_is_killed_or_hangs_the_model_is_the_same(self):
        shares = ("--zero", 3, "--recompute", "full", "--keep-moments", "--offload", "optimizer")
        flags = ("--ranks", 3, *shares, "--rank-timeout", 3)
        job = {"batch": 4, "rounds": 25, "server": (*ADAM, "--codec", "ecuq:2+ef")}
        _, wanted, _ = self.run_of(*flags, name="undisturbed", **job)

        disturb = strike((1, 0, 2, 1, 2))
        _, digests, client = self.run_of(*flags, name="disturbed", meanwhile=disturb, **job)
        self.assertEqual(digests, wanted)
        self.assertIn("begins again with a new group", client.stderr())
        self.assertIn("rank 0", client.stderr())  # The one that hung is named.
        setups = setups_of(self.federation)
        self.assertEqual(
            setups, {"cpu, fp32, recompute full, offload optimizer, 3 ranks, zero 3"}
        )

    def test_another_number_of_ranks_finds_its_moments(self):
        """Two ranks and then three take steps, whether a rank holds parts or all."""
        states = []
        for zero in (0, 3):
            federation = self.make(f"zero-{zero}")
            data = ("--data", f"idx:{write_images(federation.folder / 'data', EXAMPLES)}")
            run = ("--min-clients", 1, "--codec", "none", "--batch-size", 8, *ADAM)
            moments = ("--keep-moments", "--threads", 1, "--zero", zero, "--stay")
            way = ("--topology", "alltoall") if zero == 0 else ()
            server = federation.server("--new-run", *run, "--model", "mlp:784-16-10", "--rounds", 4)
            for ranks in (2, 3):
                client = federation.client("site", *data, *moments, *way, "--ranks", ranks)
                client.wait_for(f"round {2 * (ranks - 1)}: update accepted")
                if ranks == 2:
                    client.kill()
            self.expect_exit(server)
            client.signal(signal.SIGTERM)
            self.expect_exit(client)
            self.assertNotIn("begin anew", client.stderr())
            states.append(read_tensors(federation.checkpoints / "round-000004.safetensors"))
        self.assertLess(largest_difference(*states), 1e-5)

    def model_of_images(self, name, flags, rounds=2, codec="none", meanwhile=None):
        # A step has all of a client's examples, whatever the number of its ranks.
        steps = ("--batch-size", EXAMPLES, "--local-epochs", 3)
        return self.model_of_three(
            name,
            flags,
            data=lambda folder: f"idx:{write_images(folder, EXAMPLES)}",
            job=(*steps, "--codec", codec, "--model", "mlp:784-16-10"),
            rounds=rounds,
            meanwhile=meanwhile,
        )

    def test_a_site_of_parts_a_plain_site_and_a_client_train_as_three_clients(self):
        sites = (
            ("--ranks", 2, "--zero", 3, "--recompute", "full"),
            ("--ranks", 2),
            ("--recompute", "full"),
        )
        apart = self.model_of_images("sites", sites)
        alone = self.model_of_images("alone", ((), (), ()))
        self.assertLess(largest_difference(apart, alone), 1e-5)

        def disturb(federation, clients, start, server, job):
            """Kills a rank, each client and the server."""

            def rounds_pass():
                done = federation.rounds_done()
                wait_until("rounds pass", lambda: federation.rounds_done() > done)

            for at in range(2):
                rounds_pass()
                os.kill(ranks_of(clients[at])[1], signal.SIGKILL)
            for at in range(3):
                rounds_pass()
                clients[at].kill()
                clients[at] = start(at)
            rounds_pass()
            server.kill()
            return federation.server(*job)

        # Half precision keeps the small differences of rounding small; a coarser codec would not.
        coded = {"rounds": 12, "codec": "fp16"}
        alone = self.model_of_images("coded-alone", ((), (), ()), **coded)
        apart = self.model_of_images("coded-sites", sites, **coded, meanwhile=disturb)
        self.assertLess(largest_difference(apart, alone), 1e-5)

    def test_what_does_not_go_together_is_refused_before_anything_begins(self):
        federation = self.make()
        data = ("--data", f"idx:{write_images(federation.folder / 'data', 8)}")
        for flags, text in (
            (("--zero", 3), "is for a site: it needs --ranks N or --site"),
            (("--ranks", 2, "--zero", 4), "--zero"),
            (
                ("--ranks", 2, "--parallel", "ep=2", "--hook", "sign"),
                "--parallel ep=2 does not go with --hook sign",
            ),
            (("--ranks", 2, "--parallel", "dp=3"), "takes 3 ranks, and the site has 2"),
            (("--ranks", 2, "--zero", 3, "--hook", "sign"), "--zero 3 does not go with --hook sign"),
            (("--ranks", 2, "--zero", 1, "--hook", "post-local-sgd:2"), "--zero 1 does not go with"),
            (("--ranks", 2, "--zero", 2, "--topology", "ring"), "does not go with --topology ring"),
            (("--ranks", 2, "--zero", 2, "--bucket-mb", 4), "does not go with --bucket-mb 4"),
            (
                ("--ranks", 2, "--zero", 3, "--unused-parameters", "find"),
                "does not go with --unused-parameters find",
            ),
            (
                ("--ranks", 2, "--parallel", "pp=2", "--pipeline", "zb-h1", "--zero", 2),
                "--zero 2 does not go with --pipeline zb-h1",
            ),
            (("--recompute", "some"), "--recompute"),
        ):
            with self.subTest(flags=flags):
                client = federation.client("site", *data, *flags)
                client.wait(60)
                self.assertIn(client.process.returncode, (1, 2), str(client))
                self.assertIn(text, client.stderr())


if __name__ == "__main__":
    unittest.main()
