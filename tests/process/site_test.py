# SPDX-License-Identifier: Apache-2.0
"""A client that is a site of many ranks: real programs over Gloo on loopback."""

import os
import re
import signal
import subprocess
import unittest

from federation import BIN, FederationTest, wait_until, write_images
from sim_test import read_tensors

EXAMPLES = 96
MODEL = "mlp:784-16-10"


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


@unittest.skipUnless((BIN / "fl-rank").exists(), "built without libtorch")
class Site(FederationTest):
    names = ("site",)

    def run_of(self, *flags, batch, rounds=2, name="federation", meanwhile=None, server=()):
        """The values of the last version of a run with one client, the site, and the client."""
        federation = self.make(name)
        data = write_images(federation.folder / "data", EXAMPLES)
        run = ("--model", MODEL, "--rounds", rounds, "--lr", 0.05, "--batch-size", batch)
        coordinator = federation.server(
            "--new-run", "--min-clients", 1, "--codec", "none", "--deadline", 0, *run, *server
        )
        client = federation.client("site", "--data", f"idx:{data}", "--threads", 1, *flags)
        if meanwhile:
            meanwhile(federation, client)
        for program in (client, coordinator):
            self.expect_exit(program)
        last = federation.checkpoints / f"round-{rounds:06d}.safetensors"
        return read_tensors(last), federation.digests(), client

    def assert_near(self, one, other, tolerance):
        self.assertEqual(one.keys(), other.keys())
        for name, values in one.items():
            for a, b in zip(values, other[name], strict=True):
                self.assertLessEqual(abs(a - b), tolerance * max(1, abs(a)), name)

    def test_ranks_train_as_one_with_larger_batches(self):
        """N ranks with batches of B examples and one rank with batches of N * B make the same
        update, up to rounding; N ranks make the same bits in each run."""
        alone, _, _ = self.run_of(batch=24, name="alone")
        three, digests, _ = self.run_of("--ranks", 3, batch=8, name="three")
        self.assert_near(alone, three, 1e-5)
        _, again, _ = self.run_of("--ranks", 3, batch=8, name="again")
        self.assertEqual(digests, again)


if __name__ == "__main__":
    unittest.main()
