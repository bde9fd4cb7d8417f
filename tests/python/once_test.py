# SPDX-License-Identifier: Apache-2.0
"""The examples of fl-client --trainer-once, a command for each request, in whole runs."""

import shutil
import sys
import unittest

import numpy as np
import safetensors.numpy

import fake_agent

sys.path.insert(0, str(fake_agent.SOURCE / "tests" / "process"))

from federation import FederationTest

EXAMPLES = fake_agent.SOURCE / "examples" / "trainers"
SLOPE = np.array([0.5, -1.0, 2.0])


class Once(FederationTest):
    def data(self, federation, name, seed):
        """Writes a table whose last column is a linear function of the others. Returns its path."""
        x = np.random.default_rng(seed).standard_normal((200, 3))
        path = federation.folder / f"{name}.csv"
        table = np.column_stack([x, x @ SLOPE + 0.25])
        np.savetxt(path, table, delimiter=",", header="a,b,c,y", comments="")
        return path

    def run_of(self, command):
        """Two clients train by `command`; returns the last model."""
        federation = self.make()
        start = federation.folder / "start.safetensors"
        zeros = {"weight": np.zeros(3, np.float32), "bias": np.zeros(1, np.float32)}
        safetensors.numpy.save_file(zeros, start)
        server = federation.server(
            *("--new-run", "--model", "custom:line", "--initial-weights", start),
            *("--rounds", 4, "--min-clients", 2, "--lr", 0.3),
        )
        clients = [
            federation.client(name, "--trainer-once", command(self.data(federation, name, seed)))
            for seed, name in enumerate("ab")
        ]
        for program in [server, *clients]:
            self.expect_exit(program)
        measured = federation.query(
            "SELECT value FROM evaluation WHERE name = 'mae' ORDER BY version"
        )
        self.assertLess(measured[-1][0], 0.05)
        (file,) = federation.query("SELECT file FROM checkpoint ORDER BY version DESC LIMIT 1")[0]
        return safetensors.numpy.load_file(federation.checkpoints / file)

    def check(self, model):
        np.testing.assert_allclose(model["weight"], SLOPE, atol=0.05)
        np.testing.assert_allclose(model["bias"], [0.25], atol=0.05)

    @unittest.skipUnless(shutil.which("jq"), "needs jq")
    def test_a_shell_script_that_calls_a_program(self):
        program = EXAMPLES / "fit.py"
        fit = f"{sys.executable} {program}"
        wrapper = self.root / "fit"
        wrapper.write_text(f'#!/bin/sh\nexec {fit} "$@"\n')
        wrapper.chmod(0o755)
        self.check(self.run_of(lambda data: f"{EXAMPLES / 'once.sh'} {wrapper} {data}"))

    @unittest.skipUnless(shutil.which("Rscript"), "needs R and its package jsonlite")
    def test_r(self):
        self.check(self.run_of(lambda data: f"Rscript {EXAMPLES / 'linear.R'} {data}"))


if __name__ == "__main__":
    unittest.main()
