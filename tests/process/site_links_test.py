# SPDX-License-Identifier: Apache-2.0
"""A site whose machines are network namespaces: links between its ranks are cut and mended."""

import sys
import unittest

from federation import BIN, SOURCE, FederationTest, free_port, wait_until, write_images

sys.path.insert(0, str(SOURCE / "examples/cross-datacenter"))
from cross_datacenter_test import can_shape_links
from wide_area import HERE, WideArea, enter_namespaces

EXAMPLES = 96
ROUNDS = 40


@unittest.skipUnless((BIN / "fl-rank").exists(), "built without libtorch")
class SiteLinks(FederationTest):
    """The client and rank 0 are here, rank 1 is in the namespace `far`."""

    names = ("site",)

    def start_rank(self, federation, rank, *flags):
        secret = federation.folder / "secret"
        secret.write_text("only the ranks of this site know it")
        secret.chmod(0o600)
        variables = {
            "RANK": rank,
            "WORLD_SIZE": 2,
            "LOCAL_RANK": 0,
            "LOCAL_WORLD_SIZE": 1,
            "MASTER_ADDR": HERE,
            "MASTER_PORT": self.port,
        }
        command = ["env", *(f"{name}={value}" for name, value in variables.items())]
        command += [BIN / "fl-client", "--state", federation.folder / "site"]
        command += ["--site", "--site-secret-file", secret, "--site-interface", "eth0"]
        command += ["--data", f"idx:{self.data}", "--threads", 1, "--rank-timeout", 5, *flags]
        if rank == 1:
            command = self.area.command("far", command)
        return federation.start(f"rank-{rank}", command)

    def run_of(self, name, meanwhile):
        self.port = free_port()
        federation = self.make(name)
        run = ("--model", "mlp:784-16-10", "--lr", 0.05, "--batch-size", 8, "--local-steps", 30)
        server = federation.server(
            *("--new-run", "--min-clients", 1, "--codec", "ecuq:2+ef", "--deadline", 0),
            *("--rounds", ROUNDS, *run),
        )
        ranks = [self.start_rank(federation, rank) for rank in (0, 1)]
        ranks += meanwhile(federation, ranks) or []
        for program in (ranks[0], server):
            self.expect_exit(program)
        return federation.digests(), ranks

    def test_a_link_that_is_cut_and_mended_changes_nothing_in_the_model(self):
        with WideArea(("far",)) as self.area:
            folder = self.make("data").folder
            self.data = write_images(folder / "images", EXAMPLES)
            undisturbed, _ = self.run_of("undisturbed", lambda *_: None)

            def cut(federation, ranks):
                wait_until("five rounds", lambda: federation.rounds_done() >= 5)
                self.area.set_link("far", "down")
                ranks[0].wait_for("rank 1")  # Named as the one that is missing.
                done = federation.rounds_done()
                self.area.set_link("far", "up")
                # The rank has ended, as it has lost its client; a launcher starts it again.
                wait_until("the end of rank 1", lambda: not ranks[1].running())
                self.assertLess(federation.rounds_done(), ROUNDS)
                again = self.start_rank(federation, 1)
                wait_until("more rounds", lambda: federation.rounds_done() > done + 1)
                return [again]

            disturbed, _ = self.run_of("disturbed", cut)
        self.assertEqual(len(undisturbed), ROUNDS + 1)
        self.assertEqual(disturbed, undisturbed)


if __name__ == "__main__":
    if can_shape_links():
        enter_namespaces()
        unittest.main()
    print("skipped: no shaped links in namespaces of one's own: no iproute2, or not allowed")
