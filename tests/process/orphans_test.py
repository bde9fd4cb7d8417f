# SPDX-License-Identifier: Apache-2.0
"""Nothing that fl-client has started outlives it when it is killed, whoever reads its output."""

import os
import signal
import unittest

from federation import BIN, FederationTest, wait_until
from site_runs import SiteTest, is_running, ranks_of

# It never looks at its socket, and neither do its children: one in its group, one in a session of its own.
TRAINER = (
    "echo $$ >> {0}; sh -c 'echo $$ >> {0}; exec sleep 1000' &"
    " setsid sh -c 'echo $$ >> {0}; exec sleep 1000' & wait"
)


def written(path):
    return [int(line) for line in path.read_text().split()] if path.exists() else []


class Orphans(FederationTest):
    def check(self, *streams):
        federation = self.make()
        pids = federation.folder / "pids"
        command = [BIN / "fl-client", "--state", federation.folder / "a"]
        shell = ["sh", "-c", " ".join(('exec "$@"', *streams)), "sh"]
        client = federation.start(
            "client", [*shell, *command, "--trainer", TRAINER.format(pids)]
        )
        wait_until("all have started", lambda: len(written(pids)) == 3)
        client.kill()
        wait_until("all have ended", lambda: not any(map(is_running, written(pids))))

    def test_a_trainer_and_its_children_end_with_a_client_that_is_killed(self):
        self.check()

    def test_so_they_do_where_nobody_reads_what_they_print(self):
        self.check(">&-", "2>&-")


@unittest.skipUnless((BIN / "fl-rank").exists(), "built without libtorch")
class Ranks(SiteTest):
    def test_ranks_end_with_a_client_that_is_killed(self):
        seen = []

        def kill(federation, client):
            wait_until("a round is done", lambda: federation.rounds_done() >= 1)
            seen.extend(ranks_of(client).values())
            # Stopped ones notice nothing by themselves.
            for rank in seen:
                os.kill(rank, signal.SIGSTOP)
            client.kill()
            wait_until("the ranks have ended", lambda: not any(map(is_running, seen)))
            self.train()

        self.run_of("--ranks", 2, batch=8, rounds=4, meanwhile=kill)
        self.assertEqual(len(seen), 2)


if __name__ == "__main__":
    unittest.main()
