# SPDX-License-Identifier: Apache-2.0
"""Faults around a site, in a run whose every part has a state of its own: the client, the server and
the link between them. What happens to ranks is in site_test, links between them in site_links_test."""

import signal
import time
import unittest

from federation import BIN, wait_until
from proxy_test import readdress
from site_runs import SiteTest, is_running, ranks_of
from tunnels import Meter

SITE = ("--ranks", 2, "--hook", "codec:ecuq:2+ef", "--rank-timeout", 3, "--keep-moments")
JOB = ("--optimizer", "adamw", "--lr", 0.01, "--local-steps", 10, "--codec", "ecuq:2+ef")
ROUNDS = 45
STOPPED_S = 2  # How long the server is stopped, some rounds.


class Link(Meter):
    """The way from a client to its server, which can be down."""

    is_down, refused = False, 0

    def serve(self, client):
        if self.is_down:
            self.refused += 1
        else:
            super().serve(client)


@unittest.skipUnless((BIN / "fl-rank").exists(), "built without libtorch")
class SiteFaults(SiteTest):
    def rounds_pass(self, count):
        done = self.federation.rounds_done()
        wait_until(f"{count} more rounds", lambda: self.federation.rounds_done() >= done + count)

    def stop_the_client(self):
        """Until its ranks take it for lost and end."""
        ranks = ranks_of(self.client)
        self.client.pause()
        wait_until("the ranks' end", lambda: not any(map(is_running, ranks.values())))
        self.client.signal(signal.SIGCONT)
        self.client.wait_for("starting it again")

    def kill_the_client(self):
        """Kills the client, which comes through a relay from then on."""
        self.client.kill()
        self.link = Link(self.federation.port)
        self.addCleanup(self.link.close)
        readdress(self.federation, "site", self.link.place)
        self.train()

    def kill_the_server(self):
        self.server.kill()
        self.client.wait_for("trying again")
        self.serve()

    def stop_the_server(self):
        self.server.pause()
        time.sleep(STOPPED_S)
        self.server.signal(signal.SIGCONT)

    def cut_the_link(self):
        self.link.is_down = True
        self.link.cut()
        wait_until("the client's attempts", lambda: self.link.refused >= 2)
        self.link.is_down = False

    def test_whatever_fails_around_the_ranks_the_model_is_the_same(self):
        """In one run the client is stopped and killed, the server is killed and stopped, and the
        link between them is cut; the run ends in the bits of an undisturbed one."""
        job = {"batch": 8, "rounds": ROUNDS, "server": JOB}
        _, undisturbed, _ = self.run_of(*SITE, name="undisturbed", **job)

        def disturb(*_):
            faults = (
                self.kill_the_client,
                self.stop_the_client,
                self.kill_the_server,
                self.stop_the_server,
                self.cut_the_link,
            )
            for fault in faults:
                self.rounds_pass(3)
                fault()
            self.rounds_pass(3)

        _, disturbed, _ = self.run_of(*SITE, name="disturbed", meanwhile=disturb, **job)
        self.assertEqual(len(undisturbed), ROUNDS + 1)
        self.assertEqual(disturbed, undisturbed)


if __name__ == "__main__":
    unittest.main()
