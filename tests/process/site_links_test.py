# SPDX-License-Identifier: Apache-2.0
"""A site whose machines are network namespaces: links between its ranks are cut and mended, and a
machine is lost."""

import collections
import json
import sys
import time
import unittest

from federation import BIN, SOURCE, FederationTest, free_port, wait_until, write_images

sys.path.insert(0, str(SOURCE / "examples/cross-datacenter"))
from cross_datacenter_test import can_shape_links
from site_runs import write_texts
from wide_area import HERE, WideArea, enter_namespaces, run

EXAMPLES = 96
ROUNDS = 40
OUTAGE_S = 3  # The link to the server is cut this long. Nobody notices: lost packets are sent again.


@unittest.skipUnless((BIN / "fl-rank").exists(), "built without libtorch")
class SiteLinks(FederationTest):
    """A site of two ranks; the client is beside rank 0. All machines see the folder of its state."""

    names = ("site",)

    def setUp(self):
        super().setUp()
        self.interfaces = collections.defaultdict(lambda: "eth0")  # The interfaces of each place.
        self.flags = ()  # How ranks share a step.
        self.job = ("--model", "mlp:784-16-10", "--lr", 0.05, "--batch-size", 8, "--local-steps", 30)

    def start_rank(self, federation, rank, place, client_at):
        """With `self.flags`, at this place; None: here. `client_at`: the address of rank 0's machine."""
        secret = federation.folder / "secret"
        secret.write_text("only the ranks of this site know it")
        secret.chmod(0o600)
        variables = {
            "RANK": rank,
            "WORLD_SIZE": 2,
            "LOCAL_RANK": 0,
            "LOCAL_WORLD_SIZE": 1,
            "MASTER_ADDR": client_at,
            "MASTER_PORT": self.port,
        }
        command = ["env", *(f"{name}={value}" for name, value in variables.items())]
        command += [BIN / "fl-client", "--state", federation.folder / "site"]
        command += ["--site", "--site-secret-file", secret]
        if self.interfaces[place]:
            command += ["--site-interface", self.interfaces[place]]
        else:
            command = self.as_debian_names_it(federation, place, command)
        command += ["--data", self.data, "--threads", 1, "--rank-timeout", 5]
        command += self.flags
        if place:
            command = self.area.command(place, command)
        return federation.start(f"rank-{rank}-{place}", command)

    def as_debian_names_it(self, federation, place, command):
        """On a machine that knows itself as 127.0.1.1, and the others by their addresses."""
        hosts = federation.folder / f"hosts-{place}"
        others = [f"{address} {name}" for name, address in self.area.addresses.items() if name != place]
        hosts.write_text("\n".join(["127.0.0.1 localhost", f"127.0.1.1 {place}", *others, ""]))
        there = f'mount --bind {hosts} /etc/hosts && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", there, "sh", *command]

    def run_of(self, name, places, meanwhile=None, client_at=None):
        """Ranks 0 and 1 are at these places. `meanwhile` returns the ranks that are there in the
        end. `client_at`: where the ranks look for the client, if not at the address of rank 0's."""
        self.port = free_port()
        federation = self.make(name)
        address = f"{HERE}:{federation.port}"
        identity = federation.folder / "site/identity/identity.json"
        identity.write_text(json.dumps({"server": address}))
        server = federation.server(
            *("--new-run", "--min-clients", 1, "--codec", "ecuq:2+ef", "--deadline", 0),
            *("--listen", f"0.0.0.0:{federation.port}", "--advertise", address),
            *("--rounds", ROUNDS, *self.job),
        )
        client_at = client_at or self.area.addresses.get(places[0], HERE)
        ranks = [self.start_rank(federation, i, places[i], client_at) for i in (0, 1)]
        if meanwhile:
            ranks = meanwhile(federation, ranks)
        for program in (ranks[0], server):
            self.expect_exit(program)
        return federation.digests()

    def cut(self, federation, ranks):
        """Cuts the link between the ranks, and mends it when it is noticed."""
        wait_until("five rounds", lambda: federation.rounds_done() >= 5)
        self.area.set_link("far", "down")
        ranks[0].wait_for("rank 1")  # Named as the one that is missing.
        done = federation.rounds_done()
        self.area.set_link("far", "up")
        # The rank has ended, as it has lost its client; a launcher starts it again.
        wait_until("the end of rank 1", lambda: not ranks[1].running())
        self.assertLess(federation.rounds_done(), ROUNDS)
        again = self.start_rank(federation, 1, "far", HERE)
        wait_until("more rounds", lambda: federation.rounds_done() > done + 1)
        return [ranks[0], again]

    def test_ranks_of_two_machines_that_divide_layers_go_on_after_a_cut(self):
        with WideArea(("far",)) as self.area:
            self.data = f"text:{write_texts(self.make('data').folder / 'texts')}"
            model = ("--model", "transformer:layers=2,width=16,heads=2,context=16")
            self.job = (*model, "--batch-size", 3, "--accumulate", 2, "--local-steps", 10)
            for grid in self.some_of(("tp=2", "pp=2")):
                with self.subTest(grid=grid):
                    self.flags = ("--parallel", grid)
                    undisturbed = self.run_of(f"{grid}-undisturbed", (None, "far"))
                    self.assertEqual(self.run_of(grid, (None, "far"), self.cut), undisturbed)
                    self.assertEqual(len(undisturbed), ROUNDS + 1)

    def test_a_link_that_is_cut_and_mended_changes_nothing_in_the_model(self):
        with WideArea(("far",)) as self.area:
            self.data = f"idx:{write_images(self.make('data').folder / 'images', EXAMPLES)}"
            undisturbed = self.run_of("undisturbed", (None, "far"))

            disturbed = self.run_of("disturbed", (None, "far"), self.cut)

            def cut_off(federation, ranks):
                wait_until("five rounds", lambda: federation.rounds_done() >= 5)
                self.area.set_link("far", "down")
                time.sleep(OUTAGE_S)
                done = federation.rounds_done()
                self.area.set_link("far", "up")
                self.assertLess(done, ROUNDS)
                return ranks

            # Both ranks and the client are there: only the server is here.
            cut_off = self.run_of("cut-off", ("far", "far"), cut_off)
            # Sums of two have the same bits, however they come together.
            self.flags = ("--zero", "3")
            in_parts = self.run_of("in-parts", (None, "far"), self.cut)
        self.assertEqual(len(undisturbed), ROUNDS + 1)
        self.assertEqual(disturbed, undisturbed)
        self.assertEqual(cut_off, undisturbed)
        self.assertEqual(in_parts, undisturbed)

    def test_machines_whose_own_names_are_loopback_train_without_an_interface(self):
        with WideArea(("near", "far")) as self.area:
            self.data = f"idx:{write_images(self.make('data').folder / 'images', EXAMPLES)}"
            named = self.run_of("named", ("near", "far"))
            self.interfaces = collections.defaultdict(lambda: None)
            self.assertEqual(self.run_of("loopback", ("near", "far")), named)
            # The client is reached by its machine's name, which is loopback there.
            self.assertEqual(self.run_of("by-name", ("near", "far"), client_at="near"), named)

    def test_another_machine_takes_over_from_the_one_with_the_client(self):
        with WideArea(("near", "far", "spare")) as self.area:
            self.data = f"idx:{write_images(self.make('data').folder / 'images', EXAMPLES)}"
            undisturbed = self.run_of("undisturbed", ("near", "far"))
            spare_at = self.area.addresses["spare"]
            self.interfaces["spare"] = "wan0"  # Each machine has its own names.
            for name, *change in ("eth0", "down"), ("eth0", "name", "wan0"), ("wan0", "up"):
                run("ip", "-n", "spare", "link", "set", name, *change)

            def lose(federation, ranks):
                wait_until("five rounds", lambda: federation.rounds_done() >= 5)
                # Two at once would use the identity and the residuals twice.
                early = self.start_rank(federation, 0, "spare", spare_at)
                early.wait_for("another process uses")
                self.assertNotEqual(early.wait(), 0)
                self.assertLess(federation.rounds_done(), ROUNDS)
                ranks[0].kill()
                wait_until("the end of rank 1", lambda: not ranks[1].running())
                return [self.start_rank(federation, rank, place, spare_at)
                        for rank, place in ((0, "spare"), (1, "far"))]

            taken_over = self.run_of("taken-over", ("near", "far"), lose)
        self.assertEqual(taken_over, undisturbed)


if __name__ == "__main__":
    if can_shape_links():
        enter_namespaces()
        unittest.main()
    print("skipped: no shaped links in namespaces of one's own: no iproute2, or not allowed")
