# SPDX-License-Identifier: Apache-2.0
"""An idle program waits for what it waits for and does not poll: its threads are switched to at most ten
times a second, all together, while a server waits for clients or for another run, and while a client
waits with it, also one with a trainer program and one that stays between two runs."""

import pathlib
import re
import sys
import time
import unittest

from federation import SOURCE, FederationTest, wait_until
from process_table import children_of

SCRIPT = SOURCE / "tests/client/learn/scripted_trainer.py"
SECONDS = 10
SWITCHES_PER_SECOND_MAX = 10


def switches(pid):
    """How often the system has switched to each thread of this process, by its number."""
    counts = {}
    for status in pathlib.Path(f"/proc/{pid}/task").glob("*/status"):
        text = status.read_text()
        found = re.findall(r"^(?:non)?voluntary_ctxt_switches:\s*(\d+)$", text, re.MULTILINE)
        counts[status.parent.name] = sum(map(int, found))
    return counts


class Idle(FederationTest):
    names = ("a",)

    def check_idle(self, **programs):
        """Counts for a while how often each of these programs is switched to. What a program has
        started is only reported."""
        time.sleep(1)  # What they did before has an end.
        started = {name: children_of(program.pid) for name, program in programs.items()}
        pids = [program.pid for program in programs.values()] + sum(started.values(), [])
        before = {pid: switches(pid) for pid in pids}
        time.sleep(SECONDS)

        def rates(pid):
            return {
                thread: (count - before[pid].get(thread, 0)) / SECONDS
                for thread, count in switches(pid).items()
            }

        for name, program in programs.items():
            self.assertTrue(program.running(), program)
            own = rates(program.pid)
            print(f"{name}: {sum(own.values()):.1f} switches a second", file=sys.stderr)
            for child in started[name]:
                sum_of = sum(rates(child).values())
                print(f"  started by {name}: {sum_of:.1f} switches a second", file=sys.stderr)
            self.assertLessEqual(sum(own.values()), SWITCHES_PER_SECOND_MAX, (name, own))

    def serve(self, *flags):
        federation = self.make()
        run = ("--model", "synthetic:1000", "--rounds", 1, "--seed", 1)
        return federation, federation.server("--new-run", *run, "--admin", "127.0.0.1:0", *flags)

    def test_while_they_wait_for_more_clients(self):
        federation, server = self.serve("--min-clients", 2)
        client = federation.client("a")
        server.wait_for("a is here")
        self.check_idle(server=server, client=client)

    def test_while_a_trainer_program_waits_with_its_client(self):
        federation = self.make()
        path = federation.folder / "start.safetensors"
        trainer = ("--trainer", f"python3 {SCRIPT} -")
        self.expect_exit(federation.client("maker", *trainer, "initial-weights", path))
        run = ("--model", "custom:mine", "--rounds", 1, "--initial-weights", path)
        server = federation.server("--new-run", *run, "--min-clients", 2)
        client = federation.client("a", *trainer)
        server.wait_for("a is here")
        self.check_idle(client=client)

    def test_a_client_that_stays_between_two_runs(self):
        federation, server = self.serve("--min-clients", 1, "--stay")
        client = federation.client("a", "--stay")
        client.wait_for("waiting for the next one")
        self.check_idle(client=client)
        # It takes part in the next run, although it asks for one less and less often.
        self.assertEqual(federation.server_command("queue", "--rounds", 1, "--min-clients", 1)[0], 0)
        said = "asked to train"
        wait_until("the next run", lambda: client.stderr().count(said) > 1, 20)

    def test_a_server_between_two_runs(self):
        federation, server = self.serve("--min-clients", 1, "--stay")
        client = federation.client("a")
        self.expect_exit(client)
        server.wait_for("waiting for another run")
        self.check_idle(server=server)
        # It misses no change of the history's file, although it does not poll.
        code, _, err = federation.server_command("queue", "--rounds", 1)
        self.assertEqual(code, 0, err)
        said = "1 rounds, seed"  # The line that begins a run has it.
        wait_until("the queued run", lambda: server.stderr().count(said) > 1, 4)

    def test_a_server_acts_at_once_on_what_others_write(self):
        federation, server = self.serve("--min-clients", 2)
        federation.client("a")
        server.wait_for("a is here")
        time.sleep(1)
        code, _, err = federation.server_command("revoke", "a")
        self.assertEqual(code, 0, err)
        server.wait_for("revoked", 4)  # Less than limits::history_look.


if __name__ == "__main__":
    unittest.main()
