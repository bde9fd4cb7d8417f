# SPDX-License-Identifier: Apache-2.0
"""Helpers of the tests of a client that is a site of many ranks: real programs over Gloo on loopback."""

import os
import random
import signal
import time

from federation import BIN, FederationTest, wait_until, write_images
from sim_test import read_tensors

EXAMPLES = 96
OWN_NAME = ("unshare", "--map-root-user", "--uts")  # Before a program whose machine has another name.
MODEL = "mlp:784-16-10"
TEXTS = 12


def write_texts(folder):
    """Files of some words each, of unlike lengths."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(5)
    for number in range(TEXTS):
        words = (draw.choice(("the", "river", "takes", "what", "rain", "brings")) for _ in range(8))
        (folder / f"{number:02d}.txt").write_text(" ".join(words), encoding="utf-8")
    return folder


def ranks_of(client):
    """The processes of a client's ranks, by number."""
    found = {}
    for folder in os.listdir("/proc"):
        if not folder.isdigit():
            continue
        try:
            with open(f"/proc/{folder}/stat", encoding="utf-8") as file:
                name, _, rest = file.read().partition("(")[2].partition(")")
            with open(f"/proc/{folder}/environ", encoding="utf-8") as file:
                variables = dict(v.split("=", 1) for v in file.read().split("\0") if "=" in v)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if name == "fl-rank" and int(rest.split()[1]) == client.pid:
            found[int(variables["TRIBUTARY_SITE_RANK"])] = int(folder)
    return found


def is_running(process):
    """A process that has ended, and that its parent has not noticed, does not run."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def largest_difference(some, others):
    return max(abs(a - b) for name in some for a, b in zip(some[name], others[name], strict=True))


def setups_of(federation):
    """How updates were trained, as the history says."""
    return {setup for (setup,) in federation.query("SELECT DISTINCT setup FROM task")}


def strike(turns, pause_s=0.04):
    """A disturbance for run_of(): every second round or so the next one of these ranks is killed or,
    by turns, stopped, each time in another phase of a round."""

    def disturb(federation, client):
        for turn, rank in enumerate(turns):
            done = federation.rounds_done()
            wait_until("rounds pass", lambda: federation.rounds_done() >= done + 2)
            time.sleep(pause_s * turn)
            hangs = turn % 2 == 1
            os.kill(ranks_of(client)[rank], signal.SIGSTOP if hangs else signal.SIGKILL)

    return disturb


class SiteTest(FederationTest):
    """A test class whose run_of() trains with one client, which is a site."""

    names = ("site",)
    launcher = ()  # The command that starts the client, before the client's arguments.

    def run_of(
        self,
        *flags,
        batch,
        rounds=2,
        name="federation",
        meanwhile=None,
        server=(),
        model=MODEL,
        write=lambda folder: write_images(folder, EXAMPLES),
        kind="idx",
    ):
        """The values of the last version of a run with one client, the site, and the client. `write`
        makes the folder of its data, which are of this `kind`. `meanwhile` may start server and client again: serve() and train() have the same flags."""
        federation = self.federation = self.make(name)
        data = write(federation.folder / "data")
        run = ("--model", model, "--rounds", rounds, "--lr", 0.05, "--batch-size", batch)
        self.server_flags = ("--min-clients", 1, "--codec", "none", "--deadline", 0, *run, *server)
        self.client_flags = ("--data", f"{kind}:{data}", "--threads", 1, *flags)
        self.serve("--new-run")
        self.train()
        if meanwhile:
            meanwhile(federation, self.client)
        for program in (self.client, self.server):
            self.expect_exit(program)
        last = federation.checkpoints / f"round-{rounds:06d}.safetensors"
        return read_tensors(last), federation.digests(), self.client

    def model_of_three(self, name, flags, *, data, job, rounds, meanwhile=None):
        """The model that three clients make, of which each has a third of the examples of `data`,
        and these flags of its own. `meanwhile` returns the server, which it may start anew."""
        federation = self.make(name)
        run = ("--min-clients", 3, "--deadline", 0, "--lr", 0.02, "--rounds", rounds, *job)
        examples = data(federation.folder / "data")

        def start(at):
            shard = ("--shard", f"{at + 1}/3", "--threads", 1)
            return federation.client(self.names[at], "--data", examples, *shard, *flags[at])

        server = federation.server("--new-run", *run)
        clients = [start(at) for at in range(3)]
        if meanwhile:
            server = meanwhile(federation, clients, start, server, run)
        for program in (*clients, server):
            self.expect_exit(program)
        return read_tensors(federation.checkpoints / f"round-{rounds:06d}.safetensors")

    def serve(self, *more):
        self.server = self.federation.server(*more, *self.server_flags)

    def train(self):
        command = [*self.launcher, BIN / "fl-client", "--state", self.federation.folder / "site"]
        self.client = self.federation.start("client-site", [*command, *self.client_flags])

    def assert_near(self, one, other, tolerance):
        self.assertEqual(one.keys(), other.keys())
        for name, values in one.items():
            for a, b in zip(values, other[name], strict=True):
                self.assertLessEqual(abs(a - b), tolerance * max(1, abs(a)), name)

    def launched(self, federation, rank, *flags, size=2, folder=".", more=(), host=None):
        """A process as torchrun starts it, in this folder, with more variables, on a machine that is
        called so. The client listens at `self.port`."""
        variables = {
            "RANK": rank,
            "WORLD_SIZE": size,
            "LOCAL_RANK": rank,
            "LOCAL_WORLD_SIZE": size,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": self.port - 1,
            **dict(more),
        }
        command = ["env", "-C", folder, *(f"{name}={value}" for name, value in variables.items())]
        if host:
            command += [*OWN_NAME, "sh", "-c", f'hostname {host} && exec "$@"', "sh"]
        command += [BIN / "fl-client", "--state", federation.folder / "site"]
        return federation.start(f"rank-{rank}", [*command, *self.of_a_launcher(), *flags])

    def of_a_launcher(self):
        """The flags of all ranks that a launcher starts."""
        secret = self.root / "secret"
        if not secret.exists():  # A rank that has been started may be reading it.
            secret.write_text("a secret of this site\n")
            secret.chmod(0o600)
        return "--site", "--site-secret-file", secret, "--site-interface", "lo"
